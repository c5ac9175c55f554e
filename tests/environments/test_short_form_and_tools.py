"""Environments as generator functions, and environments whose tools the policy calls."""

import json

import pytest


def call(name, _id="c", **arguments):
    """An answer that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": _id, "type": "function", "function": function}]}


GENERATORS = {
    "sync": "def env(row):\n  answer = yield 'first'\n  answer = yield Step(answer + '?', 0.5)\n  return len(answer)",
    "async": (
        "import asyncio\nasync def env(row):\n  answer = yield 'first'\n  await asyncio.sleep(0)\n"
        "  answer = yield Step(answer + '?', 0.5)\n  yield Step(None, len(answer), True)"
    ),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_function_is_an_environment(notebook, policy, kind):
    policy.answer = lambda messages: messages[-1]["content"] + "!"
    notebook.run(GENERATORS[kind])
    (found,) = notebook.run("%%chat talk --env env\n").trajectories
    assert [m["content"] for m in found.messages] == ["first", "first!", "first!?", "first!?!"]
    assert (found.turn_rewards, found.reward, found.episode_end) == ([0.5, 8.0], 8.5, "done")


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_that_is_not_played_to_its_end_is_closed(notebook, kind):
    keyword = kind.replace("sync", "") + ("sync " if kind == "async" else "")
    notebook.run(
        f"closed = []\n{keyword}def env(row):\n  try:\n    while True: yield 'again'\n  finally: closed.append(True)"
    )
    (found,) = notebook.run("%%chat talk --env env --max-turns 2\n").trajectories
    assert (found.episode_end, found.reward, notebook["closed"]) == ("max_turns", 0.0, [True])


def test_a_generator_function_may_take_the_seed_and_return_its_last_step(notebook):
    notebook.run(
        "def env(row, seed):\n  yield f'seed {seed}'\n  return Step('bye', 2, info={'tries': 1, 'note': 'short'})"
    )
    (found,) = notebook.run("%%chat talk --env env --seed 11\n").trajectories
    assert [m["content"] for m in found.messages] == ["seed 11", "yes", "bye"]
    assert found.extra["metrics"] == {"tries": 1, "turn_reward/0": 2.0, "env": 2.0}
    assert found.extra["metadata"]["note"] == "short"


SAFE = '''
class Safe:
    """A safe with two digits."""
    def __init__(self, row):
        self.code, self.tried = row["code"], []
        self.tools = [self.turn, self.look]
    def reset(self, seed): return "Open the safe."
    def turn(self, digit: int):
        """Turn the dial to a digit."""
        self.tried.append(digit)
        if digit > 9: raise ValueError("there are ten digits")
        return Step("open" if self.tried[-2:] == self.code else "click", 0.1, done=self.tried[-2:] == self.code)
    def look(self) -> dict:
        return {"tried": self.tried}
    def get_reward(self): return 1.0
'''
CHAT = "%%chat safe --over codes --env Safe\n"


@pytest.fixture
def robbing(notebook):
    notebook.run(SAFE)
    notebook.run('codes = [{"code": [1, 2]}]')
    return notebook


def test_calls_go_to_the_tools_of_the_environment_in_order(robbing, policy):
    calls = [call("turn", "a", digit=1), call("turn", "b", digit=2), call("look", "c")]
    together = {**calls[0], "tool_calls": [each["tool_calls"][0] for each in calls]}
    script = [call("look"), together]
    policy.answer = lambda messages: script[sum(m["role"] == "assistant" for m in messages)]
    found, _ = robbing.run(CHAT.replace("--env", "-n 2 --env")).trajectories
    assert [t["function"]["name"] for t in policy.taken[-1]["tools"]] == ["turn", "look"]
    results = [m["content"] for m in found.messages if m["role"] == "tool"]
    assert results == ['{"tried":[]}', "click", "open", "error: the episode has ended"]
    assert (found.turn_rewards, found.episode_end) == ([0.0, pytest.approx(0.2)], "done")
    assert found.reward == pytest.approx(1.2)
    assert [t["function"]["name"] for t in found.extra["tools"]] == ["turn", "look"]


def test_a_continued_episode_keeps_the_tools_of_its_environment_in_the_prompt(robbing, policy):
    script = [call("turn", digit=1), call("turn", digit=2)]
    policy.answer = lambda messages: script[n] if (n := sum(m["role"] == "assistant" for m in messages)) < 2 else "bye"
    robbing.run(CHAT)
    (found,) = robbing.run("%%chat safe --continue\nuser: Say bye.").trajectories
    assert found.answer == "bye"
    for tools in (policy.taken[-1]["tools"], found.extra["tools"]):
        assert [tool["function"]["name"] for tool in tools] == ["turn", "look"]


def test_an_answer_without_a_call_ends_an_episode_that_has_only_tools(robbing, policy):
    policy.answer = lambda messages: "I give up"
    (found,) = robbing.run(CHAT).trajectories
    assert (found.answer, found.episode_end, found.reward) == ("I give up", "done", 1.0)


def test_an_exception_in_a_tool_is_what_the_policy_reads(robbing, policy):
    policy.answer = lambda messages: call("turn", digit=10) if len(messages) < 3 else "stop"
    (found,) = robbing.run(CHAT).trajectories
    assert found.messages[2]["content"] == "error: ValueError: there are ten digits"
    assert found.extra["logs"] == ["turn failed: ValueError: there are ten digits"]
    policy.answer = lambda messages: call("turn", digit="one") if len(messages) < 3 else "stop"
    (found,) = robbing.run(CHAT).trajectories
    assert found.messages[2]["content"].startswith("error: ")


def test_an_unknown_tool_is_refused_and_the_episode_goes_on(robbing, policy):
    policy.answer = lambda messages: call("drill") if len(messages) < 3 else "stop"
    (found,) = robbing.run(CHAT).trajectories
    assert "there is no such tool" in found.messages[2]["content"]
    assert found.episode_end == "done"


def test_tools_of_the_cell_and_of_the_environment_are_offered_together(robbing, policy):
    policy.answer = lambda messages: call("hint", code="x") if len(messages) < 3 else "stop"
    robbing.run("def hint(code: str) -> str: return f'no {code}'")
    (found,) = robbing.run(CHAT.replace("--env", "--tools hint --env")).trajectories
    assert found.messages[2]["content"] == "no x"
    assert [t["function"]["name"] for t in found.extra["tools"]] == ["hint", "turn", "look"]
    robbing.run("def turn(digit: int) -> str: return ''")
    assert "both have 'turn'" in robbing.error(CHAT.replace("--env", "--tools turn --env"))


def test_a_tool_that_hangs_ends_its_episode(robbing, policy):
    robbing.run("import threading\nreleased = threading.Event()\nclass Safe(Safe):\n  def look(self): released.wait()")
    policy.answer = lambda messages: call("look")
    (found,) = robbing.run(CHAT.replace("--env", "--env-timeout 0.2 --env")).trajectories
    robbing["released"].set()
    assert (found.episode_end, found.reward) == ("timeout", None)


def test_calls_and_steps_of_an_instance_come_from_one_thread(notebook, policy):
    """As sqlite3 and browsers demand."""
    notebook.run("""
