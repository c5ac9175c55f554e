"""What earlier comparisons have sampled, found again by what it was sampled from."""

from collections.abc import Sequence
from typing import Any

import pytest

from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.sampling.config import SamplingConfig
from rolloutlab.sampling.plan import plan_again
from rolloutlab.sampling.tools import Tools
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, NewGroup, Score
from rolloutlab.store.scorings import NewScoring
from rolloutlab.training.compare import find_samples
from tests.labs import without_logprobs

NAME = "compare.capitals.lab.practice.step3"
PLAN = SamplingConfig(model="lab/practice@3", n=2, seed=7, total=4, checkpoint="7d1f@3")


def asked(*texts: str) -> list[NewGroup]:
    return [NewGroup([UserMessage(role="user", content=text)], {"text": text}) for text in texts]


FRANCE, PERU, CHAD = asked("France", "Peru", "Chad")


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.close()


def sampled(lab: Lab, groups: Sequence[NewGroup] = (FRANCE, PERU), plan: SamplingConfig = PLAN, **arrival: Any):
    """An earlier comparison's collection, in which each completion is its prompt and its position."""
    collection = lab.open_collection(NAME, plan.model_dump(mode="json", exclude_defaults=True))
    for group in lab.add_groups(collection, groups):
        arrivals = [Arrival(i, [without_logprobs(f"{group.row['text']} {i}")], **arrival) for i in range(plan.n)]
        lab.put(group, arrivals, model=plan.model, step=3, sampling=plan.sampling())
    return lab.collection(f"{NAME}:{collection.generation}")


def answers(lab, collection):
    return [[t.answer for t in group.trajectories] for group in lab.groups(collection)]


def test_the_same_prompts_of_the_same_checkpoint_are_that_generation_itself(lab):
    earlier = sampled(lab)
    assert find_samples(lab, NAME, PLAN.model_copy(update={"step": 3}), [FRANCE, PERU], unscored=True).id == earlier.id


@pytest.mark.parametrize(
    "changed",
    [
        {"checkpoint": "51c2@3"},
        {"checkpoint": None},
        {"seed": 8},
        {"n": 3},
        {"temperature": 0.5},
        {"stop": ["."]},
        {"max_turns": 2},
        {"env": "Game"},
        {"code": {"env": "0f"}},
        {"topped_up": {0: 4}},
    ],
)
def test_nothing_is_taken_from_another_checkpoint_or_other_settings(lab, changed):
    sampled(lab)
    assert find_samples(lab, NAME, PLAN.model_copy(update=changed), [FRANCE, PERU], unscored=False) is None


@pytest.mark.parametrize("plan", [{}, {"model": "lab/practice@3", "temperature": 3.0}])
def test_a_generation_that_was_imported_or_is_of_another_version_is_passed_over(lab, plan):
    earlier = sampled(lab)
    lab.open_collection(NAME, plan)
    assert find_samples(lab, NAME, PLAN, [FRANCE, PERU], unscored=False).id == earlier.id


@pytest.mark.parametrize("groups", [[PERU, FRANCE], [CHAD], [NewGroup(FRANCE.prompt, {})]])
def test_a_prompt_in_another_place_has_other_seeds_and_another_row_is_another_prompt(lab, groups):
    sampled(lab)
    assert find_samples(lab, NAME, PLAN, groups, unscored=False) is None


def test_a_longer_script_is_another_conversation(lab):
    sampled(lab)
    further = NewGroup(FRANCE.prompt, FRANCE.row, ((), PERU.prompt))
    assert find_samples(lab, NAME, PLAN, [further, PERU], unscored=False).generation == 2


