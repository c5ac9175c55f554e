"""Reward functions with the signatures of TRL, verl, verifiers and ART; the libraries are in acceptance."""

import asyncio
import math
import re
import sys
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rolloutlab.api.wire.chat import SystemMessage, UserMessage
from rolloutlab.errors import InputError, RewardError
from rolloutlab.integrations.art import reward as art_reward
from rolloutlab.integrations.trl import reward as trl_reward
from rolloutlab.integrations.verifiers import reward as verifiers_reward
from rolloutlab.scoring.calls import RewardCell
from rolloutlab.store.models import NewGroup
from tests.labs import completion, lab_with

ASKED = [{"role": "user", "content": "Capital of Peru?"}]


@pytest.fixture
def said(lab, collect, capsys):
    """Scores the first group of a collection with a function, and what was said about it."""

    def score(function, weights=None, **row: Any) -> list[float | None]:
        collect(1, 4, **row)
        lab.reward("capitals", function, weights, say=print)
        return [t.reward for t in lab.collection("capitals").trajectories]

    return score


def components(lab):
    return [dict(t.components) for t in lab.collection("capitals").trajectories]


# verl, https://verl.readthedocs.io/en/latest/preparation/reward_function.html


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "openai/gsm8k"
    assert extra_info == {"index": 3, "num_turns": 2, "rollout_reward_scores": {}}
    return {"score": float(solution_str == ground_truth), "length": len(solution_str), "why": "equal"}


@pytest.mark.parametrize("right", [{"reward_model": {"style": "rule", "ground_truth": "a0"}}, {"ground_truth": "a0"}])
def test_a_function_of_verl_gets_the_answer_and_the_columns_of_its_data_files(lab, said, capsys, right):
    assert said(compute_score, data_source="openai/gsm8k", extra_info={"index": 3}, **right) == [1.0, 0.0, 1.0, 0.0]
    assert components(lab)[1] == {"length": 5.0}
    assert "reward function of verl" in capsys.readouterr().out


def test_its_four_parameters_are_no_positions(said):
    def score(data_source, solution_str, ground_truth, extra_info):
        return float((data_source, solution_str, ground_truth, extra_info["num_turns"]) == (None, "a0", "a0", 2))

    assert said(score, ground_truth="a0") == [1.0, 0.0, 1.0, 0.0]


def test_a_batch_function_of_verl_gets_lists_of_a_group_and_returns_one(lab, said, capsys):
    def score(data_sources, solution_strs, ground_truths, extra_infos):
        assert data_sources == ["gsm8k"] * len(solution_strs)
        assert [each["index"] for each in extra_infos] == [3] * len(solution_strs)
        pairs = zip(solution_strs, ground_truths, strict=True)
        return [{"score": float(said == right), "length": len(said)} for said, right in pairs]

    assert said(score, data_source="gsm8k", extra_info={"index": 3}, ground_truth="a0") == [1.0, 0.0, 1.0, 0.0]
    assert components(lab)[1] == {"length": 5.0}
    assert "reward function of verl" in capsys.readouterr().out


def test_a_batch_function_of_verl_that_returns_one_number_is_told_what_to_return(said):
    with pytest.raises(RewardError, match="a list of a value per solution") as error:
        said(lambda solution_strs, ground_truths: 1.0, ground_truth="a0")
    assert "for solution_str in solution_strs" in error.value.hint


def test_rows_without_a_right_answer_are_an_error_that_shows_what_to_type(said):
    def score(data_source, solution_str, ground_truth):
        return 1.0

    with pytest.raises(RewardError, match=r"neither ground_truth nor reward_model\.ground_truth") as error:
        said(score)
    assert "row['ANSWER']" in error.value.hint


# TRL


def of_messages(completions, **kwargs):
    return [float(len(completions[i][0]["content"])) for i in range(len(completions))]


async def of_messages_later(completions):
    return [float(len(completion[0].get("content"))) for completion in completions]


def of_texts(completions):
    return [float(len(re.findall("a", completion))) for completion in completions]


