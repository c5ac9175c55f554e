"""From reward functions and weights to scores: components, their weighted sum, and what is refused by name."""

import math
import threading
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from rolloutlab.api.wire.chat import Choice, UserMessage
from rolloutlab.errors import InputError, LabError, RewardError
from rolloutlab.runtime import LoopThread
from rolloutlab.scoring.calls import reward_call
from rolloutlab.scoring.functions import by_name, source_of, weights_of
from rolloutlab.scoring.run import ScoringRun
from rolloutlab.scoring.score import report, wait_for
from rolloutlab.scoring.workers import ScoringOptions
from rolloutlab.store.models import Group, Score, StoredTrajectory
from rolloutlab.widgets.progress import Progress


def trajectory(answer: str = "Paris", place: int = 0) -> StoredTrajectory:
    message = {"role": "assistant", "content": answer}
    choice = Choice.model_validate({"finish_reason": "stop", "index": 0, "message": message})
    items = (UserMessage(role="user", content="Capital?"), choice)
    return StoredTrajectory(place, f"capitals/0/{place}", items, {"capital": "Paris"}, "m", 0, {}, "2026-01-31")


ONE = [trajectory()]


def score(trajectories: list[StoredTrajectory], functions: Any, weights: Any = None) -> list[Score]:
    """The scores that would be stored of one group, or the error that a cell would stop with."""
    scores: list[Score] = []
    calls = [reward_call(name, function, ["capital"]) for name, function in by_name(functions).items()]
    group = Group(0, "capitals/0", (), {"capital": "Paris"}, tuple(trajectories))
    run = ScoringRun(
        [group],
        calls,
        weights_of(weights),
        ScoringOptions(),
        lambda some, *_: scores.extend(some),
        LoopThread("rolloutlab-rewards"),
    )
    wait_for(run, len(trajectories), "capitals", Progress("scoring"))
    report(run, len(trajectories), "capitals", lambda _: None)
    return sorted(scores, key=lambda each: each.trajectory.id)


def test_calls_under_way_are_stored_when_a_later_group_cannot_be_read():
    failed, scores = threading.Event(), []

    def groups():
        for i in range(64):  # as many as are read together
            yield Group(i, f"capitals/{i}", (), {}, (trajectory(place=i),))
        failed.set()
        raise LabError("the file cannot be read")

    def slow(answer):
        assert failed.wait(30)
        return 1.0

    run = ScoringRun(
        groups(),
        [reward_call("slow", slow, [])],
        {},
        ScoringOptions(concurrency=100),
        lambda some, *_: scores.extend(some),
        LoopThread("rolloutlab-rewards"),
    )
    with pytest.raises(LabError, match="cannot be read"):
        run.wait()
    assert len(scores) == 64


def returns(outcome: Any):
    return lambda trajectory, answer, messages, row: outcome


def exact(trajectory, answer, messages, row):
    return float(answer == row["capital"])


def brief(trajectory, answer, messages, row):
    return 1 / len(answer)


def style(trajectory, answer, messages, row):
    return {"polite": 0.5, "calm": 1.0}


def one(functions: Any, weights: Any = None):
    (result,) = score(ONE, functions, weights)
    return result.reward, result.components


@pytest.mark.parametrize(
    "outcome", [1, 0.5, True, np.float64(0.5), np.float32(0.5), np.int64(1), np.bool_(True), Fraction(1, 2)]
)
def test_a_number_of_any_kind_is_a_reward(outcome):
    reward, components = one(returns(outcome))
    assert (reward, type(reward), components) == (float(outcome), float, {})


def test_half_a_character_in_the_name_of_a_component_is_replaced():
    assert one(returns({"a\ud800": 1.0})) == (1.0, {"a?": 1.0})


def test_the_reward_of_components_is_their_sum():
    outcome = {"right": 1, "short": 0.25, "polite": False}
    assert one(returns(outcome)) == (1.25, {"right": 1.0, "short": 0.25, "polite": 0.0})


def test_a_component_called_reward_is_the_reward():
    outcome = {"right": 1.0, "length": 120.0, "reward": 0.5}
    assert one(returns(outcome)) == (0.5, {"right": 1.0, "length": 120.0})


@pytest.mark.parametrize(
    "bad",
    [None, "1", math.nan, math.inf, [1.0], {"right": None}, {"right": math.nan}, pytest.param(10**400, id="huge")],
)
def test_what_is_no_finite_number_is_no_reward_and_the_trajectory_is_named(bad):
    with pytest.raises(RewardError, match="capitals/0/0"):
        score(ONE, returns(bad))


def test_components_that_add_up_to_no_finite_number_are_refused():
    with pytest.raises(RewardError, match="capitals/0/0"):
        score(ONE, returns({"right": 1e308, "short": 1e308}))


def test_each_of_several_functions_is_a_component_under_its_name():
    assert one([exact, brief]) == (1.2, {"exact": 1.0, "brief": 0.2})
    assert one({"right": exact, "short": brief}) == (1.2, {"right": 1.0, "short": 0.2})
    assert one([exact]) == (1.0, {"exact": 1.0})


