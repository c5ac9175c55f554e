"""A search in plain English: what qualifies, how it is scored, grouped and cut, and what comes back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolloutlab.search import rank as ranks
from rolloutlab.search.dictionary import parse
from rolloutlab.search.query import SCORE, GroupBy, Limit, MaxK, Search, Select
from rolloutlab.search.rank import EMBEDDING, Combined, FieldTerm, Knn, Rank, SparseVector, Val
from rolloutlab.search.where import DOCUMENT, ID, REASONING_TEXT, All, Among, AnyOf, Compare, Contains, Matches, Where

COMPARED = {
    "$eq": "is", "$ne": "is not", "$gt": "is above", "$gte": "is at least", "$lt": "is below", "$lte": "is at most",
}  # fmt: skip
CALLED = {
    ID: "the id", DOCUMENT: "the text", EMBEDDING: "the embedding", "#metadata": "all metadata", SCORE: "the score",
    REASONING_TEXT: "the text of reasoning",
}  # fmt: skip
_LONGEST = 60


def explain(search: Search | Mapping[str, Any] | str) -> str:
    """Describe a search or its dictionary in a few lines. InputError if it is no search."""
    search = parse(search)
    lines = ["All records." if search.where is None else f"Records in which {describe_condition(search.where)}."]
    if search.rank is None:
        lines.append("They are not scored: they come in the order in which they were stored.")
    else:
        lines += describe_rank(search.rank)
    if search.group_by:
        lines.append(describe_groups(search.group_by))
    return "\n".join([*lines, describe_page(search.limit), describe_columns(search.select, search.rank is not None)])


def describe_condition(where: Where) -> str:
    """Describe a describe_condition, to follow "in which"."""
    match where:
        case All(parts) | AnyOf(parts):
            words = [
                f"({describe_condition(part)})" if isinstance(part, All | AnyOf) else describe_condition(part)
                for part in parts
            ]
            return _joined(words, "and") if isinstance(where, All) else " or ".join(words)
        case Compare(name, operator, value):
            return f"{words_for(name)} {COMPARED[operator]} {value_words(value)}{_or_missing(name, operator == '$ne')}"
        case Among(name, values, negated):
            some = ", ".join(map(value_words, values[:8])) + (f" and {len(values) - 8} more" if len(values) > 8 else "")
            return f"{words_for(name)} is {'none' if negated else 'one'} of {some}{_or_missing(name, negated)}"
        case Contains(name, value, negated):
            verb = "does not contain" if negated else "contains"
            return f"{words_for(name)} {verb} {value_words(value)}{_or_missing(name, negated)}"
        case Matches(pattern, negated, name):
            return (
                f"{words_for(name)} {'does not match' if negated else 'matches'} the expression {value_words(pattern)}"
            )
    raise TypeError(where)  # there is no other


def describe_rank(rank: Rank) -> list[str]:
    """Describe how records are scored: one line, and one for each knn that is part of arithmetic."""
    if isinstance(rank, Knn):
        return [f"Score: {describe_knn(rank)}; lower is better."]
    terms = _Terms()
    lines = [f"Score: {terms.formula(rank)}; lower is better."]
    for knn, name in terms.knns.items():
        others = "" if knn.default is None else f", and {knn.default} for others"
        lines.append(f"  {name} is {describe_knn(knn)}{others}.")
    return [*lines, *terms.who()]


def describe_knn(knn: Knn) -> str:
    """Describe the score that a knn gives."""
    match knn.query:
        case str():
            query = f"the text {value_words(knn.query)}"
        case SparseVector(indices):
            query = f"a sparse vector of {len(indices)} values"
        case _:
            query = f"a vector of {len(knn.query)} numbers"
    what = "the place, from 0, by distance" if knn.return_rank else "the distance"
    return f"{what} of {words_for(knn.key)} to {query}, for the {knn.limit:,} nearest"


def describe_groups(group_by: GroupBy) -> str:
    """Describe which records of a group stay."""
    best = group_by.aggregate
    order = "highest" if isinstance(best, MaxK) else "lowest"
    best_by = ", then ".join(words_for(key).removeprefix("the ") for key in best.keys)
    same = _joined([words_for(key) for key in group_by.keys], "and")
    stay = "the one" if best.k == 1 else f"the {best.k:,}"
    return f"Of each group with the same {same}, {stay} with the {order} {best_by}."


def describe_page(limit: Limit) -> str:
    """Describe the page of the results."""
    if not limit.limit:
        return f"All but the first {limit.offset:,}." if limit.offset else "All of them."
    if not limit.offset:
        return "The first." if limit.limit == 1 else f"The first {limit.limit:,}."
    return f"Number {limit.offset + 1:,} to {limit.offset + limit.limit:,}."


def describe_columns(select: Select, ranked: bool) -> str:
    """Describe what comes back of each record."""
    keys = select.keys or ((ID, SCORE) if ranked else (ID,))
    unscored = " There is no score without a rank." if SCORE in keys and not ranked else ""
    return f"Of each: {_joined([words_for(key) for key in keys], 'and')}.{unscored}"


def words_for(key: str) -> str:
    return CALLED.get(key, key)


def value_words(value: object) -> str:
    """Write a value, shortened; a text in quotes."""
    if isinstance(value, bool):
        return "true" if value else "false"
    words = repr(value) if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else str(value)
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]} ..."


@dataclass
class _Terms:
    """The knns of a formula with the letters that stand for them, and its fields."""

    knns: dict[Knn, str] = field(default_factory=dict)
    fields: list[FieldTerm] = field(default_factory=list)

    def formula(self, rank: Rank, inside: bool = False) -> str:
        """Write a rank as a person writes arithmetic. inside: put brackets around it if it has several parts."""
        match rank:
            case Val(value):
                return str(value) if value >= 0 or not inside else f"({value})"
            case Knn():
                number = len(self.knns)
                return self.knns.setdefault(rank, chr(ord("A") + number) if number < 26 else f"A{number}")
            case FieldTerm(key, default):
                self.fields.append(rank)
                return key if default is None else f"({key}, or {default} where there is none)"
            case ranks.Applied("$abs", part):
                return f"|{self.formula(part)}|"
            case ranks.Applied(operator, part):
                return f"{'exp' if operator == '$exp' else 'ln'}({self.formula(part)})"
            case Combined("$max" | "$min" as operator, parts):
                listed = ", ".join(self.formula(part) for part in parts)
                return f"{'the larger of' if operator == '$max' else 'the smaller of'} ({listed})"
            case Combined(operator, parts):
                words = (" + " if operator == "$sum" else " * ").join(self.formula(part, inside=True) for part in parts)
            case ranks.Difference(left, right) | ranks.Ratio(left, right):
                sign = "-" if isinstance(rank, ranks.Difference) else "/"
                words = f"{self.formula(left, inside=True)} {sign} {self.formula(right, inside=True)}"
            case _:
                raise TypeError(rank)  # there is no other
        words = f"-{words.removeprefix('(-1) * ')}" if words.startswith("(-1) * ") else words
        return f"({words})" if inside else words

    def who(self) -> list[str]:
        """Describe which records have a score, if more than one term decides it."""
        parts = [(f"{name} finds", knn.default) for knn, name in self.knns.items()]
        parts += [(f"have a number in {term.key}", term.default) for term in dict.fromkeys(self.fields)]
        if not parts:
            return ["  Numbers alone score no record, so nothing is found."]
        if len(parts) == 1:
            return []
        needed = [words for words, default in parts if default is None]
        words = " and that ".join(needed) if needed else " or that ".join(words for words, _ in parts)
        return [f"  Only records that {words} are scored."]


def _or_missing(name: str, negated: bool) -> str:
    """Note that a negated describe_condition also matches records without the field."""
    return " (or is missing)" if negated and name not in (ID, DOCUMENT) else ""


def _joined(words: Sequence[str], last: str) -> str:
    return f" {last} ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} {last} {words[-1]}"
