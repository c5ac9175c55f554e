"""Conditions and ranks written as text, and Python's own notation of them."""

import keyword

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rolloutlab.search
from rolloutlab.errors import InputError
from rolloutlab.search import F, FieldTerm, Knn, Rrf, SparseVector, Val
from rolloutlab.search.expression import rank_of, where_of
from rolloutlab.search.where import All, AnyOf, Compare, Contains, opposite
from tests.search.strategies import LEAVES, RANKS, SEARCHES, WHERES

NAMES = vars(rolloutlab.search)


def evaluated(value):
    """What Python makes of a repr."""
    return eval(repr(value), dict(NAMES))


@given(search=SEARCHES)
def test_python_reads_what_repr_writes(search):
    assert evaluated(search) == search
    assert repr(evaluated(search)) == repr(search)


@given(where=WHERES)
def test_text_is_read_as_repr_writes_conditions(where):
    assert where_of(repr(where)) == where


@given(rank=RANKS)
def test_text_is_read_as_repr_writes_ranks(rank):
    assert rank_of(repr(rank)) == rank


@pytest.mark.parametrize("name", [*keyword.kwlist, "id", "document", "__init__", "_name", "ﬁ", "a.b", "F"])
def test_a_field_of_any_name_can_be_written(name):
    assert evaluated(Compare(name, "$eq", 1)) == Compare(name, "$eq", 1)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("reward < 0.5 and model == 'lab/practice'", (F.reward < 0.5) & (F.model == "lab/practice")),
        ("a == 1 or b == 2 and c == 3", (F.a == 1) | ((F.b == 2) & (F.c == 3))),
        ("(a == 1) & (b == 2) | (c == 3)", ((F.a == 1) & (F.b == 2)) | (F.c == 3)),
        ("0 < reward < 1", (F.reward > 0) & (F.reward < 1)),
        ("1 >= reward", F.reward <= 1),
        ("'a' != model", F.model != "a"),
        ("step == -3", F.step == -3),
        ("correct == True and done == false", (F.correct == True) & (F.done == False)),  # noqa: E712
        ("model in ('a', 'b')", F.model.is_in(["a", "b"])),
        ("step not in [1, 2.5]", F.step.not_in([1, 2.5])),
        ("model in {'a'}", F.model.is_in(["a"])),
        ("'paris' in document", F.document.contains("paris")),
        ("'paris' not in document", F.document.not_contains("paris")),
        ("'look' in tools", F.tools.contains("look")),
        ("document.regex('[0-9]+')", F.document.regex("[0-9]+")),
        (r"regex(document, '\d+')", F.document.regex(r"\d+")),
        (r"document.not_regex(r'\bparis')", F.document.not_regex(r"\bparis")),
        ("tools.contains('look')", F.tools.contains("look")),
        ("id == 'a'", F.id == "a"),
        ("`id` == 'a'", F["id"] == "a"),
        ("F.id == 'a' and F['id'] == 'b'", (F.id == "a") & (F["id"] == "b")),
        ("reward.exact > 0", F["reward.exact"] > 0),
        ("`reward.exact match` > 0 and model == 'a'", (F["reward.exact match"] > 0) & (F.model == "a")),
        ('F["reward.exact match"] > 0', F["reward.exact match"] > 0),
        ("model == 'a `b` c'", F.model == "a `b` c"),
        ("`true` == true", F["true"] == True),  # noqa: E712
        ("  reward > 0\n  and step == 1\n", (F.reward > 0) & (F.step == 1)),
        ("not model == 'a'", F.model != "a"),
        ("not (a == 1 and b != 2)", (F.a != 1) | (F.b == 2)),
        ("not ('x' in tools or model in ['a'])", F.tools.not_contains("x") & F.model.not_in(["a"])),
        ("~(a == 1) and not not b == 2", (F.a != 1) & (F.b == 2)),
        ("not document.regex('a')", F.document.not_regex("a")),
    ],
)
def test_text_says_conditions(text, where):
    assert where_of(text) == where
    assert repr(where_of(text)) == repr(where)


