"""Overview of a collection: what its figures are of, an interval that holds what it says, hints with a cause."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from rolloutlab.api.prices import amount_of
from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.store.models import Score, StoredCollection, TrajectorySummary
from rolloutlab.store.spending import JUDGING, SAMPLING, Account
from rolloutlab.trajectories.overview import compare_ends, order_groups, summarize, summarize_job
from rolloutlab.trajectories.rewards_data import RewardsData
from rolloutlab.trajectories.rewards_rows import CollectionRows, RewardsRows
from rolloutlab.widgets import overview as render
from tests.labs import completion, lab_with, without_logprobs

STORED = StoredCollection(1, "caps", 1, True, "2026-01-01T00:00:00", {}, 0, 0)


def rows_of(groups, finish="stop", tokens=10, parts=None):
    """Rows of these rewards by group, each with its finish reason where `finish` is a function of the reward."""
    ends = finish if callable(finish) else lambda _reward: finish
    numbers = itertools.count(1)
    outlines = [
        TrajectorySummary(
            next(numbers), g, i, reward, "function", (parts or {}).get((g, i), {}), (tokens,), ends(reward)
        )
        for g, rewards in enumerate(groups)
        for i, reward in enumerate(rewards)
    ]
    return RewardsRows([CollectionRows(STORED, range(len(groups)), outlines)])


def ended_rows(rewards_GN, cut_GN):
    """Rows of these rewards, each cut off or not."""
    numbers = itertools.count(1)
    outlines = [
        TrajectorySummary(next(numbers), g, i, float(reward), "function", {}, (10,), "length" if cut else "stop")
        for g, row in enumerate(zip(rewards_GN, cut_GN, strict=True))
        for i, (reward, cut) in enumerate(zip(*row, strict=True))
    ]
    return RewardsRows([CollectionRows(STORED, range(len(rewards_GN)), outlines)])


def shown(groups, some=None, **how):
    """The overview of two collections, so that nothing of a lab is needed."""
    return summarize(rows_of(groups, **how), None, [STORED, STORED], some)


def test_figures_are_of_the_whole_collection_and_groups_stand_by_what_they_teach():
    made = shown([[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [None, None, None, None], [0.5, 0.5, 0.5, 0.5]])
    whole = made.whole
    assert (whole.answers, whole.scored, whole.groups) == (20, 16, 5)
    assert whole.mean == pytest.approx(0.5)
    assert whole.standings == {"trains": 1, "fail": 1, "equal": 1, "pass": 1, "unscored": 1}
    assert [bar.standing for bar in made.bars] == ["trains", "fail", "equal", "pass", "unscored"]
    assert [bar.position for bar in made.bars] == [0, 2, 4, 1, 3]
    assert "0.5 <small>" in render.html(made)
    assert "1 of 5 groups train; 1 all fail, 1 equal rewards, 1 all pass, 1 not scored yet" in render.text(made)


def test_the_most_spread_group_comes_first():
    assert order_groups(rows_of([[0.4, 0.6], [1, 1], [0, 1], [0.5, 0.9]])) == [2, 3, 0, 1]
    assert order_groups(rows_of([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]])) == [1, 0, 2]


def test_pass_at_k_is_the_share_of_all_choices_of_k_with_a_pass():
    groups = [[0, 1, 1, 0, 0, 0, 0, 0], [1] * 8, [0] * 8, [0, 0.5, 0, 0, 1, 0, 0, 0]]
    made = shown(groups).pass_at
    assert list(made) == [1, 4, 8]
    for k, chance in made.items():
        passed = [any(r == 1 for r in some) for g in groups for some in itertools.combinations(g, k)]
        assert chance == pytest.approx(sum(passed) / len(passed))


def test_pass_at_k_never_falls_as_k_grows_where_groups_have_other_sizes():
    made = shown([[1, 1], [1, 0], [1, None], *[[0] * 8] * 4]).pass_at
    assert made == {}, "a group of one answer has no pass@2"
    made = shown([[1, 1], [1, 0], [1, 1, 0], *[[0] * 8] * 4]).pass_at
    assert made == pytest.approx({1: (1 + 0.5 + 2 / 3) / 7, 2: 3 / 7})


def test_groups_of_one_answer_are_said_to_teach_nothing(lab):
    fact = "Each prompt has one answer: nothing in its group is better or worse, so none of them trains."
    assert lines_of(lab, ["a"], ["b"], rewards=[1, 0]) == [fact]


@pytest.mark.parametrize("groups", [[[0.2, 0.8], [0.5, 0.1]], [[3, 1], [0, 0]], [[0], [1]]])
def test_pass_at_k_is_not_said_where_no_reward_of_1_is_the_highest_or_there_is_one_answer(groups):
    assert shown(groups).pass_at == {}


@pytest.mark.parametrize(("groups", "n", "alike"), [(4, 8, 0.5), (4, 8, 4.0), (16, 4, 0.5), (32, 4, 4.0)])
def test_the_interval_of_the_mean_holds_what_it_says(groups, n, alike):
    """Answers of a group are alike: each group has a chance of its own, which a binomial interval does not know."""
    draw, holds, tries = random.Random(f"{groups} {alike}"), 0, 200
    for _ in range(tries):
        chances = [draw.betavariate(alike * 0.4, alike * 0.6) for _ in range(groups)]
        low, high = shown([[float(draw.random() < p) for _ in range(n)] for p in chances]).interval
        holds += low <= 0.4 <= high
    assert holds / tries >= 0.92


def test_groups_of_other_sizes_count_by_their_size():
    draw, holds, tries = random.Random(5), 0, 200
    for _ in range(tries):
        chances = [draw.betavariate(2, 2) for _ in range(24)]
        groups = [[float(draw.random() < p) for _ in range(draw.choice([2, 8, 16]))] for p in chances]
        low, high = shown(groups).interval
        holds += low <= 0.5 <= high
    assert holds / tries >= 0.92


@pytest.mark.parametrize("groups", [[[0, 1, 1]], [[2, 2], [2, 2]], [[None], [None]]])
def test_no_interval_is_made_up(groups):
    assert shown(groups).interval is None
    assert "±" not in "\n".join(render.text(shown(groups)))


def test_all_failing_is_not_certain_failure():
    low, high = shown([[0, 0]] * 8).interval
    assert low <= 0
    assert high > 0.1, "eight groups do not say that no ninth passes"


def test_what_fits_a_filter_is_shown_within_all():
    made = shown([[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]], some=[0, 3, 8])
    assert (made.fitting.answers, made.fitting.mean, made.fitting.groups) == (3, 0, 2)
    assert made.fitting.standings == {"trains": 1, "fail": 1}
    assert sum(made.whole.rewards.counts) == 12
    assert sum(made.fitting.rewards.counts) == 3
    assert [(bar.position, bar.fits) for bar in made.bars] == [(0, True), (2, True), (1, False)]
    html = render.html(made)
    assert "Mean reward of 3 answers that fit" in html
    assert "all 12: 0.5" in html


def test_a_filter_that_nothing_fits_says_so():
    made = shown([[0, 1], [1, 1]], some=[])
    assert "no reward among them" in render.html(made)
    assert {bar.fits for bar in made.bars} == {False}


def test_of_thousands_of_groups_a_bar_stands_for_some():
    made = shown([[0, 1]] * 1000 + [[0, 0]] * 3)
    assert len(made.bars) <= render.MOST_BARS + 3
    assert sum(bar.groups for bar in made.bars) == 1003
    assert "a bar for 5 groups or fewer" in render.html(made)


@pytest.mark.parametrize("reward", [1e308, -1e308])
def test_rewards_near_the_end_of_floats_are_shown(reward):
    made = shown([[reward, -reward], [reward, reward]])
    assert math.isfinite(made.whole.mean)
    assert "<div" in render.html(made)


def lines_of(lab, *groups, rewards, **plan):
    """The hints on a new collection. plan: how it was sampled."""
    stored = lab_with(lab, *groups, name="letters", rewards=rewards)
    stored = replace(stored, plan={"model": "lab/practice", **plan}) if plan else stored
    rows = RewardsRows([CollectionRows(stored, lab.outlines.positions(stored), lab.outlines.of(stored, None))])
    return [hint.line() for hint in summarize(rows, lab, [stored]).hints]


CUT = completion("a b", finish_reason="length")


def test_failures_that_were_cut_off_are_the_first_thing_that_is_said(lab):
    lines = lines_of(lab, [CUT, CUT, CUT, "a"], [CUT, "b", "b", "b"], rewards=[0, 0, 0, 0, 0, 1, 1, 1])
    assert lines == [
        "4 of 5 failures were cut off by max_tokens. Of the 4 answers that were not, 1 failed.",
        "1 group never passes, so it teaches nothing at n = 4.",
    ]


def test_failures_that_were_cut_off_are_not_said_where_the_others_fail_as_often(lab):
    cut = [completion(text, finish_reason="length") for text in "xy"]
    assert lines_of(lab, [*cut, "a", "b"], [*cut, "a", "b"], rewards=[0, 1, 0, 1, 0, 1, 0, 1]) == []


def test_answers_without_a_reward_have_not_passed(lab):
    rewards = [0, 0, 0, 0, 0, 1, *[None] * 6]
    assert lines_of(lab, [CUT, CUT, CUT, CUT, "a", "b", *"cdefgh"], rewards=rewards) == [
        "4 of 5 failures were cut off by max_tokens. Of the 2 answers that were not, 1 failed."
    ]


def test_answers_with_fewer_tokens_than_they_may_have_were_not_cut_off_by_the_limit(lab):
    cell = "%%chat letters --max-tokens 4"
    begun = "2 of 4 answers were cut off"
    assert lines_of(lab, [CUT, "a", CUT, "a"], rewards=[], max_tokens=2) == [f"{begun} by max_tokens=2. -> {cell}"]
    assert lines_of(lab, [CUT, "a", CUT, "a"], rewards=[], max_tokens=64) == [f"{begun} before max_tokens=64."]


OF_OTHERS = [{"total": 4}, {"model": "lab/practice", "temperature": 3.0}, {"model": None, "step": 1, "n": "many"}]


@pytest.mark.parametrize("plan", OF_OTHERS, ids=["no model", "a setting out of bounds", "other types"])
def test_a_plan_of_another_version_keeps_no_collection_from_being_shown(lab, plan):
    answers, rewards = [[CUT, "a"], ["a", "b"]], [0.0, 0.0, 0.0, 1.0]
    lab_with(lab, *answers, name="letters", rewards=rewards)
    stored = replace(lab_with(lab, *answers, name="letters", rewards=rewards), plan=plan)
    rows = RewardsRows([CollectionRows(stored, [0, 1], lab.outlines.of(stored, None))])
    made = summarize(rows, lab, [stored])
    assert (made.whole.mean, made.former) == (0.25, ("letters:1", 0.25, 4, "unknown settings"))
    assert [hint.line() for hint in made.hints] == ["1 group never passes, so it teaches nothing at n = 2."]


def test_figures_are_made_once_for_all_who_ask_until_a_reward_or_the_filter_changes(lab):
    stored = lab_with(lab, ["a", "b"], name="letters", rewards=[0.0, 1.0])
    job = RewardsData(lab, [stored], None)
    first = summarize_job(job, lab)
    assert summarize_job(job, lab) is first
    assert summarize_job(job, lab, [0]).fitting.mean == 0.0
    lab.rewards.give([Score(job.rows.ref(0), 0.5)], "hand")
    job.refresh()
    assert summarize_job(job, lab).whole.mean == 0.75


def test_an_older_generation_offers_no_cell_that_would_sample_the_prompts_of_the_newest(lab):
    stored = lab_with(lab, [CUT, "a"], name="letters")
    old = replace(stored, plan={"model": "lab/practice", "max_tokens": 2}, bare=False)
    rows = RewardsRows([CollectionRows(old, [0], lab.outlines.of(stored, None))])
    assert [hint.line() for hint in summarize(rows, lab, [old]).hints] == [
        "1 of 2 answers were cut off by max_tokens=2."
    ]


def test_a_group_is_not_called_failed_before_all_of_it_is_scored(lab):
    assert lines_of(lab, [*"abcd"], [*"ab"], rewards=[0, 0, None, None, 0, 1]) == []


def test_groups_with_nothing_but_a_low_reward_that_is_no_failure_are_named_by_it(lab):
    assert lines_of(lab, [*"abcd"], [*"abcd"], rewards=[0.9] * 4 + [1, 0.95, 1, 1]) == [
        "1 group has nothing but 0.9, so it teaches nothing at n = 4."
    ]


def test_temperature_0_is_named_where_nothing_trains(lab):
    plan = {"temperature": 0, "n": 2}
    said = "All answers were sampled at temperature 0, where those of a group are mostly the same."
    assert lines_of(lab, ["a", "a"], rewards=[1, 1], **plan) == [f"{said} -> %%chat letters --temperature 1"]
    assert lines_of(lab, ["a", "b"], rewards=[1, 0], **plan) == []


@pytest.mark.parametrize("rewards", [[1, 1, 0, 1], [0.5, 0.2, 0.7, 0.1], [-30, -31, -30, -32]])
def test_passing_or_low_answers_that_were_cut_off_are_no_failures(lab, rewards):
    cut = [completion(text, finish_reason="length") for text in "xyz"]
    assert lines_of(lab, [*cut, "a"], rewards=[rewards[0], rewards[1], rewards[3], rewards[2]]) == []


def test_a_few_cut_off_among_many_failures_are_not_worth_a_line(lab):
    assert lines_of(lab, [CUT, CUT, *"cdefghijklmnop"], rewards=[0] * 15 + [1]) == []


def test_answers_that_score_less_where_they_were_cut_off_are_said(lab):
    groups = [[CUT, "a", completion("c", finish_reason="length"), "d"]] * 8
    lines = lines_of(lab, *groups, rewards=[0.5, 0.75, 0.5, 1] * 8)
    evidence = "In the 8 groups with both, their mean reward is 0.38 lower than that of the others."
    assert lines == [f"16 of 32 answers were cut off by max_tokens. {evidence}"]
    assert lines_of(lab, *groups, rewards=[1, 0.75, 0.5, 0.25] * 8) == []


def test_nearly_all_answers_that_were_cut_off_are_said_where_they_could_score_more(lab):
    lines = lines_of(lab, [CUT] * 9 + ["a"], [CUT] * 10, rewards=[0.75] * 20)
    assert lines == ["19 of 20 answers were cut off by max_tokens. 1 was not."]
    assert lines_of(lab, [CUT] * 10, rewards=[1] * 10) == []


@pytest.mark.parametrize(
    ("groups", "share", "cut"), [(16, 0.1, 0.2), (12, 0.15, 0.25), (32, 0.06, 0.2), (16, 0.9, 0.2)]
)
def test_where_few_pass_or_fail_and_an_end_makes_no_difference_a_loss_is_hardly_ever_seen(groups, share, cut):
    rng, seen, tries = np.random.default_rng(0), 0, 300
    for _ in range(tries):
        rewards_GN = 0.1 + (rng.random((groups, 8)) < share)
        seen += compare_ends(ended_rows(rewards_GN, rng.random((groups, 8)) < cut)) is not None
    assert seen / tries <= 0.02


def test_where_an_end_makes_no_difference_a_loss_is_seen_in_few_collections():
    """Rewards of hard and easy prompts, in which hard ones are cut off more often and score less."""
    rng, seen, tries = np.random.default_rng(0), 0, 400
    for _ in range(tries):
        hard_G = rng.random(16)
        rewards_GN = (rng.random((16, 8)) > hard_G[:, None]).astype(float)
        cut_GN = rng.random((16, 8)) < hard_G[:, None]
        seen += compare_ends(ended_rows(rewards_GN, cut_GN)) is not None
    assert seen / tries < 0.02


def test_a_loss_of_a_quarter_is_seen_in_most_collections():
    rng, seen, tries = np.random.default_rng(0), 0, 100
    for _ in range(tries):
        cut_GN = rng.random((32, 8)) < 0.4
        rewards_GN = (rng.random((32, 8)) < np.where(cut_GN, 0.45, 0.7)).astype(float)
        seen += compare_ends(ended_rows(rewards_GN, cut_GN)) is not None
    assert seen / tries > 0.8


def test_where_nearly_all_are_cut_off_a_few_failures_are_not_what_is_said(lab):
    """As where a limit leaves room for 3 of 4 letters."""
    lines = lines_of(lab, [CUT] * 20, [CUT] * 20, rewards=[0.75] * 38 + [0.0] * 2, max_tokens=3)
    assert lines[0].startswith("40 of 40 answers were cut off")


def test_before_a_reward_cut_off_answers_are_said(lab):
    assert lines_of(lab, [CUT, "a", CUT, "a"], rewards=[]) == ["2 of 4 answers were cut off by max_tokens."]


def calling(name):
    """An answer without text that calls a tool."""
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    return completion("", message={"role": "assistant", "content": "", "tool_calls": [call]})


def thinking(reasoning):
    """The answer `a` after some reasoning."""
    return completion("", message={"role": "assistant", "content": "a", "reasoning_content": reasoning})


def test_rewards_that_differ_by_rounding_alone_are_the_same(lab):
    assert lines_of(lab, ["a", "a", "b"], rewards=[0.1 + 0.2, 0.3, 1]) == []
    [line] = lines_of(lab, ["a", "a", "b"], rewards=[1234.5, 1233.9, 1])
    assert '"a" has 1234.5 and 1233.9.' in line


def test_answers_that_are_missing_are_said_and_not_that_each_prompt_has_one(lab):
    template = [[{"role": "user", "content": "Say {{q}}"}]]
    plan = {"n": 4, "total": 8, "template": template}
    assert lines_of(lab, ["a"], ["b"], rewards=[], **plan) == ["6 of 8 answers are missing. -> %%chat letters --resume"]


def test_one_group_is_not_measured_by_its_whole_collection(lab):
    lab_with(lab, ["a", "b"], ["a", "b"], name="letters", rewards=[1.0, 0.0, 1.0, 0.0])
    stored = replace(lab_with(lab, ["a", "b"], ["c", "d"], name="letters"), plan={"model": "lab/practice", "total": 4})
    whole = RewardsRows([CollectionRows(stored, [0, 1], lab.outlines.of(stored, None))])
    rows = RewardsRows([CollectionRows(stored, [1], lab.outlines.of(stored, 1))], whole)
    made = summarize(rows, lab, [stored])
    assert (made.former, made.usage, made.next, list(made.hints)) == (None, "", "", [])


def test_a_bar_of_several_groups_is_said_to_stand_for_as_many_as_any_does():
    made = shown([[0.0, 1.0], *[[0.0, 0.0]] * 499])
    assert "a bar for 3 groups or fewer" in render.html(made)


def test_equal_answers_with_different_rewards_are_said(lab):
    groups = [["a", "b", "a", "c"], ["a", "b", "a", "b"], ["a", "a", "b", "b"]]
    lines = lines_of(lab, *groups, rewards=[1, 0, 0, 0, 1, 0, 1, 0.5, 1, 1, 0, 0])
    fact = "The same answer has different rewards in 2 groups: letters/0, letters/1."
    said = f'{fact} In letters/0 "a" has 1 and 0. -> %group letters/0'
    assert lines == [said]


@pytest.mark.parametrize(
    "messages",
    [
        [{"content": None, "refusal": "no"}, {"content": None, "refusal": "never"}],
        [{"content": None, "function_call": {"name": "f", "arguments": at}} for at in ("1", "2")],
    ],
    ids=["refusals", "function calls"],
)
def test_answers_that_differ_beside_their_text_are_not_said_to_be_the_same(lab, messages):
    answers = [completion("", message={"role": "assistant", **message}) for message in messages]
    assert lines_of(lab, [*answers, "a", "b"], rewards=[1, 0, 1, 0]) == []


def test_answers_with_further_histories_are_not_said_to_be_the_same(lab):
    further = {"additional_histories": [{"messages_and_choices": [{"role": "user", "content": "more"}]}]}
    stored = lab_with(lab, ["a", "a"], name="letters", rewards=[1, 0], extra=further)
    rows = RewardsRows([CollectionRows(stored, [0], lab.outlines.of(stored, None))])
    assert not summarize(rows, lab, [stored]).hints


def test_of_many_groups_with_such_answers_some_are_read_and_the_hint_says_so(lab):
    [line] = lines_of(lab, *[["a", "a"]] * 65, rewards=[1, 0] * 65)
    assert line.startswith(
        "The same answer has different rewards in at least 64 groups: letters/0, letters/1, letters/2 and 61 more."
    )


def test_a_reward_that_is_made_equal_ends_the_hint(lab):
    stored = lab_with(lab, ["a", "b", "a"], name="letters", rewards=[1, 0, 0])
    rows = RewardsRows([CollectionRows(stored, [0], lab.outlines.of(stored, None))])
    assert len(summarize(rows, lab, [stored]).hints) == 1
    lab.rewards.give([Score(rows.ref(2), 1)], "hand")
    rows.put(lab.outlines.of(stored))
    assert not summarize(rows, lab, [stored]).hints


@pytest.mark.parametrize(
    "answers",
    [
        [CUT, completion("a b")],
        [[completion("b"), UserMessage(role="user", content="?"), completion("a")], "a"],
        [calling("look"), calling("leave")],
        [thinking("long"), thinking("short")],
    ],
    ids=["ended otherwise", "after another turn", "other calls", "other reasoning"],
)
def test_what_else_may_be_rewarded_makes_equal_texts_different(lab, answers):
    assert lines_of(lab, answers, rewards=[1, 0]) == []


def test_a_server_that_names_no_calls_and_no_reasoning_hides_nothing(lab):
    message = {"role": "assistant", "content": "a", "tool_calls": [], "reasoning_content": None}
    assert len(lines_of(lab, [completion("", message=message)] * 2, rewards=[1, 0])) == 1


def test_answers_without_logprobs_are_said(lab):
    lines = lines_of(lab, [without_logprobs("a"), without_logprobs("b")], rewards=[0, 1])
    assert lines == ["2 answers without logprobs: nothing of them trains. -> %logprobs letters"]


def test_what_a_collection_has_taken_and_cost_is_below_its_lengths(lab):
    stored = lab_with(lab, ["a", "b"], name="letters", rewards=[0, 1])
    rows = RewardsRows([CollectionRows(stored, [0], lab.outlines.of(stored, None))])
    assert summarize(rows, lab, [stored]).usage == "", "nothing is known of it"
    lab.spend(stored, 90_000, 6_000)
    stored = lab.collection("letters")
    assert summarize(rows, lab, [stored]).usage == "96k tokens with prompts"
    for purpose, dollars in ((SAMPLING, 0.2), (JUDGING, 0.01)):
        lab.spending.set_aside(Account("here", "model", purpose, stored), None, 0, amount_of(dollars))
    made = summarize(rows, lab, [stored])
    assert made.usage == "96k tokens with prompts · $0.210"
    assert made.usage in render.html(made)


def test_the_former_generation_is_beside_the_mean(lab):
    lab_with(lab, ["a", "b"], name="letters", rewards=[0, 0.5])
    stored = lab_with(lab, ["a", "b"], name="letters", rewards=[1, 1])
    rows = RewardsRows([CollectionRows(stored, [0], lab.outlines.of(stored, None))])
    made = summarize(rows, lab, [stored])
    assert made.former == ("letters:1", 0.25, 2, "unknown settings")
    assert "letters:1 had 0.25" in render.html(made)
