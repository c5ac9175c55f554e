"""Reward functions of `openpipe-art`: of its trajectories and groups of trajectories, as its own classes have them."""

import os

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else litellm asks for prices on the network

import art
from openai.types.chat.chat_completion import Choice as SdkChoice

from rolloutlab.api.wire.chat import Choice, UserMessage
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.store.models import Arrival, NewGroup

pytestmark = pytest.mark.filterwarnings("default")  # these libraries warn as they please


@pytest.fixture
def lab(tmp_path):
    """A lab with one group: two answers and a tool call."""
    session = Session(Settings(home=tmp_path))
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    messages = [{"content": "Lima"}, {"content": "Cusco"}, {"content": None, "tool_calls": [call]}]
    raw = [{"finish_reason": "stop", "index": 0, "message": {"role": "assistant", **each}} for each in messages]
    prompt = NewGroup([UserMessage(role="user", content="Capital of Peru?")], {"capital": "Lima"})
    (group,) = session.store.add_groups(session.store.open_collection("c"), [prompt])
    arrivals = [Arrival(i, [Choice.model_validate(each)]) for i, each in enumerate(raw)]
    session.store.put(group, arrivals, model="m", step=0, sampling={})
    yield session
    session.close()


def rewards(lab):
    return [t.reward for t in lab.collection("c").trajectories]


def test_a_function_of_a_trajectory_reads_messages_choices_and_metadata(lab):
    async def right(trajectory: art.Trajectory) -> float:
        assert isinstance(trajectory.messages_and_choices[-1], SdkChoice)
        return float(trajectory.messages()[-1]["content"] == trajectory.metadata["capital"])

    lab.reward("c", right)
    assert rewards(lab) == [1.0, 0.0, 0.0]


def test_a_trajectory_comes_back_with_reward_and_metrics(lab):
    async def scored(trajectory: art.Trajectory) -> art.Trajectory:
        trajectory.reward = 0.25
        trajectory.metrics["calls"] = len(trajectory.messages()[-1].get("tool_calls") or [])
        return trajectory

    lab.reward("c", scored)
    assert rewards(lab) == [0.25] * 3
    assert [dict(t.components) for t in lab.collection("c").trajectories] == [{"calls": n} for n in (0.0, 0.0, 1.0)]


def test_a_function_of_a_group_scores_its_trajectories_together(lab):
    async def by_place(group: art.TrajectoryGroup) -> art.TrajectoryGroup:
        for place, trajectory in enumerate(group):
            trajectory.reward = place / 2
        return group

    lab.reward("c", by_place)
    assert rewards(lab) == [0.0, 0.5, 1.0]
