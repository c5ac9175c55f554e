"""Two checkpoints compared: paired by prompt and seed, with an interval that can be trusted."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import NewGroup, Score
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.comparison import Comparison, Pair, Side, compare_sides, component_bounds, pairs_of
from rolloutlab.trajectories.intervals import interval, student_interval
from tests.labs import completion, lab_with, without_logprobs

BETTER = Pair("0", "Capital of France?", (0.0, 0.5), (1.0, 0.5))
WORSE = Pair("1", "Capital of Peru?", (1.0, 1.0), (0.5, 0.0))
SEEN = replace(BETTER, trained=True)
SAME = Pair("2", "Capital of Chad?", (0.5,), (0.5,))


def compare(*pairs: Pair) -> Comparison:
    return Comparison("capitals", "lab/practice@0", "lab/practice@3", pairs)


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.close()


def collect(lab: Lab, name: str, *groups: list[float | None], prompts: list[str] | None = None) -> Collection:
    asked = prompts or [f"Question {i}?" for i in range(len(groups))]
    prompts = [NewGroup([UserMessage(role="user", content=text)], {}) for text in asked]
    answers = [["x"] * len(rewards) for rewards in groups]
    options = {"name": name, "prompts": prompts, "rewards": chain(*groups), "make": without_logprobs, "model": "m"}
    return Collection(lab, lab_with(lab, *answers, **options))


def test_the_difference_is_the_mean_over_prompts_of_the_difference_of_means():
    result = compare(BETTER, WORSE, SAME)
    assert result.mean_before == pytest.approx((0.25 + 1.0 + 0.5) / 3)
    assert result.mean_after == pytest.approx((0.75 + 0.25 + 0.5) / 3)
    assert result.difference == pytest.approx((0.5 - 0.75 + 0.0) / 3)


def test_the_table_has_a_row_per_prompt_the_largest_loss_first():
    frame = compare(BETTER, WORSE, SAME).to_frame()
    assert list(frame.index) == ["1", "2", "0"]
    assert list(frame.columns) == ["prompt", "before", "after", "difference", "n", "trained"]
    assert frame.loc["0"].to_list() == ["Capital of France?", 0.25, 0.75, 0.5, 2, False]


def test_only_what_has_a_reward_on_both_sides_is_paired_by_its_place(lab):
    before = collect(lab, "a", [0.0, None, 1.0], [None, None], [0.5])
    after = collect(lab, "b", [1.0, 1.0, None], [1.0, 1.0], [0.25])
    assert pairs_of(before, after) == [
        Pair("0", "Question 0?", (0.0,), (1.0,)),
        Pair("2", "Question 2?", (0.5,), (0.25,)),
    ]


def test_groups_with_the_same_prompt_are_one_pair(lab):
    prompts = ["Which?", "Who?", "Which?"]
    before = collect(lab, "a", [0.0, 1.0], [0.5], [1.0], prompts=prompts)
    after = collect(lab, "b", [1.0, 1.0], [0.5], [0.0], prompts=prompts)
    assert pairs_of(before, after) == [
        Pair("0", "Which?", (0.0, 1.0, 1.0), (1.0, 1.0, 0.0), rows=2),
        Pair("1", "Who?", (0.5,), (0.5,)),
    ]
    shown = Comparison("capitals", "a", "b", pairs_of(before, after)).words()[0]
    assert shown.endswith("on 2 prompts (3 rows; equal prompts count once)")


def test_the_interval_holds_with_each_prompt_twice_and_would_not_if_each_row_counted():
    """Prompts differ in what training changed on them; both rows of a prompt share that."""
    random, times, prompts = np.random.default_rng(4), 400, 16
    asked = [[UserMessage(role="user", content=f"Question {i % prompts}?")] for i in range(2 * prompts)]
    missed = {"prompts": 0, "rows": 0}
    for _ in range(times):
        chances = np.tile(np.clip(0.4 + random.normal(0.1, 0.25, prompts), 0, 1), 2)
        before, after = (_sampled(asked, random.binomial(32, p) / 32) for p in (np.full(2 * prompts, 0.4), chances))
        pooled = pairs_of(before, after)
        rows = [Pair("0", "x", (old,), (new,)) for old, new in zip(before.rewards, after.rewards, strict=True)]
        for counted, pairs in (("prompts", pooled), ("rows", rows)):
            low, high = compare(*pairs).interval()
            missed[counted] += not low <= _TRUE_CHANGE <= high
    most = 0.05 + 3.5 * math.sqrt(0.05 * 0.95 / times)
    assert missed["prompts"] / times <= most < missed["rows"] / times


_TRUE_CHANGE = float(np.clip(0.4 + np.random.default_rng(0).normal(0.1, 0.25, 1_000_000), 0, 1).mean()) - 0.4


def _sampled(asked, rewards):
    """A collection as `pairs_of` reads it: a group per row, with one trajectory."""
    groups = [
        SimpleNamespace(
            name=f"c/{i}",
            prompt=prompt,
            row={},
            script=((),),
            trajectories=[SimpleNamespace(name=f"c/{i}/0", reward=float(reward), prompt=prompt[0].content)],
        )
        for i, (prompt, reward) in enumerate(zip(asked, rewards, strict=True))
    ]
    stored = SimpleNamespace(plan={})
    return SimpleNamespace(groups=groups, stored=stored, rewards=[float(reward) for reward in rewards])


def test_without_any_pair_there_is_nothing_to_compare():
    with pytest.raises(InputError, match="no prompt of capitals has rewards on both sides"):
        compare()


def test_the_interval_of_one_prompt_is_over_its_trajectories():
    low, high = compare(Pair("0", "x", (0.0,) * 16, (1.0, 0.0) * 8)).interval()
    assert 0.0 <= low < 0.5 < high <= 1.0


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([BETTER] * 16, "better"),
        ([WORSE] * 16, "worse"),
        ([BETTER, WORSE] * 8, "no clear difference -> more prompts, or a larger -n"),
        ([BETTER] * 15, "no verdict from fewer than 16 prompts -> --over more rows"),
        ([SEEN] * 16, "no verdict, all of these prompts were trained on in between -> --over ROWS that were not"),
        (
            [SEEN] * 3 + [BETTER] * 16,
            "no verdict, 3 of these prompts were trained on in between -> --over ROWS that were not",
        ),
    ],
)
def test_it_says_in_words_what_came_of_it(pairs, message):
    assert compare(*pairs).words()[1].endswith(f": {message}")


def test_one_trajectory_bounds_nothing():
    line = compare(Pair("0", "x", (0.0,), (1.0,))).words()[1]
    assert "(too few for an interval): no verdict" in line


def rewards(before: float, *afters: float) -> list[Pair]:
    return [Pair(str(i), "x", (before,), (after,)) for i, after in enumerate(afters)]


def test_equal_differences_are_said_to_be_and_leave_some_doubt():
    nothing = compare(*rewards(0.5, *[0.5] * 16))
    low, high = nothing.interval()
    assert low < -0.2 < 0 < 0.2 < high
    assert ", all differences equal, for rewards within 0 and 1, as all of these are): no clear" in nothing.words()[1]
    all_solved = compare(*rewards(0.0, *[1.0] * 16))
    assert 0.4 < all_solved.interval()[0] < all_solved.interval()[1] == 1.0
    assert all_solved.words()[1].endswith(": better")


def test_equal_differences_of_rewards_without_bounds_are_no_verdict():
    longer = compare(*rewards(10.0, *[12.0] * 16))
    assert longer.interval() == (-math.inf, math.inf)
    assert longer.words()[1].endswith("(all differences equal)" + UNBOUNDED)


def test_rare_successes_have_the_interval_of_bounded_rewards():
    rare = compare(*rewards(0.0, *[1.0] * 3, *[0.0] * 29))
    (low, high), (lower, higher) = student_interval([1.0] * 3 + [0.0] * 29), rare.interval()
    assert lower < low < 3 / 32 < high < higher
    assert ", for rewards within 0 and 1, as all of these are): no clear difference" in rare.words()[1]


def test_a_better_result_gets_no_weaker_verdict_in_whatever_order_its_rows_come():
    def line(better: int, worse: int, prompts: int, seed: int = 0) -> str:
        ends = [(0.0, 1.0)] * better + [(1.0, 0.0)] * worse + [(0.0, 0.0)] * (prompts - better - worse)
        order = np.random.default_rng(seed).permutation(prompts)
        return compare(*[Pair(str(i), "x", (ends[i][0],), (ends[i][1],)) for i in order]).words()[1]

    lines = {line(7, 0, 50, seed) for seed in range(20)}
    assert len(lines) == 1
    assert lines.pop().endswith(
        "(95% interval +0.011 to +0.267, for rewards within 0 and 1, as all of these are): better"
    )
    assert ": no clear difference" in line(7, 1, 50)
    assert line(9, 1, 50).endswith(": better")
    assert line(7, 0, 1000).endswith(": better")
    assert line(0, 7, 1000).endswith(": worse")


def test_a_bound_that_is_close_to_0_is_shown_on_its_side_of_it():
    line = compare(*rewards(0.0, *[1.0] * 6, *[0.0] * 994)).words()[1]
    assert "95% interval +0.0002 to" in line
    assert line.endswith(": better")


@pytest.mark.parametrize("anytime", [False, True])
def test_without_bounds_the_assumption_stands_beside_the_interval_and_there_is_no_verdict(anytime):
    changes = list(np.random.default_rng(1).normal(9.0, 2.0, 64))
    unbounded = Comparison("capitals", "a", "b", rewards(5.0, *changes), anytime=anytime)
    assert unbounded.words()[1].endswith(", which assumes roughly normal differences)" + UNBOUNDED)
    bounded = Comparison("capitals", "a", "b", rewards(5.0, *changes), anytime=anytime, bounds=(0.0, 20.0))
    assert bounded.words()[1].endswith(": better")


UNBOUNDED = ": no verdict, rewards have no known bounds -> --bounds LEAST LARGEST, which a reward can be"


# The share of wrong verdicts, and of intervals beside a verdict that miss the truth, in samples of 16 and 64 prompts


def bernoulli(random, shape, mean):
    return (random.random(shape) < mean) * 1.0


def beta(random, shape, mean):
    return random.beta(4 * mean, 4 * (1 - mean), shape)


def tied(random, shape, mean):
    """Mostly a half, else nothing or all."""
    return np.where(random.random(shape) < 0.8, 0.5, bernoulli(random, shape, 0.5 + (mean - 0.5) / 0.2))


def lognormal(random, shape, mean):
    return random.lognormal(math.log(mean) - 0.5, 1.0, shape)


def heavier(random, shape, mean):
    return random.lognormal(math.log(mean) - 1.125, 1.5, shape)


def rarely_large(random, shape, mean):
    """Success or failure, and once in a hundred 20."""
    return np.where(random.random(shape) < 0.01, 20.0, bernoulli(random, shape, (mean - 0.2) / 0.99))


Draw = Callable[[np.random.Generator, tuple[int, ...], float], np.ndarray]
TIMES = 400
CASES: dict[str, tuple[Draw, Draw, float, tuple[float, float] | None]] = {
    "bernoulli": (bernoulli, bernoulli, 0.5, None),
    "bernoulli, better": (bernoulli, bernoulli, 0.7, None),
    "beta": (beta, beta, 0.5, None),
    "beta, better": (beta, beta, 0.6, None),
    "beta for bernoulli": (bernoulli, beta, 0.5, None),
    "ties": (tied, tied, 0.5, None),
    "ties, better": (tied, tied, 0.55, None),
    "lognormal": (lognormal, lognormal, 0.5, None),
    "lognormal for beta": (beta, lognormal, 0.5, None),
    "heavier for lognormal": (lognormal, heavier, 0.5, None),
    "heavier lognormal, better": (lognormal, heavier, 0.9, None),
    "rarely large for bernoulli": (bernoulli, rarely_large, 0.5, (0.0, 20.0)),
    "rarely large, better": (bernoulli, rarely_large, 0.7, (0.0, 20.0)),
    "rarely large for the same": (rarely_large, rarely_large, 0.5, (0.0, 20.0)),
}


@pytest.mark.parametrize(
    ("case", "prompts", "completions"),
    [*((case, 16, 4) for case in CASES), *((case, 64, 1) for case in CASES if "better" in case)],
)
def test_no_verdict_is_wrong_more_often_than_it_says(case, prompts, completions):
    before, after, mean, bounds = CASES[case]
    random, shape = np.random.default_rng(prompts), (TIMES, prompts, completions)
    old, new = before(random, shape, 0.5), after(random, shape, mean)
    judged: dict[Any, list[Comparison]] = {}
    for olds, news in zip(old.tolist(), new.tolist(), strict=True):
        pairs = [Pair(str(i), "x", tuple(a), tuple(b)) for i, (a, b) in enumerate(zip(olds, news, strict=True))]
        result = Comparison("c", "a", "b", pairs, bounds=bounds)
        judged.setdefault(result.bounds, []).append(result)
    for unbounded in judged.pop(None, [])[:5]:
        assert "no verdict" in unbounded.words()[1]
    wrong = missed = 0
    for (least, largest), results in judged.items():
        # all at once, as `words` has them one by one
        low, high = interval([[pair.difference for pair in each.pairs] for each in results], 0.95, largest - least)
        for each, lowest, highest in zip(results[:5], low, high, strict=False):
            says = each.words()[1].rpartition("): ")[2].partition(" ->")[0]
            assert says == ("better" if lowest > 0 else "worse" if highest < 0 else "no clear difference")
        wrong += np.sum((low > 0) & (mean <= 0.5) | (high < 0) & (mean >= 0.5))
        missed += np.sum((low > mean - 0.5 + 1e-9) | (high < mean - 0.5 - 1e-9))
    most = 0.05 + 3.5 * math.sqrt(0.05 * 0.95 / TIMES)
    assert wrong / TIMES <= most
    assert missed / TIMES <= most
    verdicts = sum(map(len, judged.values()))
    is_bounded = bounds is not None or "lognormal" not in case
    assert verdicts >= TIMES * 0.99 if is_bounded else verdicts <= TIMES * 0.01


# Bounds of rewards that are sums of components


def scored(reward, **components):
    return SimpleNamespace(reward=reward, components=components)


@pytest.mark.parametrize(
    ("trajectories", "weights", "bounds"),
    [
        ([scored(1.5, right=1.0, short=0.5)], None, (0.0, 2.0)),
        ([scored(1.1, right=1.0, short=0.5)], {"short": 0.2}, (0.0, 1.2)),
        ([scored(10.0, right=1.0)], {"right": 10.0}, (0.0, 10.0)),
        ([scored(0.5, right=1.0, long=0.25)], {"long": -2.0}, (-2.0, 1.0)),
        ([scored(0.5, right=1.0, format=-0.5)], None, (-1.0, 2.0)),
        ([scored(1.0, right=1.0), scored(1.0, right=0.0, other=1.0)], None, (0.0, 2.0)),
        ([scored(1.0, right=1.0), scored(None)], None, (0.0, 1.0)),
        ([scored(6.0, right=1.0, letters=5.0)], None, None),  # a component without usual bounds
        ([scored(1.0, right=1.0, letters=0.5)], None, None),  # one that does not count
        ([scored(0.7)], None, None),
        ([], None, None),
    ],
)
def test_the_bounds_of_components_bound_their_weighted_sum(trajectories, weights, bounds):
    assert component_bounds(trajectories, weights) == bounds


def test_a_sum_of_components_gets_a_verdict_for_their_bounds():
    pairs = rewards(0.5, *[2.0, 1.5] * 16)
    line = Comparison("capitals", "a", "b", pairs, of_components=(0.0, 2.0)).words()[1]
    assert line.endswith(": better")
    few = Comparison("capitals", "a", "b", rewards(0.0, *[1.5] * 16), of_components=(0.0, 2.0)).words()[1]
    assert ", for rewards within 0 and 2, as their components allow): better" in few


def test_rewards_from_minus_1_to_1_have_usual_bounds():
    line = compare(*rewards(-1.0, *[1.0] * 16)).words()[1]
    assert ", for rewards within -1 and 1, as all of these are): better" in line


@pytest.mark.parametrize("bounds", [(1.0, 0.0), (0.0, math.inf), (0.5, 0.5)])
def test_bounds_that_are_none_are_refused(bounds):
    with pytest.raises(InputError, match="are not bounds"):
        Comparison("capitals", "a", "b", [BETTER], bounds=bounds)


def test_a_reward_outside_the_bounds_is_refused():
    with pytest.raises(InputError, match=r"the reward 1 is outside the bounds 0 and 0\.5") as refused:
        Comparison("capitals", "a", "b", [BETTER], bounds=(0.0, 0.5))
    assert refused.value.hint.startswith("--bounds 0 1")


@pytest.mark.parametrize(("size", "clip"), [(32, (-9, 9)), (64, (0, 1))])
def test_an_interval_for_many_looks_is_wider_and_is_called_so(size, clip):
    pairs = rewards(0.0, *np.random.default_rng(1).normal(0.5, 0.5, size).clip(*clip))
    once, always = (Comparison("capitals", "a", "b", pairs, anytime=anytime) for anytime in (False, True))
    assert always.interval()[0] < once.interval()[0] < once.interval()[1] < always.interval()[1]
    assert ", valid at every look, " in always.words()[1]
    assert always.words()[1].endswith("): better" if always.bounds else UNBOUNDED)
    assert "every look" not in once.words()[1]


def test_a_level_that_is_none_is_refused():
    with pytest.raises(InputError, match="the level 95 is not between 0 and 1"):
        compare(BETTER).interval(95)


def test_it_shows_the_prompts_as_text_and_as_html_without_scripts():
    hostile = Pair("0", "<script>alert(1)</script>", (0.0,), (1.0,))
    shown = compare(hostile, *[SAME] * 9)
    assert "capitals: lab/practice@0 -> lab/practice@3 on 10 prompts" in repr(shown)
    assert "... and 9 more prompts: comparison.to_frame()" in repr(shown)
    assert "<script" not in shown._repr_html_()
    assert "&lt;script&gt;" in shown._repr_html_()
    assert len(shown.plot().series) == 2


def listed(shown: str) -> dict[str, list[str]]:
    """The groups of both ends, in the order of the text."""
    ends = {}
    for block in shown.split("\n\n"):
        title, *rows = block.splitlines()
        if title.startswith(("Worst", "Best")):
            ends[title] = [row.split()[0] for row in rows]
    return ends


def test_both_ends_are_shown_and_no_prompt_that_did_not_change():
    worse = [Pair(f"w{i}", "x", (0.9,), (0.9 - i / 10,)) for i in range(1, 7)]
    better = [Pair(f"b{i}", "x", (0.1,), (0.1 + i / 10,)) for i in range(1, 4)]
    shown = repr(compare(*[SAME] * 9, *better, *worse))
    assert listed(shown) == {
        "Worst losses, 4 of 6": ["w6", "w5", "w4", "w3"],
        "Best gains, 3 of 3": ["b3", "b2", "b1"],
    }
    assert "+0.000" not in shown.split("\n\n", 1)[1]
    assert listed(repr(compare(*[SAME] * 9))) == {}
    html = compare(*[SAME] * 9, *better, *worse)._repr_html_()
    assert html.count('<details class="rl-opening"') == 7


def test_prompts_are_cut_where_they_are_alike_and_not_where_they_differ():
    begin = "Answer in one word, please, and think before you do so: what is the capital of"
    pairs = [Pair(str(i), f"{begin} {name}?", (0.0,), (1.0,)) for i, name in enumerate(("France", "Peru"))]
    shown = repr(compare(*pairs))
    assert "… France?" in shown
    assert "… Peru?" in shown
    assert begin[:70] in repr(compare(pairs[0]))


def answered(lab: Lab, name: str, *groups: list[tuple[str, float]], **arrival: Any) -> Collection:
    """A collection of answers with rewards, each of which has as many tokens as characters."""
    prompts = [NewGroup([UserMessage(role="user", content=f"Question {i}?")], {"n": i}) for i in range(len(groups))]
    made = [[completion(text, text, **arrival) for text, _ in group] for group in groups]
    rewards = [reward for group in groups for _, reward in group]
    return Collection(lab, lab_with(lab, *made, name=name, prompts=prompts, rewards=rewards))


@pytest.fixture
def sides(lab):
    before = answered(lab, "a", [("red cat", 1.0), ("red cat", 1.0), ("dog", 0.5)], [("x", 0.0)] * 3)
    after = answered(lab, "b", [("blue cat", 0.0), ("blue cat", 0.0), ("dog", 0.5)], [("xyz", 1.0)] * 3)
    return Side("m@0", before, 6), Side("m@1", after, 0)


def compared(sides, **options):
    return compare_sides("capitals", sides, [(set(), [])] * (len(sides) - 1), None, **options)


def test_a_prompt_opens_to_its_completions_paired_by_seed(sides):
    result = compared(sides)
    pairs = result.completions("0")
    assert [(pair.positions, pair.before.text, pair.after.text) for pair in pairs] == [
        ((0, 1), "red cat", "blue cat"),
        ((2,), "dog", "dog"),
    ]
    assert [(pair.before.reward, pair.after.reward, pair.before.tokens) for pair in pairs] == [(1, 0, 7), (0.5, 0.5, 3)]
    html = result._repr_html_()
    assert "<del>red</del> cat" in html
    assert "<ins>blue</ins> cat" in html
    assert html.count("2, seeds 0, 1") == 2
    with pytest.raises(NotFoundError, match="there is no prompt '7'"):
        result.completions("7")


def test_answers_that_differ_beside_their_text_are_pairs_of_their_own(lab):
    said = [{"refusal": "no"}, {"refusal": "never"}, {"function_call": {"name": "find", "arguments": "1"}}]
    answers = [completion("", message={"role": "assistant", "content": None, **each}) for each in said]
    sides = [
        Side(f"m@{i}", Collection(lab, lab_with(lab, answers, name=name, rewards=[0.0] * 3)))
        for i, name in enumerate("ab")
    ]
    texts = [pair.after.text for pair in compared(sides).completions("0")]
    assert texts == ["[refused] no", "[refused] never", "assistant calls find(1)"]


def test_an_answer_that_was_cut_off_is_no_pair_with_the_whole_one(lab):
    answers = [completion("a"), completion("a", finish_reason="length")]
    sides = [
        Side(f"m@{i}", Collection(lab, lab_with(lab, answers, name=name, rewards=[0.0] * 2)))
        for i, name in enumerate("ab")
    ]
    assert [pair.positions for pair in compared(sides).completions("0")] == [(0,), (1,)]


def test_the_rewards_that_were_compared_stay_when_others_are_given(sides, lab):
    result = compared(sides)
    lab.rewards.give([Score(t, 9.0) for t in sides[1].collection.trajectories], "function")
    assert [pair.after.reward for pair in result.completions("0")] == [0.0, 0.5]


def test_completions_that_were_deleted_leave_the_rest_of_the_view(sides, lab):
    result = compared(sides)
    before = repr(result)
    lab.lifecycle.delete("a")
    assert result._repr_html_().count("its completions were deleted") == 2
    assert repr(result) == before


def test_lengths_and_cut_offs_and_components_are_compared_as_well(lab):
    before = answered(lab, "a", [("abcd", 1.0), ("ab", 1.0)], [("abc", 0.0)] * 2)
    after = answered(lab, "b", [("abcdef", 1.0), ("ab", 1.0)], [("a", 0.0)] * 2, finish_reason="length")
    for side, value in ((before, 0.25), (after, 0.75)):
        lab.rewards.give([Score(t, value, {"right": value}) for t in side.groups[0].trajectories], "function")
    result = compared([Side("m@0", before), Side("m@1", after)])
    assert result.describe()["figures"] == {"tokens": [3.0, 2.5], "cut_off": [0.0, 1.0], "right": [0.25, 0.75]}
    assert "tokens 3 -> 2.5, cut off 0% -> 100%, right 0.25 -> 0.75" in repr(result)
    assert "0% → 100%" in result._repr_html_()


def test_a_component_called_like_a_figure_does_not_take_its_place(lab):
    before, after = answered(lab, "a", [("abcd", 1.0)]), answered(lab, "b", [("ab", 1.0)])
    for side, value in ((before, 0.25), (after, 0.75)):
        lab.rewards.give([Score(t, value, {"tokens": value}) for t in side.groups[0].trajectories], "function")
    figures = compared([Side("m@0", before), Side("m@1", after)]).describe()["figures"]
    assert figures == {"tokens": [4.0, 2.0], "cut_off": [0.0, 0.0], "reward.tokens": [0.25, 0.75]}


def test_a_component_that_one_side_alone_has_is_said(sides, lab):
    scores = [Score(t, t.reward or 0.0, {"style": 0.5}) for t in sides[0].collection.trajectories]
    lab.rewards.give(scores, "function")
    result = compared(sides)
    assert result.describe()["only"] == {"style": "before"}
    assert "style: only m@0" in repr(result)
    assert "<span>style</span> <span>only A ○</span>" in result._repr_html_()


def test_its_description_is_json_and_has_every_prompt(sides):
    described = json.loads(json.dumps(compared(sides).describe()))
    assert (described["completions"], described["reused"], described["checkpoints"]) == (12, 6, ["m@0", "m@1"])
    assert described["counts"] == {"better": 1, "worse": 1, "equal": 0, "rows": 2}
    assert [(each["group"], each["row"]) for each in described["prompts"]] == [("0", {"n": 0}), ("1", {"n": 1})]
    assert "12 completions, 6 of them reused" in compared(sides).words()


def test_a_completion_counts_where_each_of_several_checkpoints_has_a_reward(lab):
    each = [
        collect(lab, "a", [0.0, 1.0], [0.5, 0.5]),
        collect(lab, "b", [1.0, None], [0.5, 0.5]),
        collect(lab, "c", [0.5, 0.5], [1.0, None]),
    ]
    result = compared([Side(f"m@{i}", side) for i, side in enumerate(each)])
    assert [[(pair.before, pair.after) for pair in one.pairs] for one in result] == [
        [((0.0,), (1.0,)), ((0.5,), (0.5,))],
        [((0.0,), (0.5,)), ((0.5,), (1.0,))],
    ]
    html = result._repr_html_()
    assert html.count('<details class="rl-whole">') == 2
    assert html.count("<style>") == 2
    assert len(result.describe()) == len(result) == 2


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (1e-7, "mean reward 2.5e-08 -> 5e-08, difference +2.5e-08 ("),
        (1e300, "mean reward 2.5e+299 -> 5e+299, difference +2.5e+299 (95% interval -"),
        (0.5, "mean reward 0.125 -> 0.250, difference +0.125 ("),
    ],
)
def test_rewards_of_any_size_are_compared_in_a_few_digits(size, words):
    rows = [(0.0, size), (size, 0.0), (0.0, size), (0.0, 0.0)]
    result = compare(*(Pair(str(i), f"Question {i}?", (old,), (new,)) for i, (old, new) in enumerate(rows)))
    assert result.words()[1].startswith(words)
    shown = result._repr_html_().partition("</style>")[2]
    assert f"<span>{size:.3g} → 0.00</span>" in shown.replace("0.50 →", "0.5 →")
    assert max(map(len, re.findall(r"\d+", repr(result) + shown))) < 12
    assert not re.search(r"\b(inf|nan)\b", shown)


def test_a_small_change_is_shown_by_its_first_digit_and_one_of_rounding_is_none():
    small = compare(Pair("0", "x", (0.5,), (0.498,)), *[SAME] * 3)
    assert '<b><span class="rl-lost">\N{MINUS SIGN}0.002</span></b>' in small._repr_html_()
    rounded = compare(Pair("0", "x", (0.3,), (0.1 + 0.2,)), *[SAME] * 3)
    assert rounded.difference == 0
    assert '<span class="rl-dim">0.00</span>' in rounded._repr_html_()
    assert rounded.describe()["counts"]["equal"] == 4