@pytest.mark.parametrize(
    ("function", "row", "other"),
    [(of_messages, {}, True), (of_messages_later, {}, True), (of_texts, {"prompt": ASKED}, False)],
)
def test_a_function_that_means_the_other_form_of_completions_is_told_so(said, lab, function, row, other):
    with pytest.raises(RewardError, match="failed on") as error:
        said(function, **row)
    assert (
        error.value.hint
        == f"from rolloutlab.integrations.trl import reward; reward({function.__name__}, conversational={other})"
    )
    assert len(said(trl_reward(function, conversational=other), **row)) == 4


def by_length(completions, **kwargs):
    return [float(len(text)) for text in completions]


def test_a_function_of_trl_gets_texts_where_the_prompt_is_a_text_and_that_is_said(said, capsys):
    assert said(by_length) == [2.0, 5.0, 2.0, 5.0]
    assert "reward function of TRL" in capsys.readouterr().out


def test_it_gets_messages_where_the_prompt_column_is_messages(said):
    def first(completions, prompts, **kwargs):
        assert [p[-1]["role"] for p in prompts] == ["user"] * 4
        return [float(c[0]["content"] == "a0") for c in completions]

    assert said(first, prompt=ASKED) == [1.0, 0.0, 1.0, 0.0]


def test_it_gets_messages_where_the_cell_had_roles(lab):
    asked = [SystemMessage(role="system", content="Briefly."), UserMessage(role="user", content="Capital of Peru?")]
    lab_with(lab.store, ["Lima"], prompts=[NewGroup(asked, {})])
    lab.reward("capitals", lambda completions, prompts: [float(len(prompts[0])) for _ in completions])
    assert lab.collection("capitals").trajectories[0].reward == 2.0


def test_annotations_and_an_adapter_decide_before_the_form_of_the_prompt(lab, said):
    def annotated(completions: list[list[dict[str, str]]], **kwargs: Any) -> list[float]:
        return [float(message[0]["content"] == "a0") for message in completions]

    assert said(annotated) == [1.0, 0.0, 1.0, 0.0]
    assert said(trl_reward(lambda completions: [len(c[0]) for c in completions], conversational=True)) == [2.0] * 4
    assert said(trl_reward(by_length, conversational=False), prompt=ASKED) == [2.0, 5.0, 2.0, 5.0]


def test_columns_come_as_lists_and_prompt_is_not_one_of_them(said):
    def right(completions, capital, **others):
        assert set(others) == {"prompts", "country", "log_extra", "log_metric"}
        return [float(c == expected) for c, expected in zip(completions, capital, strict=True)]

    assert said(right, prompt="Capital of Peru?") == [1.0, 0.0, 1.0, 0.0]


def test_an_asynchronous_function_of_trl(said):
    async def right(prompts, completions, capital):
        await asyncio.sleep(0)
        return [float(c == x) for c, x in zip(completions, capital, strict=True)]

    assert said(right) == [1.0, 0.0, 1.0, 0.0]


def test_none_adds_nothing_and_other_functions_still_count(lab, said):
    def brief(completions, **kwargs):
        return [0.25 if len(c) < 3 else None for c in completions]

    def any_text(completions, **kwargs):
        return [1.0 for _ in completions]

    assert said([brief, any_text]) == [1.25, 1.0, 1.25, 1.0]
    assert components(lab)[:2] == [{"brief": 0.25, "any_text": 1.0}, {"any_text": 1.0}]


def test_where_no_function_applies_there_is_no_reward_and_the_others_are_kept(lab, said, capsys):
    assert said(lambda completions, **kwargs: [1.0, None, None, None]) == [1.0, None, None, None]
    assert "3 failed: NotApplicableError" in capsys.readouterr().out
    failures = lab.store.scorings.failures(lab.store.find("capitals"))
    assert {failure.error for failure in failures} == {"NotApplicableError"}


