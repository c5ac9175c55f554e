"""What people write by habit or for other packages: it works, or the message says what to type."""

from pathlib import Path

import pytest

CHAT = "%%chat games --limit 2 --env Game\n"
GAME = """
class Game:
    def __init__(self, row): pass
    def reset(self, seed): return "go"
    def step(self, answer): return Step(None, 1.0, done=True)
"""
ENDED = "step(self, answer): return Step(None, 1.0, done=True)"


@pytest.mark.parametrize(
    "code",
    [
        "import dataclasses\n@dataclasses.dataclass\nclass Game:\n  row: dict\n  def reset(self, seed): return 'go'\n"
        f"  def {ENDED}",
        "Game = (lambda Made: lambda row: Made(row))(Game)",
        "import functools\nclass Made(Game):\n  def __init__(self, row, *, hard): assert hard\n"
        "Game = functools.partial(Made, hard=True)",
        "Made = Game\nasync def Game(row): return Made(row)",
        "class Game(Game):\n  async def later(self): return Step(None, 1.0, done=True)\n"
        "  def step(self, answer): return self.later()",
        "import asyncio\nclass Game(Game):\n  def step(self, answer):\n"
        "    return asyncio.run(asyncio.sleep(0, Step(None, 1.0, True)))",
        "import subprocess, sys\nclass Game(Game):\n  def step(self, answer):\n"
        "    done = subprocess.run([sys.executable, '-Sc', 'print(1)'], capture_output=True)\n"
        "    return Step(None, float(done.stdout), True)",
        "import threading\nclass Game(Game):\n  def step(self, answer):\n    out = []\n"
        "    thread = threading.Thread(target=out.append, args=(1.0,))\n    thread.start()\n    thread.join()\n"
        "    return Step(None, out[0], True)",
        "import numpy\nclass Game(Game):\n  def step(self, answer):\n"
        "    return Step(None, numpy.float32(1), numpy.bool_(True), {'n': numpy.int64(3), 'board': numpy.zeros(9)})",
        "import tqdm\nclass Game(Game):\n  def step(self, answer):\n"
        "    return Step(None, float(len(list(tqdm.tqdm([1])))), True, {'self': self, 'f': lambda: 1})",
        "class Game(Game):\n  def reset(self, seed, options=None): return 'go'",
        "class Game(Game):\n  __slots__ = ()\n  def __reduce__(self): raise TypeError('cannot pickle')",
        "class Game(Game):\n  def step(self, answer): return (None, 1.0, True)",
        "class Game(Game):\n  def step(self, answer): return (None, 1.0, True, {'truncated': False})",
        "def Game(row, seed):\n  import random\n  random.seed(seed)\n  yield 'go'\n  return 1.0",
        "def Game(row):\n  yield Step('go')\n  yield Step(None, 1.0, True)\n  raise AssertionError('it has ended')",
        "class Game(Game):\n  def close(self): raise SystemExit",
    ],
)
def test_it_works(notebook, code):
    notebook.run(GAME)
    notebook.run(code)
    collection = notebook.run(CHAT)
    assert [(t.reward, t.episode_end) for t in collection.trajectories] == [(1.0, "done")] * 2


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (f"class Game:\n  def reset(self, seed): return 'go'\n  def {ENDED}", "-> def __init__(self, row)"),
        (f"class Game:\n  def reset(self): return 'go'\n  def {ENDED}", "-> def __init__(self, row)"),
        ("class Game(Game):\n  def reset(self): return 'go'", "-> def reset(self, seed)"),
        ("class Game(Game):\n  def reset(self, *, seed=None, options=None): return 'go'", "-> def reset(self, seed)"),
        ("class Game(Game):\n  def reset(self, seed, options): return 'go'", "-> def reset(self, seed)"),
        ("class Game(Game):\n  def reset(self, seed): return 'go', {}", "not a tuple\n  -> the first of its values"),
        ("class Game(Game):\n  def reset(self, seed): return len(3)", "object of type 'int' has no len() (line 2)"),
        ("class Game(Game):\n  def tools(self): return []", "-> self.tools = [self.look, self.move]"),
        ("def Game(row):\n  return 1.0\n  yield", "Game ended before its first observation\n  -> answer = yield 'the"),
        ("async def Game(row):\n  return\n  yield", "Game ended before its first observation\n  -> answer = yield"),
        ("def Game(row): return 'go'", "Game made a str, which has no reset\n  -> def reset(self, seed)"),
        ("Made = Game\ndef Game(row): return (step for step in 'ab')", "Game made a generator, which has no reset"),
        ("class Game(Game):\n  def reset(self, seed): raise ValueError('\x1b[2J\u202e')", "ValueError: ␛[2J⟨202e⟩"),
        ("Game = Game({})", "this is one Game, and each rollout needs its own\n  -> --env Game"),
    ],
)
def test_the_error_says_what_to_type(notebook, code, problem):
    notebook.run(GAME)
    notebook.run(code)
    error = notebook.error(CHAT)
    assert problem in error
    assert "\x1b" not in error
    assert notebook.lab.store.collections() == []


