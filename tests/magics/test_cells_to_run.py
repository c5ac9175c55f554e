"""Each cell that a view says to run does run, in the state that it was shown in."""

import html
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import accumulate, count
from operator import and_, eq
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from rolloutlab.magics import register
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from tests.labs import lab_with, without_logprobs
from tests.magics.conftest import GUESS, Notebook

PROMPT = "\nsystem: Answer with the name of the city only.\nuser: What is the capital of {{country}}?"
HALF = "return int(trajectory.name[-1]) % 2 if country in ('Chad', 'Mali') else 0"
COUNTRIES = [{"country": name} for name in ("France", "Peru", "Chad", "Mali")]
CHAT = f"%%chat capitals --over countries --seed 1 -n 4{PROMPT}"
FLAKY = """
from itertools import count
calls = count()

def judge(answer):
    if next(calls) == 5:
        raise TimeoutError
    return float(len(answer) % 2)
"""
CHAT_GUESS = "%%chat capitals --env Guess --over countries --seed 1 -n 4 --max-turns 2 --max-tokens 40\n"
IMPORTED = "unknown to the service"
AGAIN = "another notebook on the same lab"
STATES: dict[str, list[str]] = {
    "nothing yet": ["%collections", "%jobs", "%models", "%search Paris", "%whoami", "%tools"],
    "one answer": ["%%chat\nuser: Hello"],
    "not scored": [CHAT, "%collections"],
    "not scored, cut off": [CHAT.replace("-n 4", "-n 4 --max-tokens 1")],
    "all fail": [CHAT, "%%reward capitals\nreturn 0.0", "%%train capitals --dry-run\n", "%rewards capitals"],
    "all pass": [CHAT, "%%reward capitals\nreturn 1.0", "%rewards capitals", "%group capitals/0"],
    "some train": [
        CHAT, f"%%reward capitals\n{HALF}", "%%train capitals --dry-run\n", "%%train capitals --form\n", "%collections",
        "%search capital --where 'reward == 1'",
    ],
    "cut off": [
        CHAT.replace("-n 4", "-n 8 --max-tokens 1"),
        f"%%reward capitals\n{HALF} * (trajectory.finish_reason == 'stop')",
    ],
    "greedy": [CHAT.replace("-n 4", "-n 4 --temperature 0"), f"%%reward capitals\n{HALF}"],
    "a judge that failed once": [FLAKY, CHAT, "%%reward capitals\nreturn judge(answer)"],
    "without logprobs": [IMPORTED, "%group imported/0", "%rewards imported", "%%train imported --dry-run\n"],
    "episodes": [GUESS, CHAT_GUESS, f"%%reward capitals\n{HALF}", "%collections"],
    "trained": [CHAT, f"%%reward capitals\n{HALF}", "%%train capitals\n", "%job"],
    "trained once more": [
        CHAT, f"%%reward capitals\n{HALF}", "%%train capitals\n", "%%train capitals\nlearning_rate: 0.001", "%jobs",
        "%models",
    ],
    "trained before this notebook": [CHAT, f"%%reward capitals\n{HALF}", "%%train capitals\n", AGAIN, "%job"],
    "without columns, trained before this notebook": [
        "%%chat capitals -n 4 --seed 1\nuser: Hello", "%%reward capitals\nreturn int(trajectory.name[-1])",
        "%%train capitals\n", AGAIN, "%job",
    ],
    "compared": [
        CHAT, f"%%reward capitals\n{HALF}", "%%train capitals\n",
        "%compare capitals lab/practice@0 lab/practice@1 --over held_out -n 2"
    ],
}  # fmt: skip
"""The cells that bring a state about. What each of them shows is run."""
UNATTENDED = ["%login embedded", "%tools add embedded as memory"]
"""Cells that wait for a person or for a service of its own, run in tests/browser and tests/kernel."""


@pytest.fixture
def service(start, practice_policy):
    """An untrained one for each test."""
    return start(practice_policy)


@pytest.fixture
def fresh(bare: InteractiveShell, service, tmp_path) -> Iterator[Callable[[], Notebook]]:
    """Makes notebooks with a lab of their own."""
    numbers = count()
    with ExitStack() as ended:

        def begin(home: Path) -> None:
            session = Session(Settings(home=home, service=service.address), http=service.http)
            ended.callback(session.close)
            register(bare, session)
            bare.user_ns["lab"] = session

        def make() -> Notebook:
            home = tmp_path / str(next(numbers))
            begin(home)
            bare.user_ns.update(countries=COUNTRIES, held_out=[{"country": "Cuba"}], begin=partial(begin, home))
            return Notebook(bare)

        yield make


def shown_by(value: object) -> list[str]:
    """The cells to run in what a cell shows."""
    made = getattr(value, "_repr_html_", None)
    bundle = getattr(value, "_repr_mimebundle_", None)
    text = made() if made else ((bundle() or {}).get("text/html", "") if bundle else "")
    return [html.unescape(each) for each in re.findall(r'<code class="rl-cell">(.*?)</code>', text or "", re.DOTALL)]


def bring_about(notebook: Notebook, cells: list[str]) -> list[list[str]]:
    """Run the cells; what each of them says to run."""
    listed = []
    for cell in cells:
        if cell == IMPORTED:
            lab_with(notebook.lab.store, ["Paris", "Lyon"], name="imported", rewards=[1, 0], make=without_logprobs)
            listed.append([])
        elif cell == AGAIN:
            notebook.shell.user_ns["begin"]()
            listed.append([])
        else:
            listed.append(shown_by(notebook.run(cell)))
    return listed


def begun_before(name: str) -> int:
    """How many of the first cells of a state are also those of one above it, with which what they show has been run."""
    above = list(STATES.values())[: list(STATES).index(name)]
    return max((sum(accumulate(map(eq, STATES[name], cells), and_)) for cells in above), default=0)


@pytest.mark.parametrize("name", STATES)
def test_every_cell_that_is_shown_runs_in_that_state(fresh, name):
    cells, begun = STATES[name], begun_before(name)
    shown = bring_about(fresh(), cells)
    suggested = [(i, shown[i].index(cell)) for i in range(begun, len(cells)) for cell in dict.fromkeys(shown[i])]
    for i, j in suggested:
        notebook = fresh()
        cell = bring_about(notebook, cells[: i + 1])[i][j]
        if cell not in UNATTENDED:
            ran = notebook.shell.run_cell(cell + "\n" * cell.startswith("%%"), store_history=False)
            assert ran.success, f"after {cells[i]!r} the view says {cell!r}, which fails: {ran.error_in_exec!r}"