def test_functions_that_mostly_do_not_apply_stop_nothing(lab, collect, rewards):
    collect(10, 4)
    lab.reward("capitals", lambda completions, country: [1.0 if c == 9 else None for c in country])
    assert rewards() == [None] * 36 + [1.0] * 4


def test_numbers_logged_beside_a_reward_are_components_that_do_not_count(lab, said):
    def right(completions, capital, log_extra=None, log_metric=None):
        log_extra("letters", [len(c) for c in completions])
        log_extra("answer", [1.0 for _ in completions])
        log_extra("text", completions)
        log_metric("accuracy", 0.5)
        return [float(c == x) for c, x in zip(completions, capital, strict=True)]

    assert said(right) == [1.0, 0.0, 1.0, 0.0]
    assert components(lab)[0] == {"letters": 2.0, "answer_part": 1.0}


def test_token_ids_are_passed_where_the_service_gave_them(lab):
    ids = [{"token": "a", "token_id": i, "logprob": -0.5, "top_logprobs": []} for i in (7, 8)]
    lab_with(lab.store, [completion("Lima", logprobs={"content": ids})])
    lab.reward("capitals", lambda completion_ids, **kwargs: [float(sum(ids)) for ids in completion_ids])
    assert lab.collection("capitals").trajectories[0].reward == 15.0


def test_without_token_ids_the_error_says_what_to_type(said):
    with pytest.raises(RewardError, match="no token ids") as raised:
        said(lambda completion_ids, **kwargs: [0.0 for _ in completion_ids])
    assert raised.value.hint == "%logprobs capitals"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("trainer_state", "trainer_state=None in its parameters"),
        ("environments", "env = lab.environment(CLASS, reward_funcs=f), then %%chat NAME --env env"),
    ],
)
def test_what_only_a_trainer_has_is_refused_before_any_call(said, name, hint):
    function = eval(f"lambda completions, {name}: 1 / 0")
    with pytest.raises(InputError, match="only a trainer has") as raised:
        said(function)
    assert raised.value.hint == hint


def test_an_optional_trainer_state_keeps_its_default(said):
    assert said(lambda completions, trainer_state=None: [float(trainer_state is None)] * len(completions)) == [1.0] * 4


def test_an_unknown_parameter_lists_the_columns(said):
    with pytest.raises(InputError, match=r"'ground_truth', which is no column.*country, capital"):
        said(lambda completions, ground_truth: [])


def test_the_wrong_number_of_values_is_an_error(said):
    with pytest.raises(RewardError, match="list of 4 values, not 1 value"):
        said(lambda completions: [0.5])


def test_a_column_called_completions_is_a_column(said):
    assert said(lambda answer, completions: float(completions + len(answer)), completions=10) == [12.0, 15.0] * 2


def test_an_array_of_rewards_is_a_list(said):
    class Tensor:
        def tolist(self):
            return [0.0, 0.25, 0.5, 1.0]

    assert said(lambda completions: Tensor()) == [0.0, 0.25, 0.5, 1.0]


def test_an_object_with_a_call_is_a_function(said):
    class Length:
        __name__ = "length"

        def __call__(self, completions, **kwargs):
            return by_length(completions)

    assert said([Length()]) == [2.0, 5.0, 2.0, 5.0]


@pytest.mark.parametrize(
    "made",
    [
        lambda n: np.full(n, 0.5, dtype=np.float32),
        lambda n: [np.float32(0.5)] * n,
        lambda n: pd.Series([0.5] * n, index=range(7, 7 + n)),
        lambda n: (0.5 for _ in range(n)),
        lambda n: [Fraction(1, 2)] * n,
        lambda n: [np.array(0.5)] * n,
    ],
)
def test_values_of_trl_may_be_of_any_sequence_and_kind_of_number(said, made):
    assert said(lambda completions, **columns: made(len(completions))) == [0.5] * 4


