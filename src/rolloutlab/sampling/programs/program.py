"""Programs whose chats with the policy are captured: functions and commands, and the name that a collection keeps."""

import inspect
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rolloutlab.capture.client import RolloutClient
from rolloutlab.errors import InputError
from rolloutlab.sampling.config import SamplingConfig
from rolloutlab.sampling.programs.commands import Environment, command_name, command_program
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import StoredCollection

Solve = Callable[[dict[str, Any], RolloutClient], Any]
"""A program: a function of a row and a client, plain or async; it returns a reward, components, or None."""
CELL = "the cell"
"""The beginning of a program's name if the program is the body of a cell."""


@dataclass(frozen=True)
class Program:
    """A program under the name that its collections keep.

    typed: given for a program that was started in a terminal. Called with the label of a collection and the words of
    the command, it returns what to type there to go on.
    address: what the program has to use, for the hint if it makes no call.
    """

    name: str
    solve: Solve
    typed: Callable[[str, str], str] | None = None
    address: str = "client.base_url and client.api_key are what a program has to use"


class KnownPrograms:
    """The programs that this notebook has run, by collection, for `compare` and `resume`. The lab stores none."""

    def __init__(self) -> None:
        self._programs: dict[tuple[str, str], Program] = {}

    def remember(self, label: str, program: Program) -> Program:
        """Remember the program of a collection."""
        self._programs[label.partition(":")[0], program.name] = program
        return program

    def find_to_resume(self, summary: StoredCollection, solve: Any, environment: Environment) -> Program:
        """Find the program to resume a collection with: `solve`, or the collection's own program if that is None.

        Raises:
            InputError: as of `check_captured`, `program_of` and `of`.
        """
        check_captured(summary)
        known = self.of(summary) if solve is None else program_of(solve, environment)
        assert known, "it was captured"
        return self.remember(summary.name, known)

    def rename(self, old: str, new: str) -> None:
        """Follow a renamed collection."""
        self._programs = {(new if name == old else name, by): each for (name, by), each in self._programs.items()}

    def of(self, summary: StoredCollection) -> Program | None:
        """Find the program of a collection; None if it has none. Raise InputError if this notebook has not run it."""
        name = summary.plan.get("program")
        if name and (summary.name, name) not in self._programs:
            message = f"{summary.label} was captured from {name}, which this notebook has not run"
            raise InputError(message, hint=resume_hint(summary.name, name))
        return self._programs[summary.name, name] if name else None


def program_of(solve: Any, environment: Environment) -> Program:
    """Make the program of a function, or of a command as a list of words; raise InputError for anything else.

    solve: the function or the list. A list from a terminal has the attribute `typed`, as `Program` does.
    environment: called whenever a command starts, for its environment variables.
    """
    if isinstance(solve, Program):
        return solve
    if isinstance(solve, list | tuple) and solve and all(isinstance(word, str) for word in solve):
        run, typed = command_program(solve, environment), getattr(solve, "typed", None)
        return Program(command_name(solve), run, typed, "OPENAI_BASE_URL and OPENAI_API_KEY are what it has to use")
    hint = "async def solve(row, client): ..."
    if not callable(solve):
        raise InputError(f"a {type(solve).__name__} is not a function of row and client", hint=hint)
    try:
        inspect.signature(solve).bind({}, None)
    except TypeError:
        raise InputError("the function is called with a row and a client", hint=hint) from None
    except ValueError:  # it has no signature to look at
        pass
    return Program(getattr(solve, "__name__", type(solve).__name__), solve)


def as_python(name: str) -> str:
    """Return what to type in Python for a program: the name of a function, or the list of a command's words."""
    return name if name.isidentifier() else "solve" if _is_anonymous(name) else str(shlex.split(name))


def resume_hint(label: str, name: str, typed: Callable[[str, str], str] | None = None) -> str:
    """Return what to type to play the rollouts that a collection of a program lacks.

    label: the label of the collection. name: the name of the program. typed: as of `Program`.
    """
    if typed:
        return typed(label, name)
    if name.startswith(CELL):
        return f"%%rollout {label} --resume, with its cell"
    return f"lab.resume({label!r}, program={as_python(name)})"


def rerun_hint(program: Program) -> str:
    """Return what to do if a program has left nothing that could be resumed."""
    return "the same command again" if program.typed else "run the cell again"


def _is_anonymous(name: str) -> bool:
    return name.startswith((CELL, "<"))


def check_captured(summary: StoredCollection) -> None:
    """Raise InputError unless a collection consists of rollouts of a program."""
    if summary.plan.get("sessions"):
        raise InputError(f"{summary.label} holds sessions of a program", hint=sessions_hint(summary.label))
    if not summary.plan.get("program"):
        label = summary.label
        raise InputError(f"{label} was not captured from a program", hint=f"%%chat {label} --resume")


def sessions_hint(label: str, program: Program | None = None) -> str:
    """Return what to type to add further sessions to a collection."""
    if program and program.typed:
        return program.typed(label, program.name)
    return f"lab.capture({label!r}, {as_python(program.name) if program else 'PROGRAM'}, resume=True)"


def check_no_program(label: str, plan: SamplingConfig) -> None:
    """Raise InputError if only a program can sample a collection."""
    if plan.sessions:
        raise InputError(f"{label} holds sessions of a program: no prompt samples it", hint=sessions_hint(label))
    if plan.program:
        message = f"{label} was captured from the program {plan.program}: no prompt samples it"
        raise InputError(message, hint=resume_hint(label, plan.program))


def check_newest_program(lab: Lab, name: str, program: Program | None) -> None:
    """Raise InputError unless the newest generation of a collection has this program, or none if `program` is None.

    A collection without a generation is not checked.
    """
    for newest in [each for each in lab.collections() if each.name == name][:1]:
        used = newest.plan.get("program")
        if used != (program.name if program else None):
            how = f"captured from the program {used}" if used else "not captured from a program"
            hint = f"solve={as_python(used)}" if used else "leave solve= out"
            raise InputError(f"{newest.label} was {how}", hint=hint)