@pytest.mark.parametrize(
    ("text", "why", "at", "hint"),
    [
        ("reward = 0.5", "syntax error", 7, "reward == 0.5"),
        ("reward > 0 AND model == 'a AND b'", "syntax error", 11, "reward > 0 and model == 'a AND b'"),
        ("a == 1 && b == 2", "syntax error", 8, "a == 1 and b == 2"),
        ("step == 1 and reward > 'a'", "only numbers have an order", 23, "reward > 0.5"),
        ("model == lab", "two fields", 9, "model == 'lab'"),
        ("reward and step == 1", "by itself", 0, "reward == True"),
        ("1 < 2", "two values", 0, "reward > 0.5 and model == 'lab/practice'"),
        ("model in 'lab'", "one value, not several", 9, "model in ('lab',)"),
        ("model not in 'lab'", "one value, not several", 13, "model not in ('lab',)"),
        ("model in []", "at least one", 9, "model.is_in(['a', 'b'])"),
        ("x in [1, 'a']", "several types", 5, "(x.is_in([1])) | (x.is_in(['a']))"),
        ("reward is None", "is does not compare", 0, "reward == 1, or reward != 1"),
        ("reward == None", "null is not a value", 10, "reward == 0.5"),
        ("document == 'paris'", "what it contains", 12, "document.contains('paris')"),
        ("a == 1 & b == 2", "neither a field", 5, "and, or; or brackets around both sides of & and |"),
        ("model.startswith('a')", "startswith", 0, ""),
        ("document.regx('a')", "regx", 0, "document.regex('paris')"),
        ("regex(document, '(')", "not a regular expression", 16, r"document.regex('\\(')"),
        ("model.regex('a')", "#document and reasoning_text only", 12, "document.regex('a')"),
        ("regex(document)", "and one value", 0, "document.regex('paris')"),
        ("model.is_in('a')", "and a list", 0, "model.is_in(['a', 'b'])"),
        ("id == 3", "an id is a text", 6, "id == '3'"),
        ("not reward > 0.5", "also true of records without reward", 0, "reward <= 0.5"),
        ("not 0 < reward < 1", "also true of records without reward", 0, "reward <= 0"),
        ("`` == 1", "no name", 0, "`reward.exact match` > 0"),
        ("reward + 1 > 2", "neither a field", 0, "reward > 0.5 and model == 'lab/practice'"),
        ("F[0] == 1", "the name of a field", 0, 'F["reward.exact match"]'),
        ("#score", "syntax error", 0, "reward > 0.5 and model == 'lab/practice'"),
        ("F['#score'] > 1", "not a field here", 0, ""),
        ("`é` == 1 and `ü ü` > 'a'", "only numbers have an order", 21, "F['ü ü'] > 0.5"),
        ("lambda: 1", "not a condition", 0, "reward > 0.5 and model == 'lab/practice'"),
        ("__import__('os').remove('x') == 1", "neither a field", 0, "reward > 0.5 and model == 'lab/practice'"),
        ("[x for x in y] == 1", "neither a field", 0, "reward > 0.5 and model == 'lab/practice'"),
    ],
)
def test_an_error_points_at_its_place(text, why, at, hint):
    with pytest.raises(InputError) as refused:
        where_of(text)
    message, shown, caret = refused.value.message.split("\n")
    assert why in message
    assert shown == f"  {text}"
    assert caret == f"  {' ' * at}^"
    assert refused.value.hint == hint or (not hint and refused.value.hint)


def test_what_is_quoted_is_left_as_it_is():
    where = where_of("\tmodel\n ==\xa0'a\tb\xa0c' and\t`d\te` == \"'x'  y\"")
    assert where == (F.model == "a\tb\xa0c") & (F["d\te"] == "'x'  y")


def test_a_name_is_the_one_that_was_written_and_no_other_form_of_it():
    assert where_of("ﬁ == 1 and ﬁ.ﬁ == 2") == (F["ﬁ"] == 1) & (F["ﬁ.ﬁ"] == 2)


def test_a_long_text_is_shown_around_the_place():
    text = " and ".join(["model == 'abcdefghij'"] * 20 + ["reward > 'x'"] + ["model == 'abcdefghij'"] * 20)
    with pytest.raises(InputError) as refused:
        where_of(text)
    _, shown, caret = refused.value.message.split("\n")
    assert len(shown) == 102
    assert shown[caret.index("^") :].startswith("'x'")