def test_groups_of_several_generations_are_put_together_and_the_rest_is_missing(lab):
    sampled(lab, [FRANCE, CHAD])
    sampled(lab, [PERU, PERU])
    plan = PLAN.model_copy(update={"total": 6})
    made = find_samples(lab, NAME, plan, [FRANCE, PERU, CHAD], unscored=True)
    assert answers(lab, made) == [["France 0", "France 1"], ["Peru 0", "Peru 1"], []]
    assert lab.collection(f"{NAME}:{made.generation}").missing == 2
    copied = lab.groups(made)[0].trajectories[0]
    assert (copied.step, copied.model, copied.row) == (3, "lab/practice@3", {"text": "France"})
    assert find_samples(lab, NAME, plan, [FRANCE, PERU, CHAD], unscored=True).id == made.id


def test_fewer_prompts_are_a_generation_of_their_own(lab):
    sampled(lab)
    made = find_samples(lab, NAME, PLAN.model_copy(update={"total": 2}), [FRANCE], unscored=True)
    assert (made.generation, answers(lab, made)) == (2, [["France 0", "France 1"]])
    assert lab.collection(f"{NAME}:2").missing == 0


def test_rewards_of_an_environment_are_copied_and_those_of_a_function_are_not(lab):
    given = sampled(lab, components={"environment": 0.5})
    first = lab.groups(given)[0].trajectories[0]
    lab.rewards.give([Score(first, 1.0)], "function")
    made = find_samples(lab, NAME, PLAN, [FRANCE], unscored=False)
    assert [t.reward for t in lab.groups(made)[0].trajectories] == [None, 0.5]


def test_without_functions_what_functions_have_scored_is_not_taken(lab):
    earlier = sampled(lab, components={"environment": 0.5})
    lab.scorings.begin(earlier, NewScoring("function", ["brief"], "", {}))
    assert find_samples(lab, NAME, PLAN, [FRANCE, PERU], unscored=True) is None
    assert find_samples(lab, NAME, PLAN, [FRANCE, PERU], unscored=False).id == earlier.id


def test_a_deleted_generation_is_not_taken(lab):
    sampled(lab)
    lab.lifecycle.delete(NAME)
    assert find_samples(lab, NAME, PLAN, [FRANCE, PERU], unscored=False) is None


def test_of_a_program_whose_prompts_are_its_own_rows_are_compared(lab):
    plan = PLAN.model_copy(update={"program": "solve"})
    earlier = sampled(lab, [NewGroup((), FRANCE.row)], plan)
    lab.fit_prompt(lab.groups(earlier)[0], FRANCE.prompt)
    assert find_samples(lab, NAME, plan, [NewGroup((), FRANCE.row)], unscored=True).id == earlier.id
    more = find_samples(lab, NAME, plan, [NewGroup((), FRANCE.row), NewGroup((), PERU.row)], unscored=True)
    assert [group.prompt for group in lab.groups(more)] == [lab.groups(earlier)[0].prompt, ()]


@pytest.mark.parametrize(("unscored", "rewards"), [(True, [1.0, None]), (False, [None, None])])
def test_rewards_of_a_program_are_copied_unless_functions_score_the_comparison(lab, unscored, rewards):
    plan = PLAN.model_copy(update={"program": "solve"})
    earlier = sampled(lab, [NewGroup((), FRANCE.row)], plan)
    lab.rewards.give([Score(lab.groups(earlier)[0].trajectories[0], 1.0)], "function")
    more = find_samples(lab, NAME, plan, [NewGroup((), FRANCE.row), NewGroup((), PERU.row)], unscored=unscored)
    assert [t.reward for t in lab.groups(more)[0].trajectories] == rewards


def test_a_tool_of_other_code_is_another_setting(lab):
    def add(a: int, b: int) -> int:
        return a + b

    def subtract(a: int, b: int) -> int:
        return a - b

    subtract.__name__ = "add"
    schemas = Tools([add]).schemas
    plans = []
    for tool in (add, add, subtract):
        plan = {**PLAN.model_dump(mode="json", exclude_defaults=True), "tools": [each.to_wire() for each in schemas]}
        collection = lab.open_collection("sums", plan)
        lab.add_groups(collection, [FRANCE])
        again = plan_again(lab, "sums", NAME, "lab/practice@3", None, {}, None, Tools([tool]))
        plans.append(again.plan)
    assert plans[0] == plans[1] != plans[2]
