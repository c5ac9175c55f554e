"""Classes written for TRL's `environment_factory`: no row, `reset` by keywords, public methods as tools."""

from functools import partial

import pytest

from rolloutlab.errors import InputError
from rolloutlab.session import Session
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


# As TRL's guide to OpenEnv has them: the reward is an attribute, which a reward function reads


ECHO = """
class Echo:
    def __init__(self):
        self.reward = 0.0
    def reset(self, **kwargs) -> str | None:
        self.reward = 0.0
        return "Echo something."
    def echo(self, message: str) -> str:
        '''Echo the message back.

        Args:
            message: the message to echo
        '''
        self.reward += 0.1 * len(message)
        return message

def reward_func(environments, **kwargs):
    return [environment.reward for environment in environments]
"""


def echo(message):
    function = {"name": "echo", "arguments": f'{{"message": "{message}"}}'}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


@pytest.fixture
def echoing(notebook, policy):  # noqa: F811
    policy.answer = lambda messages: "done" if any(m["role"] == "tool" for m in messages) else echo("hello")
    notebook.run(ECHO)
    notebook.shell.user_ns["lab"] = Session  # lab.environment needs no lab
    notebook.run("echoes = [{'prompt': [{'role': 'user', 'content': 'Go.'}], 'weight': 2.0}]")
    return notebook


def test_an_environment_without_a_reward_leaves_it_empty_and_says_what_to_write(echoing, capsys):
    played = echoing.run("%%chat echoed --over echoes --env Echo\n").trajectories[0]
    assert played.reward is None
    assert played.components == {}
    assert not [name for name in played.metrics if "reward" in name or name == "env"]
    assert played.episode_end == "done"
    assert "1 episode of Echo ended without a reward" in capsys.readouterr().out


def test_its_reward_functions_are_called_with_the_environment_at_the_end(echoing, capsys):
    echoing.run("env = lab.environment(Echo, reward_funcs=reward_func)")
    played = echoing.run("%%chat echoed --over echoes --env env\n").trajectories[0]
    assert played.reward == pytest.approx(0.5)
    assert played.metrics["env"] == pytest.approx(0.5)
    assert "without a reward" not in capsys.readouterr().out
    assert len(echoing.run("%%chat echoed --resume --env env\n").trajectories) == 1


FUNCTIONS = """
seen = []

async def last(prompts, completions, environments, weight, log_extra, trainer_state=None, **others):
    seen.append((prompts, completions, weight))
    return [w * float(c[-1]["content"] == "done") for c, w in zip(completions, weight)]

def none(completions):
    return [None]
"""


def test_reward_functions_get_prompts_completions_and_columns_and_add_up(echoing):
    echoing.run(FUNCTIONS)
    echoing.run("env = lab.environment(Echo, reward_funcs=[reward_func, last, none])")
    played = echoing.run("%%chat echoed --over echoes --env env\n").trajectories[0]
    assert played.reward == pytest.approx(2.5)
    ((prompts, completions, weight),) = echoing["seen"]
    assert prompts == [[{"role": "user", "content": "Go.Echo something."}]]
    called, result, done = completions[0]
    assert called["tool_calls"][0]["function"] == {"name": "echo", "arguments": {"message": "hello"}}
    assert (called["content"], result["content"], done["content"], weight) == ("", "hello", "done", [2.0])


def test_a_reward_of_the_environment_and_of_functions_add_up(counting):
    counting.shell.user_ns["lab"] = Session
    counting.run("def value(environments, **kwargs): return [10.0 * env.value for env in environments]")
    counting.run("env = lab.environment(Counter, reward_funcs=[value])")
    assert counting.run("%%chat counted --over rows --env env\n").trajectories[0].reward == 77.0


def test_where_no_reward_function_applies_there_is_no_reward(echoing):
    echoing.run(FUNCTIONS)
    echoing.run("env = lab.environment(Echo, reward_funcs=[none])")
    assert echoing.run("%%chat echoed --over echoes --env env\n").trajectories[0].reward is None


@pytest.mark.parametrize("function", ["lambda environments: [1.0, 2.0]", "lambda environments: 1 / 0", "lambda: ['x']"])
def test_a_reward_function_that_fails_ends_its_episode_without_a_reward(echoing, function):
    echoing.run(f"env = lab.environment(Echo, reward_funcs={function})")
    played = echoing.run("%%chat echoed --over echoes --env env\n").trajectories[0]
    assert (played.reward, played.episode_end) == (None, "error")
    assert "reward_funcs" in played.extra["logs"][-1]


def test_a_model_as_a_reward_function_is_refused(echoing):
    with pytest.raises(InputError, match="'org/reward-model' is not a reward function"):
        echoing.run("env = lab.environment(Echo, reward_funcs='org/reward-model')")


TOOLS_ALONE = """
class Alone:
    def __init__(self, row): self.tools = [self.look]
    def reset(self, seed): return "go"
    def look(self) -> str:
        "Look around."
        return GIVEN
"""


@pytest.mark.parametrize(
    ("given", "reward"), [("'a wall'", None), ("Step('a wall', 0.5)", 0.5), ("Step('a wall')", 0.0)]
)
def test_tools_alone_give_a_reward_only_with_a_step(notebook, policy, given, reward):  # noqa: F811
    function = {"name": "look", "arguments": "{}"}
    looks = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    policy.answer = lambda messages: "done" if any(m["role"] == "tool" for m in messages) else looks
    notebook.run(TOOLS_ALONE.replace("GIVEN", given))
    assert notebook.run("%%chat alone --env Alone\n").trajectories[0].reward == reward