import threading
class Threads:
    def __init__(self, row): self.all, self.tools = {threading.get_ident()}, [self.look]
    def note(self): self.all.add(threading.get_ident())
    def reset(self, seed):
        self.note()
        return "go"
    def look(self):
        self.note()
        return "seen"
    def step(self, answer):
        self.note()
        return Step(None, len(self.all), True)
    def close(self): self.note()
""")
    policy.answer = lambda messages: call("look") if len(messages) < 2 else "done"
    assert [t.reward for t in notebook.run("%%chat t -n 3 --env Threads\n").trajectories] == [1.0] * 3


def test_an_async_environment_lives_on_one_loop_that_runs_between_its_turns(notebook, policy):
    notebook.run("""
import asyncio
class Pinged:
    def __init__(self, row): self.loop, self.pings = asyncio.get_running_loop(), 0
    async def ping(self):
        while True:
            self.pings += 1
            await asyncio.sleep(0.001)
    async def reset(self, seed):
        self.task = asyncio.create_task(self.ping())
        return "go"
    async def step(self, answer):
        same = asyncio.get_running_loop() is self.loop
        return Step("on", self.pings * same, self.pings > 20)
""")
    (found,) = notebook.run("%%chat t --env Pinged --max-turns 1000\n").trajectories
    assert found.episode_end == "done"
    assert found.turn_rewards == sorted(found.turn_rewards)
