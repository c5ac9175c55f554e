import pytest

from rolloutlab.errors import InputError
from rolloutlab.search.engine.patterns import TimedSearch, found_here

TEXTS = ["answer: 42\nno: 7", "Paris, paris", "naïve strasse STRASSE 🦊", "\ud800 alone", "", "aa{e<=1}", "éé"]
PATTERNS = [
    r"\d+$", r"(?m)^\w+: \d+$", r"(?i)PARIS", r"(\w)\1", r"(?<=: )7", r"(?<!,) paris", r"\bna\w+e\b", "🦊", r"(?i)ss",

    "\ud800", r"a{e<=1}", r"[[a]", r"^$", r"(?s)42.no", r"(?>a+)b|é++$", r"(a)?(?(1)a|P)",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
def test_elsewhere_the_same_is_found_as_here(pattern: str) -> None:
    documents = list(enumerate(TEXTS, 10))
    assert list(TimedSearch(30)(pattern, documents)) == list(found_here(pattern, documents))


def test_many_documents_are_looked_through_in_parts() -> None:
    documents = [(i, "x" * (1 << 20) + ("." if i % 5 else "!")) for i in range(20)]
    assert list(TimedSearch(60)("x!$", documents)) == [0, 5, 10, 15]


def test_a_pattern_that_would_take_years_is_given_up() -> None:
    with pytest.raises(InputError, match=r"took more than 0\.5 s and was given up") as caught:
        list(TimedSearch(0.5)("(a+)+$", [(0, "a" * 60 + "!")]))
    assert "$contains" in str(caught.value.hint)


def test_the_patterns_of_one_search_have_the_time_together() -> None:
    find = TimedSearch(0.5)
    with pytest.raises(InputError):
        list(find("(a+)+$", [(0, "a" * 60 + "!")]))
    with pytest.raises(InputError, match="given up"):
        list(find("b", [(0, "b")]))
