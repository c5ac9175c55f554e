"""Environments that fail, hang or return nonsense: each harms its own rollout alone, and says what was wrong."""

import asyncio
import os
import signal
import threading
import time

import pytest

from rolloutlab.environments.thread import EnvironmentThread

GAME = '''
import asyncio, threading, time
closed, made = [], []
class Odd(dict):
    def items(self): raise RuntimeError("odd")
class Game:
    """Two turns; `row["item"]` 1 is the one that does something wrong."""
    def __init__(self, row):
        self.bad, self.turns = row["item"] == 1, 0
        made.append(row["item"])
        if self.bad: self.at("__init__")
    def at(self, place): pass
    def reset(self, seed):
        if self.bad: self.at("reset")
        return "begin"
    def step(self, answer):
        self.turns += 1
        if self.bad and self.turns == 2: return self.wrong()
        return Step("go on", 0.25, done=self.turns == 2)
    def wrong(self): return Step(None, 0.25, True)
    def get_reward(self):
        if self.bad: self.at("get_reward")
        return 1
    def close(self):
        closed.append(self.bad)
        if self.bad: self.at("close")
'''
CHAT = "%%chat games --over range(3) --env Game\n"
HANGS = CHAT.replace("--env Game", "--env Game --env-timeout 1")


@pytest.fixture
def playing(notebook):
    notebook.run(GAME)
    return notebook


def ends(collection):
    return [t.episode_end for t in collection.trajectories]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("raise ValueError('no such move')", "Game.step raised ValueError: no such move (line 3)"),
        ("raise StopIteration", "Game.step raised StopIteration (line 3)"),
        ("raise SystemExit(1)", "Game.step raised SystemExit: 1 (line 3)"),
        ("raise KeyboardInterrupt", "Game.step raised KeyboardInterrupt (line 3)"),
        ("raise asyncio.CancelledError", "Game.step raised CancelledError (line 3)"),
        ("raise Exception('\\ud800')", "Game.step raised Exception: ? (line 3)"),
        ("return None", "Game.step: a NoneType is no Step (return Step(observation, reward, done))"),
        ("return 3", "Game.step: a int is no Step"),
        ("return 'text'", "Game.step: a str is no Step"),
        ("return {'observation': 'a', 'reward': 1}", "Game.step: a dict is no Step"),
        (
            "return ('a', 1, False, False, {})",
            "Game.step: a tuple of 5 is no Step (return Step(observation, reward, terminated or truncated, info))",
        ),
        ("return ('a', 1, False, False)", "Game.step: info is a bool, and has to be a dict"),
        ("import numpy; return Step('a', 1, numpy.array([True, False]))", "that cannot be read: ValueError"),
        ("import numpy; return Step('a', numpy.zeros(2))", "the reward is array([0., 0.]), which is no finite number"),
        ("return Step('a', 10**5000)", "the reward is a int, which is no finite number"),
        ("return Step('a', 1, False, Odd())", "a Step that cannot be read: RuntimeError"),
        ("def deeper(): return deeper()\n    return deeper()", "Game.step raised RecursionError: maximum recursion"),
        ("raise ValueError('\x1b[2J\u202e')", "Game.step raised ValueError: ␛[2J⟨202e⟩ (line 3)"),
        ("return ('a', 1)", "Game.step: a tuple of 2 is no Step"),
        ("return Step('a', float('nan'))", "Game.step: the reward is nan, which is no finite number"),
        ("return Step('a', None)", "Game.step: the reward is None"),
        ("return Step('a', '1')", "Game.step: the reward is '1'"),
        ("return Step('a', 1, 'no')", "Game.step: done is 'no', which is neither True nor False"),
        ("return Step(3, 1)", "an observation is a text or a list of messages, not a int"),
        ("return Step([3], 1)", "an observation is a text or a list of messages, not a list"),
        ("return Step([{'role': 'king', 'content': 'a'}], 1)", "an observation is no list of messages"),
        (
            "return Step(None, 1)",
            "an episode that goes on needs an observation (Step(None, ",
        ),
        ("return Step([{'role': 'user', 'content': object()}], 1)", "an observation is no JSON"),
        ("return Step('', 1)", "an episode that goes on needs an observation"),
        ("return Step('a' * 2_000_000)", "longer than 1,000,000 (cut it short)"),
        ("return Step('a', 1, False, 3)", "info is a int, and has to be a dict"),
        ("return Step(None, 1e308, True)", ""),
    ],
)
def test_a_wrong_step_ends_its_rollout_alone(playing, wrong, problem):
    playing.run(f"class Game(Game):\n  def wrong(self):\n    {wrong}")
    collection = playing.run(CHAT)
    bad = collection.trajectories[1]
    if not problem:
        assert bad.reward == pytest.approx(1e308)
        return
    assert ends(collection) == ["done", "error", "done"]
    assert [t.reward for t in collection.trajectories] == [1.5, None, 1.5]
    assert problem in bad.extra["logs"][-1]
    assert bad.turn_rewards == [0.25, None]
    assert sorted(playing["closed"]) == [False, False, True]