@pytest.mark.parametrize("none", [None, math.nan, np.float32("nan")])
def test_nan_is_none_as_the_trainer_of_trl_has_it(lab, said, none):
    def some(completions, **columns):
        return [1.0, none, 2.0, none]

    assert said({"some": some, "by_length": by_length}) == [3.0, 5.0, 4.0, 5.0]
    assert [list(each) for each in components(lab)] == [["some", "by_length"], ["by_length"]] * 2
    array = trl_reward(lambda completions: np.array([1.0, none or math.nan, 2.0, 3.0]))
    assert said(array) == [1.0, None, 2.0, 3.0]


@pytest.mark.parametrize("outcome", [None, 1.0, np.array(1.0), {"reward": [1.0] * 4}, "1.0"])
def test_what_is_no_list_of_values_is_named(said, outcome):
    with pytest.raises(RewardError, match="a reward function of TRL must return a list of a value per completion, not"):
        said(lambda completions: outcome)


def test_a_logged_column_of_another_length_is_of_no_trajectory(lab, said):
    def logs(completions, log_extra, log_metric):
        log_extra("length", np.array([len(text) for text in completions]))
        log_extra("first", [1.0])
        log_extra("some", [None, 1, np.float32(2), "x"])
        log_metric("mean", np.float32(2))
        return [1.0] * len(completions)

    assert said(logs) == [1.0] * 4
    assert components(lab) == [{"length": 2}, {"length": 5, "some": 1}, {"length": 2, "some": 2}, {"length": 5}]


def test_token_ids_that_the_service_did_not_give_leave_a_default_in_place(said):
    def tokens(completions, completion_ids=None):
        return [float(completion_ids is None)] * len(completions)

    assert said(tokens) == [1.0] * 4


# verifiers


async def contains(completion, answer):
    return 1.0 if answer in completion[-1]["content"] else 0.0


def test_the_answer_of_verifiers_is_a_column(lab, said, capsys):
    assert said(verifiers_reward(contains), answer="a0") == [1.0, 0.0, 1.0, 0.0]
    assert "signature" not in capsys.readouterr().out  # the adapter names the library already
    assert said(verifiers_reward(contains, answer="capital")) == [1.0, 0.0, 1.0, 0.0]


def test_the_answers_of_another_column_give_other_rewards(lab, said):
    row = {"spanish": "a0", "german": "wrong"}
    assert said(verifiers_reward(contains, answer="spanish"), **row) == [1.0, 0.0, 1.0, 0.0]
    lab.reward("capitals", verifiers_reward(contains, answer="german"), say=pytest.fail)
    assert [t.reward for t in lab.collection("capitals").trajectories] == [0.0, 1.0, 0.0, 1.0]


def test_a_function_that_could_be_of_verifiers_is_not_guessed(said):
    with pytest.raises(InputError, match="which of them the function means") as raised:
        said(contains, answer="a0")
    assert "from rolloutlab.integrations.verifiers import reward; reward(f)" in raised.value.hint


def test_without_such_a_column_a_function_of_verifiers_is_no_comparison_of_the_completion_with_itself(lab, said):
    with pytest.raises(InputError, match="the right answer, and no column here") as raised:
        said(contains)
    assert raised.value.hint.startswith(
        'from rolloutlab.integrations.verifiers import reward; reward(f, answer="capital") for a column'
    )
    assert said(verifiers_reward(contains, answer="capital")) == [1.0, 0.0, 1.0, 0.0]


def test_without_such_a_column_a_function_of_trl_names_what_is_missing(said):
    with pytest.raises(InputError, match=r"'answer', which is no column; there are .*country, capital"):
        said(lambda completions, answer: [float(c == a) for c, a in zip(completions, answer, strict=True)])


def test_a_cell_of_completion_and_answer_has_both_of_the_trajectory(said):
    cell = RewardCell('return float(completion[-1]["content"] == answer)', {})
    assert said(cell, answer="other") == [1.0] * 4


