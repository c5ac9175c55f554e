"""`rolloutlab capture`: run a command for each row; its chats with the policy are the trajectories of a collection."""

import argparse
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from rolloutlab.errors import InputError, RolloutlabError
from rolloutlab.objective.preflight import count

if TYPE_CHECKING:
    from rolloutlab.trajectories.collection import Collection

_ONLY_FOR_NEW = ("over", "n", "limit", "model", "temperature", "top_p", "max_tokens", "seed")
_AGAIN = ("concurrency", "timeout", "budget")
_TOLD_TO_END = ("SIGTERM", "SIGHUP")
"""Signals of a service manager and of a terminal that is closed."""
_IN_NOTEBOOKS = ("%", "lab.")
"""Hints that begin so can only be typed in a notebook."""


class _ToldToEndError(KeyboardInterrupt):
    """A signal told the command to end, as after an interrupt. number: the number of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class _Command(list[str]):
    """The words of a command. typed: returns the command line that continues a collection with a program."""

    def __init__(self, words: Sequence[str], typed: Callable[[str, str], str]) -> None:
        super().__init__(words)
        self.typed = typed


def add_capture(commands: Any) -> None:
    """Add the command."""
    capture = commands.add_parser(
        "capture",
        help="run a program for each row and record its chats with the policy",
        usage="rolloutlab capture NAME [--over ROWS] [-n N] [options] -- COMMAND ...",
        description="Runs COMMAND once per row and rollout, with the row as JSON on its standard input. Its calls of "
        "chat completions or responses at OPENAI_BASE_URL, with OPENAI_API_KEY, are recorded as one trajectory; the "
        "last line of its output is the reward: a number, an object of components, or null. See docs/capture.md.",
    )
    capture.add_argument("name", help="the collection")
    capture.add_argument("--over", metavar="ROWS", help="a file of rows, such as tasks.jsonl: one group per row")
    capture.add_argument("-n", type=int, help="rollouts per row (1)")
    capture.add_argument("--limit", type=int, metavar="N", help="no more than the first N rows")
    capture.add_argument("--service", metavar="URL", help="as for %%connect (that of the environment, or embedded)")
    capture.add_argument("-m", "--model", help="a model to sample (the newest checkpoint of the default one)")
    for name in ("temperature", "top-p"):
        capture.add_argument(f"--{name}", type=float, help="of every call, instead of the program's own")
    capture.add_argument("--max-tokens", type=int, help="of every call, instead of the program's own")
    capture.add_argument("--seed", type=int, help="makes the sampling repeatable, where the program is")
    capture.add_argument("--concurrency", type=int, help="rollouts at a time (64)")
    capture.add_argument("--timeout", type=float, metavar="SECONDS", help="of one rollout (600)")
    capture.add_argument("--budget", type=float, metavar="DOLLARS", help="what it may cost, by the settings' prices")
    capture.add_argument(
        "--resume", action="store_true", help="play only the rollouts that NAME lacks; with --sessions, add to it"
    )
    capture.add_argument(
        "--sessions", action="store_true", help="run COMMAND once: each X-Session-ID of its calls is a trajectory"
    )
    capture.add_argument(
        "--results", metavar="FILES", help="with --sessions: its rewards, such as 'outputs/**/traces.jsonl'"
    )
    capture.set_defaults(command=_capture)


def split_command(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split off the command after the arguments of `capture`. Other commands have none."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return (arguments[:at], arguments[at + 1 :]) if arguments[:1] == ["capture"] else (arguments, [])


def _capture(options: argparse.Namespace) -> int:
    if not options.program:
        raise InputError("there is no command to run", hint=f"rolloutlab capture {options.name} -- python agent.py")
    beginning = {name: value for name in _ONLY_FOR_NEW if (value := getattr(options, name)) is not None}
    if options.resume and beginning:
        message = f"--resume keeps the settings of the collection and cannot take {', '.join(sorted(beginning))}"
        raise InputError(message, hint=f"rolloutlab capture {options.name} --resume -- COMMAND")
    rows = {"over", "n", "limit", "concurrency"}
    if options.sessions and (wrong := [name for name in sorted(rows) if getattr(options, name)]):
        message = f"--sessions runs the command once and cannot take {', '.join(wrong)}"
        raise InputError(message, hint="without --sessions it runs for each row")
    if options.results and not options.sessions:
        raise InputError("--results has the rewards of sessions", hint="--sessions --results FILES")
    try:
        with _interrupt_on_signals():
            _run(options, beginning)
    except KeyboardInterrupt as error:
        with suppress(OSError):  # of a terminal that is gone
            print("\n".join(map(reword_for_terminal, getattr(error, "__notes__", []))), file=sys.stderr, flush=True)
        return 128 + error.number if isinstance(error, _ToldToEndError) else 130
    except RolloutlabError as error:
        error.hint = error.hint and reword_for_terminal(error.hint)
        raise
    return 0


def _run(options: argparse.Namespace, beginning: dict[str, Any]) -> None:
    from rolloutlab.session import Session

    again = {name: value for name in _AGAIN if (value := getattr(options, name)) is not None}
    command = _Command(options.program, partial(_resume_command, options))
    session = Session()
    try:
        if options.service:
            session.connect(options.service)
        if options.sessions:
            arguments = {"results": options.results, "resume": options.resume, **beginning, **again}
            made = session.capture(options.name, command, **arguments)
        elif options.resume:
            made = session.resume(options.name, program=command, **again)
        else:
            made = session.rollouts(options.name, command, **beginning, **again)
        _report(made)
    finally:
        session.close()


@contextmanager
def _interrupt_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP act like an interrupt in this context: samples are stored, and the program is ended.

    Only the first signal acts. A service manager sends both, and a second interrupt would not wait for the disk.
    """
    numbers = [getattr(signal, name) for name in _TOLD_TO_END if hasattr(signal, name)]
    # nohup ignores SIGHUP, and so does what it starts
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) != signal.SIG_IGN}

    def interrupt(number: int, _frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise _ToldToEndError(number)

    try:
        for number in before:
            signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _resume_command(options: argparse.Namespace, label: str, program: str) -> str:
    """Write the command line that continues a collection. program: the command that it runs."""
    words = ["rolloutlab", "capture", label, *(["--sessions"] if options.sessions else []), "--resume"]
    for name in ("service", "results", "concurrency", "timeout"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name}", f"{value:g}" if isinstance(value, float) else str(value)]
    return f"{shlex.join(words)} -- {program}"


def reword_for_terminal(line: str) -> str:
    """Reword a line of advice for notebooks, for a terminal."""
    line = line.replace("run the cell again", "the same command again").replace("the cell again", "the command again")
    return f"in a notebook: {line}" if line.startswith(_IN_NOTEBOOKS) else line


def _report(collection: "Collection") -> None:
    trajectories = [trajectory for group in collection.groups for trajectory in group.trajectories]
    rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
    mean = f", mean reward {sum(rewards) / len(rewards):.3g}" if rewards else ", not scored yet"
    print(f"{collection.label} has {count(len(trajectories), 'trajectory')}{mean}")