def test_text_that_utf_8_cannot_encode_is_replaced(playing):
    info = "{'n\\ud800': 'v\\ud800', 'x': float('nan')}"
    playing.run(f"class Game(Game):\n  def wrong(self): return Step('a\\ud800b', True, True, {info})")
    bad = playing.run(CHAT).trajectories[1]
    assert bad.messages[-1]["content"] == "a?b"
    assert (bad.turn_rewards, bad.extra["metadata"]["n?"]) == ([0.25, 1.0], "v?")
    assert "x" not in bad.extra["metrics"]


def test_an_info_cannot_fill_the_lab(playing):
    info = "{'env': 9, 'turn_reward/0': 9, **{f'{i}' * 999: 'x' * 9999 for i in range(999)}}"
    playing.run(f"class Game(Game):\n  def wrong(self): return Step('x', 1, True, {info})")
    bad = playing.run(CHAT).trajectories[1]
    assert (bad.reward, bad.turn_rewards) == (2.25, [0.25, 1.0])
    assert len(str(bad.extra)) < 100_000


@pytest.mark.parametrize("place", ["__init__", "reset", "get_reward", "close"])
def test_an_exception_anywhere_else_harms_its_rollout_alone(playing, place):
    playing.run(f"class Game(Game):\n  def at(self, place):\n    if place == {place!r}: raise KeyError('x')")
    collection = playing.run(CHAT)
    assert ends(collection) == ["done", "done" if place == "close" else "error", "done"]
    if place != "close":
        assert f"ended: Game.{place} raised KeyError: 'x' (line 3)" in collection.trajectories[1].extra["logs"]
    assert playing["closed"].count(True) == (0 if place == "__init__" else 1)


def test_an_infinite_reward_at_the_end_says_where_it_is_from(playing):
    playing.run("class Game(Game):\n  def get_reward(self): return float('inf') if self.bad else 1")
    collection = playing.run(CHAT)
    assert ends(collection) == ["done", "error", "done"]
    wrong = "Game.get_reward: the reward is inf, which is no finite number (return a number such as 0.5)"
    assert collection.trajectories[1].extra["logs"] == [f"ended: {wrong}"]


@pytest.mark.parametrize("place", ["__init__", "reset", "get_reward", "close"])
def test_a_call_that_hangs_is_left_behind(playing, place):
    playing.run(
        f"released = threading.Event()\nclass Game(Game):\n  def at(self, place):\n"
        f"    if place == {place!r}: released.wait()"
    )
    collection = playing.run(HANGS)
    playing["released"].set()
    assert ends(collection) == ["done", "done" if place == "close" else "timeout", "done"]
    if place != "close":
        (log,) = collection.trajectories[1].extra["logs"]
        assert log == f"ended: Game.{place} took longer than 1 s (--env-timeout SECONDS)"


def test_a_loop_that_never_ends_is_ended_with_its_thread(playing):
    playing.run("class Game(Game):\n  def wrong(self):\n    while True: pass")
    assert ends(playing.run(HANGS)) == ["done", "timeout", "done"]
    assert sorted(playing["closed"]) == [False, False, True]
    assert_ended()


def test_a_loop_that_never_ends_in_a_coroutine_is_ended_with_its_thread(playing):
    playing.run("""
class Game:
    def __init__(self, row): self.bad = row["item"] == 1
    async def reset(self, seed): return "begin"
    async def step(self, answer):
        while self.bad: pass
        return Step(None, 1, True)
    async def close(self): closed.append(self.bad)
""")
    assert ends(playing.run(HANGS)) == ["done", "timeout", "done"]
    assert sorted(playing["closed"]) == [False, False, True]
    assert_ended()


