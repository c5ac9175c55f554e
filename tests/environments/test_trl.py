"""Classes written for TRL's `environment_factory`: no row, `reset` by keywords, public methods as tools."""

from functools import partial

import pytest

from tests.environments.conftest import notebook, policy  # noqa: F401  # fixtures
from tests.magics.conftest import bare  # noqa: F401

COUNTER = """
class Counter:
    def reset(self, start=0, **kwargs) -> str | None:
        self.value = start
        return f" It begins at {start}."
    def add(self, amount: int) -> int:
        '''Add to the counter.

        Args:
            amount: what to add
        '''
        if amount < 0:
            raise ValueError("negative")
        self.value += amount
        return self.value
    def get_reward(self) -> float:
        return float(self.value)
    def _hidden(self): ...
"""
ROWS = (
    """rows = [{"prompt": [{"role": "system", "content": "Count."}, {"role": "user", "content": "Go."}], "start": 5}]"""
)


def call(amount):
    function = {"name": "add", "arguments": f'{{"amount": {amount}}}'}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


@pytest.fixture
def counting(notebook, policy):  # noqa: F811
    script = [call(2), call(-1), "done"]
    policy.answer = lambda messages: script[sum(m["role"] == "assistant" for m in messages)]
    notebook.run(COUNTER)
    notebook.run(ROWS)
    return notebook


def test_a_prompt_of_content_parts_gets_one_more_and_close_is_no_tool(counting, policy):  # noqa: F811
    counting.run("closed = []\nCounter.close = lambda self: closed.append(1)")
    counting.run("rows[0]['prompt'][1]['content'] = [{'type': 'text', 'text': 'Go.'}]")
    counting.run("%%chat counted --over rows --env Counter\n")
    part = {"type": "text", "text": " It begins at 5."}
    assert policy.taken[0]["messages"][1]["content"] == [{"type": "text", "text": "Go."}, part]
    assert [tool["function"]["name"] for tool in policy.taken[0]["tools"]] == ["add"]
    assert counting["closed"] == [1]


def test_rows_are_its_keywords_and_its_text_follows_the_prompt(counting, policy):  # noqa: F811
    played = counting.run("%%chat counted --over rows --env Counter\n").trajectories[0]
    assert [message.get("content") for message in played.messages] == [
        "Count.", "Go. It begins at 5.", None, "7", None, "error: ValueError: negative", "done",
    ]  # fmt: skip
    (tool,) = policy.taken[0]["tools"]
    assert tool["function"]["name"] == "add"
    assert tool["function"]["parameters"]["properties"]["amount"]["description"] == "what to add"


def test_its_reward_is_that_of_the_episode_which_an_answer_without_a_call_ends(counting):
    played = counting.run("%%chat counted --over rows --env Counter\n").trajectories[0]
    assert (played.reward, played.extra["metadata"]["episode_end"]) == (7.0, "done")


def test_a_partial_is_a_factory_too_and_the_cell_may_hold_the_prompt(counting):
    counting.shell.user_ns["Partial"] = partial(counting["Counter"])
    played = counting.run("%%chat counted --env Partial\nuser: Count up.").trajectories[0]
    assert [message.get("content") for message in played.messages][:2] == ["Count up.", " It begins at 0."]


OWN = """
class Own:
    def __init__(self, row): ...
    def reset(self, seed): return "go"
    def step(self, answer): return Step(None, 1.0, done=True)
"""


def test_a_class_with_a_row_and_a_seed_is_no_factory_of_trl(counting):
    counting.run(OWN)
    assert counting.run("%%chat own --env Own\n").trajectories[0].reward == 1.0


def test_a_function_without_a_row_may_make_environments_of_our_own(counting):
    counting.run(OWN)
    counting.run("def made(): return Own({})")
    assert counting.run("%%chat own --env made\n").trajectories[0].reward == 1.0