def test_what_a_partial_gives_precedes_columns(lab, said):
    def trl(completions, capital, **columns):
        return [float(capital == "Lima" and columns["country"] == "Peru") for _ in completions]

    def rubric_like(completion, answer, country, **others):
        return float(country == "Peru" and completion[-1]["content"] == answer and "capital" in others)

    assert said(partial(trl, capital="Lima", country="Peru")) == [1.0] * 4
    assert said(verifiers_reward(partial(rubric_like, country="Peru"), answer="capital")) == [1.0, 0.0] * 2


@pytest.mark.parametrize("source", ["completion, state", "completion, answer, parser", "states", "prompts, infos"])
def test_parameters_that_only_verifiers_has_say_how_to_give_the_function(said, source):
    with pytest.raises(InputError) as raised:
        said(eval(f"lambda {source}: 0.0"))
    assert "from rolloutlab.integrations.verifiers import reward; reward(f)" in raised.value.hint


def test_a_missing_column_of_the_truth_says_how_to_name_it(lab, said):
    with pytest.raises(InputError, match="'answer', which is no column") as raised:
        said(verifiers_reward(contains))
    assert 'answer="capital"' in raised.value.hint


def test_all_that_a_rollout_has(lab, said):
    def state_of(prompt, completion, answer, info, task, state, country):
        assert prompt[0]["role"] == prompt[0].role == "user"
        assert completion[0].content in {"a0", "wrong"}
        assert (info, task, country) == ({"level": 3}, "default", 0)
        assert (state["answer"], state["info"], state["country"]) == ("a0", {"level": 3}, 0)
        return 0.5

    assert said(verifiers_reward(state_of), answer="a0", info='{"level": 3}') == [0.5] * 4


@pytest.fixture
def rubrics(monkeypatch):
    """A module `verifiers` with a Rubric of the real one's shape."""

    class Rubric:
        def __init__(self, funcs=(), weights=None, **objects):
            self.funcs, self.weights = list(funcs), weights or [1.0] * len(funcs)
            self.class_objects = objects

    class RubricGroup(Rubric):
        def __init__(self, rubrics):
            super().__init__()
            self.rubrics = rubrics

    Rubric.__module__ = RubricGroup.__module__ = "verifiers.rubrics.rubric"
    module = ModuleType("verifiers")
    module.Rubric, module.RubricGroup = Rubric, RubricGroup
    monkeypatch.setitem(sys.modules, "verifiers", module)
    return module


def test_a_rubric_is_taken_as_it_is_with_its_weights(lab, said, rubrics, capsys):
    def brief(completion, limit):
        return float(len(completion[-1]["content"]) < limit)

    def unweighted(state):
        return float(len(state["completion"]))

    rubric = rubrics.Rubric([contains, brief, unweighted], [1.0, 0.5, 0.0], limit=3)
    assert said(rubric, answer="a0") == [1.5, 0.0, 1.5, 0.0]
    assert "reward function of verifiers" in capsys.readouterr().out
    assert components(lab)[0] == {"contains": 1.0, "brief": 1.0, "unweighted": 1.0}


def test_functions_of_a_rubric_share_a_state_in_order(said, rubrics):
    def first(completion, state):
        state["length"] = len(completion[-1]["content"])
        return 0.0

    def second(state):
        return float(state["length"])

    assert said(rubrics.Rubric([first, second])) == [2.0, 5.0, 2.0, 5.0]


def test_a_function_of_all_rollouts_makes_the_rubric_one_of_groups(said, rubrics):
    async def diversity(completions) -> list[float]:
        texts = [c[-1]["content"] for c in completions]
        return [1 / texts.count(text) for text in texts]

    assert said(rubrics.Rubric([diversity, contains]), answer="a0") == [1.5, 0.5, 1.5, 0.5]


def test_a_group_of_rubrics_adds_up(said, rubrics):
    halves = [rubrics.Rubric([contains], [0.5]), rubrics.Rubric([contains], [0.25])]
    assert said(rubrics.RubricGroup(halves), answer="a0") == [0.75, 0.0, 0.75, 0.0]