@pytest.mark.parametrize("text", ["", "  ", "a\0b", "(" * 5000, "not " * 5000 + "a == 1", "a == " + "-" * 5000 + "1"])
def test_text_that_is_nothing_is_an_error(text):
    with pytest.raises(InputError) as refused:
        where_of(text)
    assert refused.value.hint
    with pytest.raises(InputError):
        rank_of(text.replace("not ", "-").replace("a == ", ""))


PIECES = """
    reward F ` 'paris' " 0.5 - ( ) [ ] , . = == < in not and or & | ~ * / knn rrf field exp regex document é 1e999
    lambda : \\ True None limit ** f'{x}' b'x' 1j ... is sparse max abs val =[ 3 '[[a]' **{}
"""
WORDS = st.sampled_from([*PIECES.split(), "`a b`", "\n", "(1, 'a')", "knn('a',"])


@given(words=st.lists(WORDS | st.text(max_size=2), max_size=8), between=st.sampled_from(["", " "]))
def test_any_text_at_all_is_read_or_refused(words, between):
    for read in (where_of, rank_of):
        try:
            assert repr(read(between.join(words)))
        except InputError as refused:
            assert refused.hint  # noqa: PT017 - either is right


def test_conditions_nested_without_end_are_an_error():
    text = "a == 1"
    for _ in range(60):
        text = f"(b == 1 or {text}) and c == 1"
    with pytest.raises(InputError, match="nested"):
        where_of(text)


@pytest.mark.parametrize(
    ("text", "at"), [("modle == 'a'", 0), ("step == 1 and 'x' in modle", 21), ("`modle` == 1", 1), ("F.modle == 1", 0)]
)
def test_a_field_that_no_record_has_names_the_nearest(text, at):
    with pytest.raises(InputError, match="no record has a field 'modle'") as refused:
        where_of(text, known=["model", "step", "tools"])
    assert refused.value.hint == "model"
    assert refused.value.message.endswith(f"\n  {' ' * at}^")
    where_of(text.replace("modle", "model"), known=["model", "step"])
    where_of("id == 'a' and 'x' in document", known=[])


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("knn('text', limit=50) * 0.5 - field('reward')", Knn("text", limit=50) * 0.5 - FieldTerm("reward")),
        ("knn('text', 'bm25', 50)", Knn("text", key="bm25", limit=50)),
        ("knn('a', default=2, return_rank=True)", Knn("a", default=2, return_rank=True)),
        ("knn([0.1, -0.2])", Knn([0.1, -0.2])),
        ("knn(sparse([1, 2], [0.5, 1]), key='topics')", Knn(SparseVector([1, 2], [0.5, 1.0]), key="topics")),
        ("1 - knn('a')", 1 - Knn("a")),
        ("1/2 * knn('a') / 3 + 1", Val(0.5) * Knn("a") / 3 + 1),
        ("-knn('a')", -Knn("a")),
        ("exp(knn('a')) + log(2)", Knn("a").exp() + Val(2).log()),
        ("abs(knn('a') - 1).exp()", abs(Knn("a") - 1).exp()),
        ("max(knn('a'), 0.5, reward)", Knn("a").max(0.5).max(FieldTerm("reward"))),
        ("knn('a').min(0.5)", Knn("a").min(0.5)),
        ("field('reward', default=0)", FieldTerm("reward", default=0)),
        ("`reward.exact match` - reward.brief", FieldTerm("reward.exact match") - FieldTerm("reward.brief")),
        ("val(3)", Val(3)),
        ("3", Val(3)),
        (
            "rrf([knn('a', return_rank=True), knn('b', return_rank=True)], k=30, weights=[2, 1], normalize=True)",
            Rrf([Knn("a", return_rank=True), Knn("b", return_rank=True)], 30, [2, 1], True),
        ),
    ],
)
def test_text_says_ranks(text, rank):
    assert rank_of(text) == rank
    assert repr(rank_of(text)) == repr(rank)


