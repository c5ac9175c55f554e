"""`rolloutlab capture`: run a command for each row; its chats with the policy are the trajectories of a collection."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from rolloutlab.errors import InputError
from rolloutlab.objective.preflight import count

if TYPE_CHECKING:
    from rolloutlab.trajectories.collection import Collection

_BEGINNING = ("over", "n", "limit", "model", "temperature", "top_p", "max_tokens", "seed")
_AGAIN = ("concurrency", "timeout", "budget")


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
    capture.add_argument("-m", "--model", help="a model to sample (the newest checkpoint of lab/practice)")
    for name in ("temperature", "top-p"):
        capture.add_argument(f"--{name}", type=float, help="of every call, instead of the program's own")
    capture.add_argument("--max-tokens", type=int, help="of every call, instead of the program's own")
    capture.add_argument("--seed", type=int, help="makes the sampling repeatable, where the program is")
    capture.add_argument("--concurrency", type=int, help="rollouts at a time (64)")
    capture.add_argument("--timeout", type=float, metavar="SECONDS", help="of one rollout (600)")
    capture.add_argument("--budget", type=float, metavar="DOLLARS", help="what it may cost, by the settings' prices")
    capture.add_argument("--resume", action="store_true", help="play only the rollouts that NAME lacks")
    capture.add_argument(
        "--sessions", action="store_true", help="run COMMAND once: each X-Session-ID of its calls is a trajectory"
    )
    capture.add_argument(
        "--results", metavar="FILES", help="with --sessions: its rewards, such as 'outputs/**/traces.jsonl'"
    )
    capture.set_defaults(command=_capture)


def split_command(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments of `capture`, and the command after them."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return (arguments[:at], arguments[at + 1 :]) if arguments[:1] == ["capture"] else (arguments, [])


def _capture(options: argparse.Namespace) -> None:
    from rolloutlab.session import Session

    if not options.program:
        raise InputError("there is no command to run", hint=f"rolloutlab capture {options.name} -- python agent.py")
    beginning = {name: value for name in _BEGINNING if (value := getattr(options, name)) is not None}
    again = {name: value for name in _AGAIN if (value := getattr(options, name)) is not None}
    if options.resume and beginning:
        message = f"--resume keeps the settings of the collection and cannot take {', '.join(sorted(beginning))}"
        raise InputError(message, hint=f"rolloutlab capture {options.name} --resume -- COMMAND")
    rows = {"over", "n", "limit", "concurrency", "resume"}
    if options.sessions and (wrong := [name for name in sorted(rows) if getattr(options, name)]):
        message = f"--sessions runs the command once and cannot take {', '.join(wrong)}"
        raise InputError(message, hint="without --sessions it runs for each row")
    if options.results and not options.sessions:
        raise InputError("--results has the rewards of sessions", hint="--sessions --results FILES")
    session = Session()
    try:
        if options.service:
            session.connect(options.service)
        if options.sessions:
            made = session.capture(options.name, options.program, results=options.results, **beginning, **again)
        elif options.resume:
            made = session.resume_rollouts(options.name, options.program, **again)
        else:
            made = session.rollouts(options.name, options.program, **beginning, **again)
        _report(made)
    except KeyboardInterrupt as error:
        print("\n".join(getattr(error, "__notes__", [])), file=sys.stderr)
        raise
    finally:
        session.close()


def _report(collection: "Collection") -> None:
    trajectories = [trajectory for group in collection.groups for trajectory in group.trajectories]
    rewards = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
    mean = f", mean reward {sum(rewards) / len(rewards):.3g}" if rewards else ", not scored yet"
    print(f"{collection.label} has {count(len(trajectories), 'trajectory')}{mean}")
