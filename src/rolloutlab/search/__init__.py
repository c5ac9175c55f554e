"""Search over records: filters, vector and keyword ranking, grouping; a search dictionary and an exact engine."""

from rolloutlab.search.field_notation import F
from rolloutlab.search.query import GroupBy, Limit, MaxK, MinK, Search, Select
from rolloutlab.search.rank import FieldTerm, Knn, Rank, Rrf, SparseVector, Val
from rolloutlab.search.where import Where

__all__ = [
    "F",
    "FieldTerm",
    "GroupBy",
    "Knn",
    "Limit",
    "MaxK",
    "MinK",
    "Rank",
    "Rrf",
    "Search",
    "Select",
    "SparseVector",
    "Val",
    "Where",
]
