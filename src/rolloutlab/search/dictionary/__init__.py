"""Search dictionaries: parsing with errors that name the path, the value and a fix; and serialization."""

from rolloutlab.search.dictionary.dump import dump, dump_rank, dump_where
from rolloutlab.search.dictionary.parse import parse, parse_rank, parse_where
from rolloutlab.search.rules import check_where

__all__ = ["check_where", "dump", "dump_rank", "dump_where", "parse", "parse_rank", "parse_where"]