def foreign(package, body):
    """A class of a package of that name, which is not installed."""
    return f"Base = type('Base', (), {{'__module__': '{package}.envs'}})\nclass Game(Base):\n{body}"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (
            foreign(
                "tinker_cookbook.rl",
                "  async def initial_observation(self): return [1, 2], ['\\n']\n"
                "  async def step(self, action): return None",
            ),
            "Game has no reset\n  -> a class with reset(seed) and step(answer) around it: docs/environments.md",
        ),
        (
            foreign("verifiers", "  async def rollout(self, client, model): return {}") + "\nGame = Game()",
            "a Game is not an environment\n  -> rolloutlab capture NAME --sessions",
        ),
        (
            foreign("verifiers", "  async def rollout(self, client, model): return {}")
            + "\nMade = Game\ndef Game(**options): return Made()",
            "Game made a Game, which has no reset\n  -> rolloutlab capture NAME --sessions",
        ),
        (
            foreign("gymnasium", "  def reset(self, *, seed=None, options=None): return 0, {}") + "\nGame = Game()",
            "this is one Game, and each rollout needs its own\n  -> a class with reset(seed) and step(answer)",
        ),
        (
            foreign("gymnasium", "  def reset(self, *, seed=None, options=None): return 0, {}\n"
            "  def step(self, action): return 0, 1.0, True, False, {}"),
            "Game is an environment of Gymnasium, whose step takes an action of its action_space, not a text\n"
            "  -> a class with reset(seed) and step(answer) around Game: docs/environments.md",
        ),
        (
            foreign("gym.core", "  metadata = {'render_modes': ['human', 'ansi']}\n"
            "  def __init__(self, row=None): pass\n  def reset(self, seed=None, options=None): return 0, {}"),
            "-> gymnasium.register('Game-v0', Game), then --env gymnasium:Game-v0",
        ),
        (
            foreign("gymnasium", "  def reset(self, *, seed=None, options=None): return 0, {}")
            + "\nMade = Game\ndef Game(row): return Made()",
            "Game is an environment of Gymnasium, whose step takes an action",
        ),
        (
            foreign("openenv.core", "  def reset(self, seed=None, episode_id=None, **kwargs): return self\n"
            "  def step(self, action): return self\n  state = None") + "\nGame = Game()",
            "this is one Game, and each rollout needs its own\n  -> openenv:URL",
        ),
        (
            foreign("openenv.core", "  def reset(self, seed=None, episode_id=None, **kwargs): return self\n"
            "  def step(self, action): return self\n  state = None"),
            "Game() takes no arguments\n  -> def __init__(self, row)",
        ),
        (
            "class Game:\n  def reset(self): return 'go'\n  def look(self) -> str: return ''",
            "Game.reset: it does not take the row: got an unexpected keyword argument 'item'\n"
            "  -> def reset(self, **row)",
        ),
    ],
)  # fmt: skip
def test_an_environment_of_another_package_is_answered_with_the_way_to_use_it(notebook, code, problem):
    notebook.run(code)
    assert problem in notebook.error("%%chat games --over range(2) --env Game\nuser: go")


MESSAGE_ENV = """
from types import SimpleNamespace
class MyMessageEnv:
    'As of tinker-cookbook: a step returns all messages.'
    def __init__(self, problem):
        self.all = [{"role": "system", "content": "Count."}, {"role": "user", "content": problem}]
    async def initial_observation(self): return self.all
    async def step(self, message):
        done = len(self.all) > 3
        self.all += [message] if done else [message, {"role": "user", "content": "and?"}]
        return SimpleNamespace(next_messages=self.all, reward=0.5, episode_done=done, metrics={"length": len(self.all)})
"""


def test_a_message_env_of_tinker_is_played_by_the_class_of_the_documentation(notebook):
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    notebook.run(MESSAGE_ENV)
    notebook.run(page.partition("### Other protocols")[2].partition("```python\n")[2].partition("```")[0])
    notebook.run("rows = [{'problem': 'One?'}]")
    (played,) = notebook.run("%%chat counted --over rows --env Wrapped\n").trajectories
    assert [message["content"] for message in played.messages] == ["Count.", "One?", "yes", "and?", "yes"]
    assert (played.reward, played.episode_end, played.extra["metrics"]["length"]) == (1.0, "done", 5)


def test_messages_with_images_are_sent_as_they_are(notebook, policy):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    notebook.run(GAME)
    notebook.run(f"""
class Game(Game):
    def reset(self, seed):
        return [{{"role": "user", "content": [{{"type": "text", "text": "What is it?"}}, {image}]}}]
""")
    (first, _) = notebook.run(CHAT).trajectories
    assert policy.taken[-1]["messages"][0]["content"][1] == image
    assert (first.reward, first.prompt) == (1.0, "What is it?")


def test_a_result_of_a_tool_that_no_policy_can_read_ends_the_episode(notebook, policy):
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": "c", "type": "function", "function": function}]
    policy.answer = lambda messages: {"role": "assistant", "content": None, "tool_calls": calls}
    notebook.run(GAME)
    for result, problem in [
        ("'a' * 2_000_000", "Game.look: a result of 2,000,000 characters is longer than 1,000,000 (cut it short)"),
        ("circle", "Game.look: a list that cannot be read: ValueError"),
        ("Step(3, float('nan'))", "Game.look: the reward is nan"),
    ]:
        notebook.run("circle = []\ncircle.append(circle)\nclass Game(Game):\n  def __init__(self, row):\n"
                     f"    self.tools = [self.look]\n  def look(self): return {result}")  # fmt: skip
        (first, _) = notebook.run(CHAT).trajectories
        assert first.episode_end == "error"
        assert problem in first.extra["logs"][-1]


def test_what_is_drawn_by_random_is_drawn_as_it_was(notebook):
    """The generator of the process is everybody's: an environment that seeds it changes the draws of other cells."""
    notebook.run(GAME)
    notebook.run("import random\nclass Game(Game):\n  def reset(self, seed): return str(random.Random(seed).random())")
    first, second = notebook.run(CHAT.replace("--env", "--seed 3 --env")).trajectories
    again, _ = notebook.run(CHAT.replace("--env", "--seed 3 --env")).trajectories
    assert first.prompt == again.prompt != second.prompt