def assert_ended():
    """No thread of an environment lives on."""
    left = [thread for thread in threading.enumerate() if thread.name == "rolloutlab-environment"]
    for thread in left:
        thread.join(timeout=240)
    assert not any(thread.is_alive() for thread in left)


def test_the_end_of_a_thread_waits_for_what_the_environment_left_running(playing, monkeypatch):
    """Also where the thread is told twice to end, the second time in the middle of its end."""
    end, calls, ending, told = EnvironmentThread.end, [], threading.Event(), threading.Event()

    def end_twice(thread):
        assert not calls or ending.wait(240)
        end(thread)
        calls.append(thread)
        if len(calls) == 2:
            told.set()

    monkeypatch.setattr(EnvironmentThread, "end", end_twice)
    playing.shell.user_ns.update(ending=ending, told=told)
    playing.run("""
class Game:
    def __init__(self, row): pass
    async def watch(self):
        try: await asyncio.sleep(60)
        finally:
            ending.set()
            assert told.wait(240)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            closed.append("watched")
    async def reset(self, seed):
        self.task = asyncio.create_task(self.watch())
        return "begin"
    async def step(self, answer): return Step(None, 1, True)
""")
    assert ends(playing.run("%%chat games --env Game\n")) == ["done"]
    assert_ended()
    assert playing["closed"] == ["watched"]


def test_an_environment_that_stops_its_own_loop_goes_on(playing):
    playing.run("""
class Game:
    def __init__(self, row): pass
    async def watch(self):
        try: await asyncio.sleep(60)
        finally:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0)
            closed.append("watched")
    async def reset(self, seed):
        self.task = asyncio.create_task(self.watch())
        return "begin"
    async def step(self, answer):
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return Step(None, 1, True)
""")
    (found,) = playing.run("%%chat games --env Game\n").trajectories
    assert (found.episode_end, found.reward) == ("done", 1.0)
    assert_ended()
    assert playing["closed"] == ["watched"]


def test_a_coroutine_that_will_not_be_cancelled_is_closed_beside_and_says_nothing_more(playing, capfd):
    playing.run("""
class Game:
    def __init__(self, row): self.bad = row["item"] == 1
    async def reset(self, seed): return "begin"
    async def step(self, answer):
        while self.bad:
            try: await asyncio.sleep(60)
            except asyncio.CancelledError: pass
        return Step(None, 1, True)
    async def close(self): closed.append(self.bad)
""")
    assert ends(playing.run(HANGS)) == ["done", "timeout", "done"]
    assert sorted(playing["closed"]) == [False, False, True]
    assert "Traceback" not in capfd.readouterr().err


def test_an_instance_that_is_made_too_late_is_closed_then(playing):
    playing.run("""
released, late = threading.Event(), threading.Event()
class Game(Game):
    def at(self, place):
        if place == "__init__": released.wait()
    def close(self):
        super().close()
        if self.bad: late.set()
""")
    assert ends(playing.run(HANGS)) == ["done", "timeout", "done"]
    playing["released"].set()
    assert playing["late"].wait(240)


def test_an_interrupt_does_not_wait_for_instances_that_are_being_made(playing):
    playing.run("""
import os, signal
released, late = threading.Event(), threading.Event()
class Game(Game):
    def at(self, place):
        if place == "__init__":
            os.kill(os.getpid(), signal.SIGINT)
            released.wait()
    def close(self):
        super().close()
        if self.bad: late.set()
""")
    began = time.monotonic()
    cell = CHAT.replace("--env Game", "--env Game --env-timeout 600")
    error = playing.shell.run_cell(cell, store_history=False).error_in_exec
    assert isinstance(error, KeyboardInterrupt)
    assert time.monotonic() - began < 300, "it waited for the time-out"
    assert playing["closed"].count(False) == playing["made"].count(0) + playing["made"].count(2)
    playing["released"].set()
    assert playing["late"].wait(240)


def test_properties_that_hang_or_fail_are_calls_as_others(playing):
    playing.run("""
released = threading.Event()
class Game(Game):
    @property
    def tools(self):
        if self.bad: released.wait()
        return []
""")
    assert ends(playing.run(HANGS)) == ["done", "timeout", "done"]
    playing["released"].set()
    playing.run("class Game(Game):\n  @property\n  def get_reward(self):\n    if self.bad: raise OSError('gone')")
    collection = playing.run(CHAT)
    assert ends(collection) == ["done", "error", "done"]
    assert "Game.__init__ raised OSError: gone" in collection.trajectories[1].extra["logs"][-1]