def test_a_function_of_a_rubric_that_fails_is_a_failure_not_a_zero(lab, collect, rewards, rubrics, capsys):
    def fails_on_wrong(completion):
        return 1.0 if completion[-1]["content"] != "wrong" else {}["no"]

    collect(1, 4)
    lab.reward("capitals", rubrics.Rubric([fails_on_wrong]))
    assert rewards() == [1.0, None, 1.0, None]
    assert "2 failed: KeyError" in capsys.readouterr().out


def test_an_empty_rubric_is_refused(said, rubrics):
    with pytest.raises(InputError, match="no reward functions"):
        said(rubrics.Rubric())


def test_a_rubric_of_numbers_of_numpy_and_of_functions_without_a_name(lab, said, rubrics):
    class Half:
        def __call__(self, completion, **kwargs):
            return np.float32(0.5)

    def scaled(completion, by):
        return by

    assert said(rubrics.Rubric([Half(), partial(scaled, by=np.int64(2))], [np.float64(1), 0.5])) == [1.5] * 4
    assert components(lab)[0] == {"Half": 0.5, "scaled": 2.0}


def test_a_function_of_all_rollouts_without_a_value_for_one_fails_for_that_one(said, rubrics):
    def some(completions):
        return np.array([1.0, math.nan, 2.0, 3.0])

    def none_first(completions):
        return [None, 1.0, 1.0, 1.0]

    assert said(rubrics.Rubric([some, contains]), answer="a0") == [2.0, None, 3.0, 3.0]
    assert said(rubrics.Rubric([none_first, some], [1.0, 0.0])) == [None, None, 1.0, 1.0]


def test_a_function_of_all_rollouts_that_leaves_some_out_gives_no_zeros(said, rubrics):
    def few(completions):
        return [1.0]

    with pytest.raises(RewardError, match="few of the rubric returned 1 value for 4 rollouts"):
        said(rubrics.Rubric([few]))


def test_what_verifiers_0_4_has_in_place_of_rubrics_is_refused_plainly(lab, said):
    class Task:
        """As `verifiers.v1.Task`: its rewards are methods of it."""

        async def score(self, trace, runtime=None): ...

    Task.__module__ = "verifiers.v1.task"

    class Own(Task):
        """A task of a user, in a module of theirs."""

    def right(task, trace): ...

    right.reward, right.reward_priority, right._vf_weight = True, 0, 1.0  # as its decorator `reward` marks a function
    for wrong in (Own(), Own, right, {"right": right}, [right]):
        with pytest.raises(InputError, match=r"verifiers 0\.4 scores a Trace by methods of a Task") as refused:
            said(wrong)
        assert "'verifiers<0.4'" in refused.value.hint
    with pytest.raises(InputError, match=r"verifiers 0\.4 scores a Trace"):
        said(verifiers_reward(Own().score))


# ART


@pytest.fixture
def art(monkeypatch):
    """Modules `art` and `openai` with classes of the real ones' shapes."""

    @dataclass
    class Trajectory:
        messages_and_choices: list[Any]
        reward: float = 0.0
        metrics: dict[str, float] = field(default_factory=dict)
        metadata: dict[str, Any] = field(default_factory=dict)
        model_fields = {"messages_and_choices": None, "reward": None, "metrics": None, "metadata": None}

    @dataclass
    class TrajectoryGroup:
        trajectories: list[Trajectory]

    class SdkChoice(dict):
        model_validate = classmethod(lambda cls, value: cls(value))

    for kind in (Trajectory, TrajectoryGroup):
        kind.__module__ = "art.trajectories"
    module, openai = ModuleType("art"), ModuleType("openai.types.chat.chat_completion")
    module.Trajectory, module.TrajectoryGroup, openai.Choice = Trajectory, TrajectoryGroup, SdkChoice
    monkeypatch.setitem(sys.modules, "art", module)
    monkeypatch.setitem(sys.modules, openai.__name__, openai)
    return module


def last_text(trajectory) -> str:
    return trajectory.messages_and_choices[-1]["message"]["content"]