@pytest.mark.parametrize(
    ("text", "why", "at", "hint"),
    [
        ("'paris'", "not a rank", 0, "knn('paris')"),
        ("1 - kn('a')", "kn is not a function of ranks", 4, "knn('paris', limit=50)"),
        ("sqrt(knn('a'))", "sqrt is not a function of ranks", 0, ""),
        ("knn()", "no query", 0, "knn('paris', limit=50)"),
        ("knn('a', limt=3)", "no 'limt'", 9, "limit="),
        ("knn('a', 'b', key='c')", "twice", 14, "knn('paris', limit=50)"),
        ("knn('a', limit=0)", "at least 1", 0, "16"),
        ("knn('a', **{})", "no None", 9, "knn('paris', limit=50)"),
        ("knn(paris)", "not a value", 4, "'paris'"),
        ("knn('')", "non-empty", 0, '"text"'),
        ("knn(embed('a'))", "a query is", 4, "knn(sparse([3, 17], [0.5, 1.5]), key='topics')"),
        ("1 / 0", "division by zero", 0, "knn('paris') - field('reward')"),
        ("knn('a') ** 2", "cannot be part of a rank", 0, "knn('paris') - field('reward')"),
        ("knn('a') and 1", "cannot be part of a rank", 0, "knn('paris') - field('reward')"),
        ("True", "not a rank", 0, "knn('paris') - field('reward')"),
        ("1e300", "finite", 0, "0.5"),
        ("exp()", "one rank", 0, "exp(knn('paris'))"),
        ("max(1)", "two ranks", 0, "max(knn('paris'), 0.5)"),
        ("rrf(knn('a'))", "a list of ranks", 4, ""),
        ("rrf([knn('a', return_rank=True)], weights=[1, 2])", "cannot be fused", 0, ""),
        ("rrf([kn('a')])", "kn is not a function", 5, "knn('paris', limit=50)"),
        ("rrf([knn('a')], k='a')", "", 0, ""),
        ("field('rewrad')", "no record has a field", 6, "reward"),
        ("1 - rewrad", "no record has a field", 4, "reward"),
        ("field('#score')", "not a field here", 6, "the name of a metadata field"),
        ("document", "not a field here", 0, "the name of a metadata field"),
    ],
)
def test_an_error_in_a_rank_points_at_its_place(text, why, at, hint):
    with pytest.raises(InputError) as refused:
        rank_of(text, known=["reward", "step"])
    message, _, caret = refused.value.message.split("\n")
    assert why in message
    assert caret == f"  {' ' * at}^"
    assert refused.value.hint == hint or (not hint and refused.value.hint)


@given(where=LEAVES)
def test_not_not_is_nothing(where):
    if isinstance(where, Compare) and where.operator not in ("$eq", "$ne"):
        with pytest.raises(InputError, match="also true of records without"):
            opposite(where)
    else:
        assert ~~where == where


def test_not_of_all_is_any_of_nots():
    assert ~((F.a == 1) & (F.b != 2)) == (F.a != 1) | (F.b == 2)


@pytest.mark.parametrize(
    "write",
    [
        lambda: 0 < F.reward < 1,
        lambda: (F.a == 1) and (F.b == 2),
        lambda: not F.document.contains("a"),
        lambda: F.a in (1, 2),
        lambda: "x" in F.tools,
        lambda: max(Knn("a"), Knn("b")) if Knn("a") else None,
        lambda: (F.a == 1) & True,
        lambda: F.a > "b",
        lambda: F.a == None,  # noqa: E711
        lambda: F.model.is_in("lab"),
        lambda: F.model.is_in([]),
        lambda: F.model.is_in(3),
        lambda: F.document == "paris",
        lambda: F["#nothing"] == 1,
        lambda: Knn("a") + "b",
        lambda: Knn("a") + True,
        lambda: Knn({"a": 1}),
        lambda: Knn(3),
        lambda: Knn(["a"]),
        lambda: Rrf([]),
        lambda: Rrf([Knn("a")], weights=[-1]),
        lambda: All((F.a == 1,)),
        lambda: AnyOf(()),
    ],
)
def test_what_python_would_silently_get_wrong_is_an_error(write):
    with pytest.raises(InputError) as refused:
        write()
    assert refused.value.hint


def test_a_sum_is_added_from_the_left_and_another_grouping_is_another_sum():
    a, b, c = Knn("a"), Knn("b"), Knn("c")
    assert (a + b) + c == a + b + c
    assert a + (b + c) != a + b + c
    assert repr(a + (b + c)) == "(Knn('a') + (Knn('b') + Knn('c')))"


def test_contains_of_true_is_not_contains_of_1():
    assert Contains("a", True) != Contains("a", 1)
