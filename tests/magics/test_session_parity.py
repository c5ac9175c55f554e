"""Every magic is one documented call: a notebook can become a script by writing `lab.NAME(...)` for `%NAME ...`."""

import inspect
import keyword
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from IPython.core.interactiveshell import InteractiveShell

from rolloutlab.magics import register
from rolloutlab.magics.base import LabMagics
from rolloutlab.runs.view import RunView
from rolloutlab.search.dictionary import parse
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.training.job import Job
from rolloutlab.trajectories.branch import Branch
from rolloutlab.trajectories.collection import Collection

CALLS = {
    "%%chat\nuser: hi": 'lab.chat("chat", "user: hi\\n", variables=globals())',
    "%%chat x -n 2 --stop ; --stop '\\n' --seed 1\nuser: hi": (
        'lab.chat("x", "user: hi\\n", n=2, stop=[";", "\\n"], seed=1, variables=globals())'
    ),
    "%%chat x --over rows[:1] --system 'Be brief.' -m lab/x@1\nuser: {{a}}": (
        'lab.chat("x", "user: {{a}}\\n", over=rows[:1], system="Be brief.", model="lab/x@1", variables=globals())'
    ),
    "%%chat x --over rows --limit 1 --prompt-column a\n": (
        'lab.chat("x", "\\n", over=rows, limit=1, prompt_column="a", variables=globals())'
    ),
    "%%chat x --temperature 0 --top-p 0.5 --max-tokens 9\nuser: hi": (
        'lab.chat("x", "user: hi\\n", temperature=0.0, top_p=0.5, max_tokens=9, variables=globals())'
    ),
    "%%chat x --tools add,upper --max-turns 3 --concurrency 4\nuser: hi": (
        'lab.chat("x", "user: hi\\n", tools=[add, upper], max_turns=3, concurrency=4, variables=globals())'
    ),
    "%%chat x --over rows --env Game --env-timeout 5\n": (
        'lab.chat("x", "\\n", over=rows, env=Game, env_timeout=5.0, variables=globals())'
    ),
    "%%chat x --env textarena:Bandit-v0 --limit 4\nsystem: Play.": (
        'lab.chat("x", "system: Play.\\n", env="textarena:Bandit-v0", limit=4, variables=globals())'
    ),
    "%%chat x -n 2 --max-tokens 9\n": 'lab.chat("x", "\\n", n=2, max_tokens=9, variables=globals())',
    "%%chat x --resume --env Game": 'lab.resume("x", env=Game)',
    "%%chat x --continue --seed 2 --model lab/y\nuser: and?": (
        'lab.continue_chat("x", "user: and?\\n", seed=2, model="lab/y", variables=globals())'
    ),
    "%%chat x --resume --concurrency 3 --tools add": 'lab.resume("x", concurrency=3, tools=[add])',
    "%%chat x -n 2 --max-tokens 9 --budget 2.5\nuser: hi": (
        'lab.chat("x", "user: hi\\n", n=2, max_tokens=9, budget=2.5, variables=globals())'
    ),
    "%%chat x --resume --budget 2": 'lab.resume("x", budget=2.0)',
    "%%chat x --top-up": 'lab.top_up("x", 2.0)',
    "%%chat x --top-up 3 --env Game --tools add --concurrency 3 --budget 2": (
        'lab.top_up("x", 3.0, env=Game, tools=[add], concurrency=3, budget=2.0)'
    ),
    "%%chat x --top-up --dry-run": 'lab.preview("x", top_up=2.0)',
    "%%chat x --resume --dry-run": 'lab.preview("x", resume=True)',
    "%%chat x --continue --dry-run\nuser: and?": (
        'lab.preview("x", "user: and?\\n", continue_chat=True, variables=globals())'
    ),
    "%%chat x --dry-run -n 4 --over rows\nuser: {{a}}": (
        'lab.preview("x", "user: {{a}}\\n", n=4, over=rows, variables=globals())'
    ),
    "%%rollout x -n 2 --over rows --limit 1 -m lab/x --seed 1 --with upper": (
        'lab.rollouts("x", upper, n=2, over=rows, limit=1, model="lab/x", seed=1)'
    ),
    "%%rollout x --with add --temperature 1 --top-p .5 --max-tokens 9 --concurrency 4 --timeout 9 --budget 2": (
        'lab.rollouts("x", add, temperature=1.0, top_p=0.5, max_tokens=9, concurrency=4, timeout=9.0, budget=2.0)'
    ),
    "%%rollout x --with add --resume": 'lab.resume("x", program=add)',
    "%%rollout x --with add --top-up 3 --concurrency 3": 'lab.top_up("x", 3.0, program=add, concurrency=3)',
    "%%reward x\nreturn 0.5": 'lab.reward("x", Returns(0.5), {})',
    "%%reward x --with add,upper --weight add=2 --weight upper=.5 --overwrite": (
        'lab.reward("x", {"add": add, "upper": upper}, {"add": 2.0, "upper": 0.5}, overwrite=True)'
    ),
    "%%reward x --with add --concurrency 8 --timeout 2.5 --retries 1 --processes 2 --no-cache": (
        'lab.reward("x", {"add": add}, {}, concurrency=8, timeout=2.5, retries=1, processes=2, cache=False)'
    ),
    "%%reward x --with add --cache": 'lab.reward("x", {"add": add}, {}, cache=True)',
    "%%reward x --judge lab/judge --no-cache\n": (
        'lab.judge("x", "\\n", model="lab/judge", variables=globals(), cache=False)'
    ),
    "%%reward x --resume": 'lab.reward("x", None, {}, resume=True)',
    "%%reward x --dry-run\nreturn 0.5": 'lab.reward("x", Returns(0.5), {}, dry_run=True)',
    "%%reward x --with add\nreturn 2": 'lab.reward("x", {"add": add, "cell": Returns(2)}, {})',
    "%%reward x --grader g.json": 'lab.reward("x", lab.grader("g.json"), {})',
    '%%reward x --grader\n{"type": 1}': 'lab.reward("x", lab.grader(\'{"type": 1}\\n\'), {})',
    "%%reward x --judge lab/judge --samples 3 --overwrite\nShort is best.": (
        'lab.judge("x", "Short is best.\\n", model="lab/judge", samples=3, overwrite=True, variables=globals())'
    ),
    "%%reward x --judge lab/judge --max-tokens 99 --budget 2\n": (
        'lab.judge("x", "\\n", model="lab/judge", max_tokens=99, budget=2.0, variables=globals())'
    ),
    "%%reward x --with add --budget 2": 'lab.reward("x", {"add": add}, {}, budget=2.0)',
    "%%reward x --judge lab/judge\n": 'lab.judge("x", "\\n", model="lab/judge", variables=globals())',
    "%rewards x": 'lab.rewards("x")',
    "%rewards x --undo": 'lab.collection("x").undo_rewards(); lab.rewards("x")',
    "%rewards x 'cap*'": 'lab.rewards(["x", "cap*"])',
    "%rewards x --from 'my labels.csv'": 'lab.collection("x").update_rewards_from("my labels.csv"); lab.rewards("x")',
    "%rewards x --history": 'lab.collection("x").reward_history()',
    "%%train x": 'lab.train(["x"], {})',
    "%%train x 'cap*' --no-wait\nlearning_rate: 2e-3  # large\nppo: False": (
        'lab.train(["x", "cap*"], {"learning_rate": 2e-3, "ppo": False}, wait=False)'
    ),
    "%%train x --dry-run\nepsilon: .3": 'lab.check(["x"], {"epsilon": 0.3})',
    "%%train x --form\nkimi_k2_tau: 0.1": 'lab.train_form(["x"], {"kimi_k2_tau": 0.1})',
    "%%train x --budget 5": 'lab.train(["x"], {}, budget=5.0)',
    "%%train x --wait": 'lab.train(["x"], {}, wait=True)',
    "%%train x y.jsonl --sft\nbatch_size: 8": 'lab.train(["x", "y.jsonl"], {"batch_size": 8}, wait=True, sft=True)',
    '%%train x --sft --where "reward > 0.9" --dry-run': 'lab.check(["x"], {}, sft=True, where="reward > 0.9")',
    "%jobs": "lab.jobs()",
    "%jobs -n 41": "lab.jobs(41)",
    "%job": "lab.job().events()",
    "%job 01ab --wait": 'lab.job("01ab").wait()',
    "%job 01ab --cancel": 'job = lab.job("01ab"); job.cancel(); job.events()',
    "%compare x --before 1 -n 2 --over rows --concurrency 5": (
        'lab.compare("x", before=1, n=2, over=rows, concurrency=5, variables=globals())'
    ),
    "%compare x --before 1 --after 3 --tools add -m lab/y": (
        'lab.compare("x", before=1, after=3, tools=[add], model="lab/y", variables=globals())'
    ),
    "%compare x lab/y@0 lab/y@3 5 --over rows": (
        'lab.compare("x", checkpoints=["lab/y@0", "lab/y@3", "5"], over=rows, variables=globals())'
    ),
    "%compare lab/x@2 lab/y --over rows": (
        'lab.compare(checkpoints=["lab/x@2", "lab/y"], over=rows, variables=globals())'
    ),
    "%compare x --before lab/x@2 --after lab/y@1": (
        'lab.compare("x", before="lab/x@2", after="lab/y@1", variables=globals())'
    ),
    "%%compare x 0 1\nreturn 1": 'lab.compare("x", Returns(1), checkpoints=["0", "1"], variables=globals())',
    "%compare x --env Game": 'lab.compare("x", env=Game, variables=globals())',
    "%%compare x --env Game\nreturn 1": 'lab.compare("x", Returns(1), env=Game, variables=globals())',
    "%compare x --over rows --anytime": 'lab.compare("x", over=rows, anytime=True, variables=globals())',
    "%compare x lab/y lab/z --best": (
        'lab.compare("x", checkpoints=["lab/y", "lab/z"], best=True, variables=globals())'
    ),
    "%compare x --bounds -1 1": 'lab.compare("x", bounds=(-1.0, 1.0), variables=globals())',
    "%%compare x --after latest\nreturn 1": 'lab.compare("x", Returns(1), variables=globals())',
    "%collections --all": "lab.collections(all=True)",
    "%collections 'cap*'": 'lab.collections("cap*")',
    "%collections --delete x:1": 'lab.delete("x:1"); lab.collections()',
    "%collections --restore x:1": 'lab.restore("x:1"); lab.collections()',
    "%collections --rename x y": 'lab.rename("x", "y"); lab.collections()',
    "%group x/0": 'lab.collection("x/0")',
    "%group x/0 --rank 2,0=3,1": 'lab.collection("x/0").rank([2, [0, 3], 1])',
    "%connect": "lab.connect()",
    "%connect https://a.example --inference https://b.example --key-env KEY --project a/b": (
        'lab.connect("https://a.example", inference="https://b.example", key_env="KEY", project="a/b")'
    ),
    "%connect http://10.0.0.5 --key-env KEY --insecure-http": (
        'lab.connect("http://10.0.0.5", key_env="KEY", insecure_http=True)'
    ),
    "%connect https://a.example --key-keyring": 'lab.connect("https://a.example", key_keyring=True)',
    "%connect --search http://127.0.0.1:9/x --key-env KEY": (
        'lab.connect(search="http://127.0.0.1:9/x", key_env="KEY")'
    ),
    "%model": "lab.model()",
    "%model lab/x --base lab/practice": 'lab.model("lab/x", base="lab/practice")',
    "%model lab/x --from lab/practice@2": 'lab.model("lab/x", start="lab/practice@2")',
    "%runs": "lab.runs()",
    "%runs lab/x --note good --tag keep --untag old": 'lab.runs("lab/x").write("good", ["keep"], ["old"])',
    "%runs lab/x --csv x.csv": 'lab.runs("lab/x").to_csv("x.csv")',
    "%runs lab/x --report-to wandb": 'lab.runs("lab/x").send(["wandb"])',
    "%models": "lab.models.list(); lab.models.lost()",
    "%models --delete lab/x@3": 'lab.models.delete("lab/x@3"); lab.models.list(); lab.models.lost()',
    "%models --recover": "lab.models.recover(); lab.models.list(); lab.models.lost()",
    "%models --purge": "lab.models.purge(); lab.models.list(); lab.models.lost()",
    "%export x y out.jsonl": 'lab.files.export(["x", "y"], "out.jsonl")',
    "%export x out.jsonl --format openai --best --min-reward .5 --overwrite": (
        'lab.files.export(["x"], "out.jsonl", "openai", best=True, min_reward=0.5, overwrite=True)'
    ),
    "%export lab/x@1 --to 'my folder' --merged --push me/x --overwrite": (
        'lab.models.export("lab/x@1", "my folder", merged=True, push="me/x", overwrite=True)'
    ),
    "%export @1 --to best": 'lab.models.export("@1", "best")',
    "%import in.jsonl": 'lab.files.import_("in.jsonl")',
    "%import 'in.jsonl' x --format art --logprobs": 'lab.files.import_("in.jsonl", "x", "art", logprobs=True)',
    "%logprobs x -m lab/y": 'lab.files.logprobs("x", "lab/y")',
    "%search 'in French' --where 'reward < 0.5' --group-by collection,model --best 2 -k 5 --offset 1": (
        'lab.search("in French", where="reward < 0.5", group_by="collection,model", best=2, k=5, offset=1)'
    ),
    "%search --rank \"field('reward')\" --select reward,step --into found": (
        'lab.search(None, rank="field(\'reward\')", select="reward,step", into="found")'
    ),
    '%%search --into found\n{"where": {"reward": 1}}': 'lab.search(parse({"where": {"reward": 1}}), into="found")',
    "%search --embed-with upper": "lab.index.embed_with(upper, None, None)",
    "%search 'in French' --embed-with none": 'lab.index.embed_with(None, None, None); lab.search("in French")',
    "%search --embed-with http://10.0.0.5/v1 --model small --insecure-http": (
        'lab.index.embed_with("http://10.0.0.5/v1", "small", None, insecure_http=True)'
    ),
    "%search --embed-with https://a.example/v1 --model small --key-env KEY": (
        'lab.index.embed_with("https://a.example/v1", "small", "KEY")'
    ),
    "%search French --all": 'lab.search("French", all=True)',
    "%search --status": "lab.index.status()",
    "%search --reindex": "lab.index.rebuild()",
    "%branch letters:1/0/3 --turn 1 --as again": 'lab.branch("letters:1/0/3", 1).cell("again")',
    "%%chat x --tools docs,docs.find\nuser: hi": (
        'lab.chat("x", "user: hi\\n", tools=["docs", "docs.find"], variables=globals())'
    ),
    "%login https://a.example/mcp --keep --paste --issuer https://b.example": (
        'lab.login("https://a.example/mcp", keep=True, paste=True, issuer="https://b.example")'
    ),
    "%login --client-id me --secret-env KEY --redirect-port 8765 --dangerously-without-pkce": (
        'lab.login(client_id="me", secret_env="KEY", redirect_port=8765, dangerously_without_pkce=True)'
    ),
    "%login embedded": 'lab.login("embedded")',
    "%whoami": "lab.whoami()",
    "%logout": "lab.logout()",
    "%logout https://a.example/mcp": 'lab.logout("https://a.example/mcp")',
    "%tools": "lab.tools.list()",
    "%tools docs": 'lab.tools.list("docs")',
    "%tools add https://a.example/mcp": 'lab.tools.add("https://a.example/mcp")',
    "%tools add https://a.example/mcp as docs": 'lab.tools.add("https://a.example/mcp", "docs")',
    '%tools call docs.find {"query": "the river Seine"}': 'lab.tools.call("docs.find", query="the river Seine")',
    "%service": "lab.service()",
    "%service log": 'lab.service("log")',
}
"""What is typed, and what a script would say instead."""

