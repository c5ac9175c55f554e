import re
import signal
import threading

import pytest

from rolloutlab.errors import InputError
from rolloutlab.search.engine.patterns import TimedSearch

TEXTS = [
    "answer: 42\nno: 7",
    "Paris, paris",
    "naïve strasse STRASSE 🦊",
    "\ud800 alone",
    "",
    "aa{e<=1}",
    "éé",
    r"\frac{d}{s}",
    "b{e}",
    "a{}",
]
PATTERNS = [
    r"\d+$", r"(?m)^\w+: \d+$", r"(?i)PARIS", r"(\w)\1", r"(?<=: )7", r"(?<!,) paris", r"\bna\w+e\b", "🦊", r"(?i)ss",

    "\ud800", r"a{e<=1}", r"[[a]", r"^$", r"(?s)42.no", r"(?>a+)b|é++$", r"(a)?(?(1)a|P)",
    r"\\frac{d}{s}", r"a{e}", r"a{,1}a", r"[{e}]<", r"\N{FOX FACE}", r"{", r"a{}",
]  # fmt: skip


ENDLESS = "(?:a|aa)+$"


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
def test_the_same_documents_match_as_by_pythons_own_re(pattern: str) -> None:
    documents = list(enumerate(TEXTS, 10))
    matching = [place for place, text in documents if re.search(pattern, text)]
    assert list(TimedSearch(30)(pattern, documents)) == list(TimedSearch()(pattern, documents)) == matching


BLOWN_UP = [
    "[ab]{3000000}", "a{1000000000}", "(?:(?:ab){1000}){1000}", "(a{400}b{2,400}){200}", "x{100001,}",
    "([)]|[]{9]){99999999}",
]  # fmt: skip
COUNTED = [r"\d{4}-\d{2}-\d{2}", ".{0,200}a.{0,200}b.{0,200}", "(?:[ab]{3}){1,1000}", r"\(a{99999}"]


@pytest.mark.parametrize("pattern", BLOWN_UP)
def test_a_pattern_that_compiling_would_blow_up_is_refused(pattern: str) -> None:
    with pytest.raises(InputError, match="repeats its parts") as caught:
        list(TimedSearch(3)(pattern, [(0, "a")]))
    assert caught.value.hint == r"at most 100,000, as \w{1,100}"


@pytest.mark.parametrize("pattern", COUNTED)
def test_a_pattern_with_counts_of_a_usual_size_is_compiled(pattern: str) -> None:
    texts = ["2026-11-22", "xaxbx", "aba", "(aaa", ""]
    matching = [place for place, text in enumerate(texts) if re.search(pattern, text)]
    assert list(TimedSearch(3)(pattern, enumerate(texts))) == matching


def test_many_documents_are_looked_through_in_parts() -> None:
    documents = [(i, "x" * (1 << 20) + ("." if i % 5 else "!")) for i in range(20)]
    assert list(TimedSearch(60)("x!$", documents)) == [0, 5, 10, 15]


def test_a_pattern_that_would_take_years_is_given_up() -> None:
    with pytest.raises(InputError, match=r"took more than 0\.5 s of processor time") as caught:
        list(TimedSearch(0.5)(ENDLESS, [(0, "a" * 90 + "!")]))
    assert "$contains" in str(caught.value.hint)


def test_the_patterns_of_one_search_have_the_time_together() -> None:
    find = TimedSearch(0.5)
    with pytest.raises(InputError):
        list(find(ENDLESS, [(0, "a" * 90 + "!")]))
    with pytest.raises(InputError, match="of processor time"):
        list(find("b", [(0, "b")]))


def test_other_threads_go_on_while_a_pattern_is_looked_for() -> None:
    turns, ended = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not ended.wait(0.001):
            turns += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        with pytest.raises(InputError, match="of processor time"):
            list(TimedSearch(0.5)(ENDLESS, [(0, "a" * 90 + "!")]))
    finally:
        ended.set()
        thread.join()
    assert turns > 20


def test_a_pattern_without_a_limit_can_be_interrupted() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(TimedSearch()(ENDLESS, [(0, "a" * 90 + "!")]))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_pattern_that_needs_too_much_memory_is_an_error_that_names_it(monkeypatch):
    class Exhausting:
        def search(self, *_, **__):
            raise MemoryError

    monkeypatch.setattr("regex.compile", lambda *_, **__: Exhausting())
    with pytest.raises(InputError, match=r"'a\+' needs too much memory"):
        list(TimedSearch(1.0)("a+", [(0, "aa")]))