def test_weights_scale_the_sum_and_leave_the_components_as_they_are():
    assert one([exact, brief], {"brief": 0.5}) == (1.1, {"exact": 1.0, "brief": 0.2})
    assert one([exact, brief], {"exact": 0, "brief": -5}) == (-1.0, {"exact": 1.0, "brief": 0.2})
    assert one(style, {"calm": 3}) == (3.5, {"polite": 0.5, "calm": 1.0})


def test_a_function_of_several_may_give_components_of_its_own():
    assert one([exact, style], {"exact": 2, "polite": 0.5}) == (3.25, {"exact": 1.0, "polite": 0.5, "calm": 1.0})


def test_a_function_of_several_that_says_its_reward_is_a_component_and_only_keeps_the_rest():
    functions = {"exact": exact, "short": returns({"length": 120.0, "reward": 0.5})}
    assert one(functions, {"short": 2}) == (2.0, {"exact": 1.0, "short": 0.5, "length": 120.0})


def test_the_same_functions_in_another_order_give_the_same_scores():
    trajectories = [trajectory("Paris", 0), trajectory("Lyon", 1)]
    names = {"a": exact, "b": brief, "c": style}
    forth, back = score(trajectories, names), score(trajectories, dict(reversed(names.items())))
    assert [s.components for s in forth] == [s.components for s in back]
    assert [s.reward for s in forth] == pytest.approx([s.reward for s in back])


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ({"exakt": 1}, "a weight is given for 'exakt', which is not a component of the reward -> exact"),
        ({"zzz": 1}, "a weight is given for 'zzz', which is not a component of the reward -> exact, brief"),
        ({"exact": math.nan}, "the weight of exact is nan, which is not a finite number -> exact=1.0"),
        ({"exact": "much"}, "the weight of exact is 'much', which is not a finite number -> exact=1.0"),
    ],
)
def test_a_wrong_weight_is_named_with_what_to_type(weights, text):
    with pytest.raises(InputError) as error:
        score(ONE, [exact, brief], weights)
    assert f"{error.value.message} -> {error.value.hint}" == text


def test_a_weight_for_what_is_only_kept_would_do_nothing_and_is_refused():
    with pytest.raises(InputError, match="'length'"):
        score(ONE, returns({"length": 120.0, "reward": 0.5}), {"length": 0.1})
    with pytest.raises(InputError, match="'exact'"):
        score(ONE, exact, {"exact": 0.1})


def test_a_component_that_only_some_trajectories_have_can_be_weighed():
    def rare(trajectory, answer, messages, row):
        return {"right": 1.0} if answer == "Paris" else {"near": 0.5}

    scores = score([trajectory("Paris", 0), trajectory("Lyon", 1)], rare, {"near": 0.5})
    assert [s.reward for s in scores] == [1.0, 0.25]


@pytest.mark.parametrize(
    "functions",
    [
        [],
        {},
        "exact",
        [exact, exact],
        [lambda *_: 1.0],
        [partial(exact)],
        {"exact": 1.0},
        None,
        [exact, None],
    ],
)
def test_what_is_no_function_with_a_name_of_its_own_is_refused_before_anything_is_called(functions):
    with pytest.raises(InputError):
        score(ONE, functions)


@pytest.mark.parametrize("name", ["answer", "reward", "advantage", ""])
def test_a_component_cannot_have_the_name_of_a_column(name):
    with pytest.raises(RewardError, match="as a column is"):
        score(ONE, {name: exact})


def test_two_functions_cannot_give_the_same_component():
    with pytest.raises(RewardError, match="two reward functions give a component 'exact' to capitals/0/0"):
        score(ONE, {"exact": exact, "other": returns({"exact": 1.0})})


def test_a_function_that_fails_is_named_with_its_line_and_the_trajectory():
    def broken(trajectory, answer, messages, row):
        return row["town"]

    with pytest.raises(RewardError) as error:
        score(ONE, [exact, broken])
    message = error.value.message
    assert message.startswith("the reward function broken failed on capitals/0/0: KeyError: 'town' (line ")
    assert message.endswith('return row["town"])')


def test_an_interrupt_is_told_with_the_trajectory_and_without_a_traceback():
    def interrupted(trajectory, answer, messages, row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        score(ONE, interrupted)
    message = stopped.value._render_traceback_()
    assert message == [
        "KeyboardInterrupt: interrupted while scoring capitals/0/0; no reward was changed",
        "  -> run the cell again",
    ]
    assert stopped.value.__notes__[0] == message[0].partition(": ")[2]


def test_nothing_to_score_is_no_score():
    assert score([], [exact], {"brief": 1}) == []


def test_the_source_of_a_function_is_the_same_wherever_it_is_written():
    def right(answer):
        return len(answer)

    assert source_of(right) == source_of(partial(right)) == "def right(answer):\n    return len(answer)\n"
    assert source_of(len) is None