RETURNED = {Session.job: Job, Session.branch: Branch, Session.collection: Collection, Session.runs: RunView}
"""What some calls return, which has calls of its own."""
NAMESPACES = get_type_hints(Session)
"""The parts of a session with calls of their own."""


class Recorder:
    """Stands in for an object: its public methods note what they are called with and return such a stand-in."""

    def __init__(self, kind: type, calls: list[Any]) -> None:
        self._kind, self._calls = kind, calls

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recorder) and self._kind == other._kind

    def __hash__(self) -> int:
        return hash(self._kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._kind is Session and name in NAMESPACES:
            return Recorder(NAMESPACES[name], self._calls)
        method = getattr(self._kind, name)

        def call(*values: Any, **named: Any) -> Recorder:
            response = inspect.signature(method).bind(None, *values, **named)
            response.apply_defaults()
            self._calls.append((f"{self._kind.__name__}.{name}", dict(response.arguments) | {"self": None}))
            return Recorder(RETURNED.get(method, object), self._calls)

        return call


class Returns:
    """Equals any reward function that returns this."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return callable(other) and other(None, "an answer", [], {}) == self.value

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture
def typed(bare) -> Any:
    """Runs a cell on a session that records; what was called."""
    calls: list[Any] = []
    register(bare, Recorder(Session, calls))
    bare.user_ns.update(rows=[{"a": 1}], add=lambda a, b: a + b, upper=str.upper, Game=type("Game", (), {}))

    def run(cell: str) -> list[Any]:
        bare.run_cell(cell, store_history=False).raise_error()
        return [call for call in calls if call[0] != "LabIndex.keep_up"]  # what a notebook does after every cell

    run.shell = bare
    return run


def scripted(code: str, variables: dict[str, Any]) -> list[Any]:
    """What the code calls with the variables of a notebook."""
    calls: list[Any] = []
    exec(code, variables, {"lab": Recorder(Session, calls), "Returns": Returns, "parse": parse})
    return calls


def every_magic() -> dict[str, Any]:
    """The magics as they are typed, such as `%%chat`."""
    shell = InteractiveShell()
    register(shell, Session(Settings(home=Path("lab"))))
    shell.history_manager.end_session()
    return {
        f"{prefix}{name}": magic
        for kind, prefix in (("line", "%"), ("cell", "%%"))
        for name, magic in shell.magics_manager.magics[kind].items()
        if isinstance(getattr(magic, "__self__", None), LabMagics)
    }


MAGICS = every_magic()
PUBLIC = [
    getattr(kind, name)
    for kind in (Session, *NAMESPACES.values())
    for name in dir(kind)
    if callable(getattr(kind, name)) and not name.startswith("_")
]


def lines_of(magic: str) -> list[str]:
    """The first lines of the cells above that call a magic, without its name."""
    lines = [cell.partition("\n")[0] for cell in CALLS]
    return [line.partition(" ")[2] for line in lines if line.split()[0].lstrip("%") == magic.lstrip("%")]


def test_there_are_magics():
    assert {"%%chat", "%%reward", "%%train", "%connect", "%group"} <= set(MAGICS)


@pytest.mark.parametrize("cell", CALLS)
def test_a_magic_calls_what_a_script_would(typed, cell):
    assert typed(cell) == scripted(CALLS[cell], typed.shell.user_ns)


@pytest.mark.parametrize("magic", MAGICS)
def test_every_option_of_a_magic_is_in_some_call_above(magic):
    actions = [action for action in MAGICS[magic].parser._actions if action.dest not in {"help", "output"}]
    words = {word for line in lines_of(magic) for word in line.split()}
    response = [vars(MAGICS[magic].parser.parse_argstring(line)) for line in lines_of(magic)]
    assert response, "no call of this magic is above"
    for action in actions:
        spelled = words & set(action.option_strings)
        assert spelled or (not action.option_strings and any(one[action.dest] for one in response)), action.dest


@pytest.mark.parametrize("magic", MAGICS)
def test_a_magic_has_the_name_of_its_call(magic):
    name = {"rollout": "rollouts", "group": "collection"}.get(magic.lstrip("%"), magic.lstrip("%"))
    name = f"{name}_" if keyword.iskeyword(name) else name
    assert name in NAMESPACES or any(callable(getattr(kind, name, None)) for kind in (Session, *NAMESPACES.values()))


@pytest.mark.parametrize("magic", MAGICS)
def test_a_magic_that_returns_something_binds_it_with_o(typed, magic):
    returns = MAGICS[magic].__func__.__annotations__.get("return") is not None
    assert ("-o" in MAGICS[magic].parser._option_string_actions) == returns
    if returns:
        first, _, body = next(cell for cell in CALLS if cell.split()[0] == magic).partition("\n")
        typed(f"{first} -o kept\n{body}")
        assert isinstance(typed.shell.user_ns["kept"], Recorder)


@pytest.mark.parametrize("magic", MAGICS)
def test_every_option_of_a_magic_is_explained(magic):
    assert inspect.getdoc(MAGICS[magic])
    assert all(action.help for action in MAGICS[magic].parser._actions)
    if magic.startswith("%%"):
        assert f"    {magic} " in MAGICS[magic].__doc__, "a cell magic's help has an example"


@pytest.mark.parametrize("call", PUBLIC, ids=lambda call: call.__qualname__)
def test_every_public_call_of_the_session_is_documented(call):
    assert inspect.getdoc(call)