def test_each_instance_has_a_row_of_its_own(playing):
    playing.run("class Game(Game):\n  def __init__(self, row): super().__init__({'item': row['deep'].pop()})")
    playing.run("rows = [{'deep': [0]}]")
    collection = playing.run("%%chat games -n 4 --over rows --env Game\n")
    assert ends(collection) == ["done"] * 4
    assert [t.row for t in collection.trajectories] == [{"deep": [0]}] * 4


def test_a_hung_step_is_closed_while_it_hangs(playing):
    playing.run("released = threading.Event()\nclass Game(Game):\n  def wrong(self): released.wait()")
    collection = playing.run(HANGS)
    assert ends(collection) == ["done", "timeout", "done"]
    assert sorted(playing["closed"]) == [False, False, True]
    playing["released"].set()


def test_a_hung_coroutine_is_cancelled(playing):
    playing.run("""
cancelled = []
class Game:
    def __init__(self, row): self.bad = row["item"] == 1
    async def reset(self, seed):
        await asyncio.sleep(0)
        return "begin"
    async def step(self, answer):
        try:
            await asyncio.sleep(100 if self.bad else 0)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return Step(None, 1, True)
    async def close(self): closed.append(self.bad)
""")
    collection = playing.run(HANGS)
    assert ends(collection) == ["done", "timeout", "done"]
    assert playing["cancelled"] == [True]
    assert sorted(playing["closed"]) == [False, False, True]


def test_a_coroutine_that_blocks_its_loop_blocks_no_other(playing):
    playing.run("""
released = threading.Event()
class Game:
    def __init__(self, row): self.bad = row["item"] == 1
    async def reset(self, seed): return "begin"
    async def step(self, answer):
        if self.bad: released.wait()
        return Step(None, 1, True)
""")
    assert ends(playing.run(HANGS)) == ["done", "timeout", "done"]
    playing["released"].set()


@pytest.mark.parametrize("rows", [3, 30])
def test_an_environment_that_never_begins_stops_the_cell_and_stores_nothing(playing, rows):
    playing.run("class Game(Game):\n  def reset(self, seed): return self.nothing")
    error = playing.error(CHAT.replace("range(3)", f"range({rows})") + "system: go")
    assert error.startswith("EpisodeError: Game.reset raised AttributeError: 'Game' object has no attribute 'nothing'")
    assert playing.lab.store.collections() == []
    assert len(playing["closed"]) == len(playing["made"])


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("class Game:\n  def __init__(self, row): pass", "Game has no reset"),
        ("class Game:\n  def __init__(self, row): pass\n  def reset(self, seed): return 'a'", "neither step nor tools"),
        ("def Game(row): return 3", "Game made a int, which has no reset"),
        ("class Game(Game):\n  def reset(self, seed): pass", "Game.reset gave no observation"),
        ("class Game(Game):\n  def reset(self): pass", "Game.reset raised TypeError"),
        ("class Game(Game):\n  def __init__(self): pass", "Game.__init__ raised TypeError"),
        ("class Game(Game):\n  tools = [3]", "tools: a int is not a function with a name"),
    ],
)
def test_what_is_no_environment_is_said_before_anything_is_sampled(playing, policy, code, problem):
    playing.run(code)
    policy.taken.clear()
    error = playing.error(CHAT)
    assert problem in error
    assert policy.taken == []


def test_an_interrupt_closes_every_instance_and_a_resume_plays_the_rest(playing, policy):
    """It comes while the second answers of all are under way."""
    waiting = []

    async def gate(messages):
        if len(messages) > 2:
            waiting.append(messages)
            if len(waiting) == 3:
                os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()

    policy.gate = gate
    playing.run("class Game(Game):\n  def __init__(self, row): super().__init__({'item': 0})")
    error = playing.shell.run_cell(CHAT, store_history=False).error_in_exec
    assert isinstance(error, KeyboardInterrupt)
    assert "%%chat games:1 --resume --env Game samples the other 3" in "".join(error._render_traceback_())
    assert playing["closed"] == [False] * 3
    policy.gate = None
    asked = len(policy.taken)
    collection = playing.run("%%chat games:1 --resume --env Game")
    assert ends(collection) == ["done"] * 3
    assert [t.reward for t in collection.trajectories] == [1.5] * 3
    assert len(policy.taken) - asked == 3