def test_a_function_of_an_art_trajectory_is_recognised_by_its_annotation(said, art, capsys):
    async def right(trajectory: art.Trajectory) -> float:
        return float(last_text(trajectory) == trajectory.metadata["capital"])

    assert said(right) == [1.0, 0.0, 1.0, 0.0]
    assert "reward function of ART" in capsys.readouterr().out


def test_a_function_of_art_sees_the_reward_of_now_each_time(lab, said, art):
    def more(trajectory: art.Trajectory) -> float:
        return trajectory.reward + 1.0

    assert said(more) == [1.0] * 4
    lab.reward("capitals", more, say=lambda line: pytest.fail(line) if "remembered" in line else None)
    assert [t.reward for t in lab.collection("capitals").trajectories] == [2.0] * 4


def test_an_annotation_may_be_a_text_and_the_result_a_trajectory_with_metrics(lab, said, art):
    def scored(trajectory: "art.Trajectory"):
        trajectory.reward, trajectory.metrics = 0.5, {"letters": len(last_text(trajectory))}
        return trajectory

    assert said(scored) == [0.5] * 4
    assert components(lab)[:2] == [{"letters": 2.0}, {"letters": 5.0}]


def test_a_function_of_a_group_of_art(said, art):
    async def ruler(group: art.TrajectoryGroup) -> art.TrajectoryGroup:
        for place, trajectory in enumerate(group.trajectories):
            trajectory.reward = place / 4
        return group

    assert said(ruler) == [0.0, 0.25, 0.5, 0.75]


def test_without_an_annotation_a_trajectory_is_the_labs_unless_the_adapter_says_so(lab, said, art):
    assert said(lambda trajectory: float(len(trajectory.answer))) == [2.0, 5.0, 2.0, 5.0]
    assert said(art_reward(lambda trajectory: float(len(last_text(trajectory))))) == [2.0, 5.0, 2.0, 5.0]


def test_the_log_of_scorings_has_the_style(lab, said):
    said(by_length)
    last = lab.store.scorings.last(lab.store.find("capitals"))
    assert last.style == "TRL"
    assert re.search(r"def by_length", last.code)


def scored_in(order):
    """A function of a group of ART that scores its members by place, and returns the group in another order."""

    def score(group: "art.TrajectoryGroup"):
        for place, trajectory in enumerate(group.trajectories):
            trajectory.reward = np.float32(place)
        group.trajectories = order(group.trajectories)
        return group

    return score


def test_members_of_a_group_of_art_keep_their_rewards_in_whatever_order_they_come_back(said, art):
    assert said(scored_in(lambda members: members[::-1])) == [0.0, 1.0, 2.0, 3.0]
    assert said(scored_in(lambda members: members[::2])) == [0.0, None, 2.0, None]
    assert said(scored_in(lambda members: [replace(each) for each in members])) == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(RewardError, match="must return a list of 4 values, not 2 values"):
        said(scored_in(lambda members: [replace(each) for each in members[:2]]))


def test_a_function_of_a_group_of_art_may_return_its_members_or_numbers(said, art):
    def members(group: art.TrajectoryGroup):
        for trajectory in group.trajectories:
            trajectory.reward = float(len(last_text(trajectory)))
        return sorted(group.trajectories, key=lambda trajectory: trajectory.reward)

    assert said(members) == [2.0, 5.0, 2.0, 5.0]

    def numbers(group: art.TrajectoryGroup):
        return np.arange(4, dtype=np.float32)

    assert said(numbers) == [0.0, 1.0, 2.0, 3.0]


def test_metrics_of_art_that_are_numbers_of_any_kind_are_components(lab, said, art):
    def scored(trajectory: art.Trajectory):
        trajectory.reward = np.float32(0.5)
        trajectory.metrics |= {"right": True, "steps": np.int64(3), "none": None, "nan": math.nan, "text": "x"}
        return trajectory

    assert said(scored) == [0.5] * 4
    assert components(lab)[0] == {"right": 1.0, "steps": 3.0}
