"""What a search says in plain English."""

import pytest
from hypothesis import given

from rolloutlab.errors import InputError
from rolloutlab.search import F, FieldTerm, GroupBy, Knn, Limit, MaxK, MinK, Rrf, Search, Select, SparseVector, Val
from rolloutlab.search.words import explain
from tests.search.mistakes import WRONG
from tests.search.strategies import SEARCHES, dictionaries


def test_a_search_for_everything():
    assert explain(Search()).splitlines() == [
        "All records.",
        "They are not scored: they come in the order in which they were stored.",
        "All of them.",
        "Of each: the id.",
    ]


def test_a_search_of_every_part():
    search = Search(
        (F.reward >= 0.5) & ((F.model == "a") | (F.step > 1000)) & F.tools.not_contains("look"),
        Knn("paris", limit=50, default=2) * 0.5 - FieldTerm("reward", default=0),
        GroupBy(["model", "step"], MaxK(["reward", "#score"], 2)),
        Limit(10, 20),
        Select(["#document", "#score", "reward"]),
    )
    assert explain(search).splitlines() == [
        "Records in which reward is at least 0.5, (model is 'a' or step is above 1,000) and tools does not contain "
        "'look' (or is missing).",
        "Score: (A * 0.5) - (reward, or 0 where there is none); lower is better.",
        "  A is the distance of the embedding to the text 'paris', for the 50 nearest, and 2 for others.",
        "  Only records that A finds or that have a number in reward are scored.",
        "Of each group with the same model and step, the 2 with the highest reward, then score.",
        "Number 21 to 30.",
        "Of each: the text, the score and reward.",
    ]


def test_fused_ranks_are_named_by_letters():
    ranks = [Knn("paris", return_rank=True), Knn("paris", key="bm25", return_rank=True)]
    assert explain(Search(rank=Rrf(ranks), limit=Limit(1))).splitlines()[1:-1] == [
        "Score: -((1.0 / (60 + A)) + (1.0 / (60 + B))); lower is better.",
        "  A is the place, from 0, by distance of the embedding to the text 'paris', for the 16 nearest.",
        "  B is the place, from 0, by distance of bm25 to the text 'paris', for the 16 nearest.",
        "  Only records that A finds and that B finds are scored.",
        "The first.",
    ]


def test_numbers_alone_are_said_to_find_nothing():
    assert "nothing is found" in explain(Search(rank=Val(1) + 2))


@pytest.mark.parametrize(
    ("search", "line"),
    [
        (Search(F.id.is_in(["a", "b"])), "Records in which the id is one of 'a', 'b'."),
        (Search(F.reasoning_text.contains("a")), "Records in which the text of reasoning contains 'a'."),
        (Search(F.step.not_in(range(10))), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more (or is missing)."),
        (Search(F.document.contains("paris")), "Records in which the text contains 'paris'."),
        (Search(F.document.not_regex("a+")), "Records in which the text does not match the expression 'a+'."),
        (Search(F.done != True), "Records in which done is not true (or is missing)."),  # noqa: E712
        (Search(F.model == "a" * 200), "aaaa ..."),
        (Search(rank=Knn([1, 2, 3])), "Score: the distance of the embedding to a vector of 3 numbers"),
        (Search(rank=Knn(SparseVector([1], [2]), key="topics")), "of topics to a sparse vector of 1 values"),
        (Search(rank=abs(Knn("a")).exp().log().max(1).min(2)), "the smaller of (the larger of (ln(exp(|A|)), 1), 2)"),
        (Search(rank=Knn("a"), group_by=GroupBy("model", MinK("#score", 1))), "the one with the lowest score."),
        (Search(limit=Limit(offset=5)), "All but the first 5."),
        (Search(limit=Limit(5)), "The first 5."),
        (Search(select=Select(["#score"])), "There is no score without a rank."),
    ],
)
def test_every_part_has_its_words(search, line):
    assert line in explain(search)


@given(search=SEARCHES)
def test_every_search_has_words(search):
    assert len(explain(search).splitlines()) >= 4


@given(tree=dictionaries())
def test_a_dictionary_has_words(tree):
    assert explain(tree)


def test_what_is_no_search_has_none():
    with pytest.raises(InputError):
        explain(WRONG["a negative limit"][0])
