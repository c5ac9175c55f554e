"""Plan of captured rollouts: a program, the rows that it runs over, and the rollouts that are to be played."""

import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rolloutlab.capture.client import RolloutClient
from rolloutlab.errors import InputError
from rolloutlab.sampling.code_digest import describe_parts
from rolloutlab.sampling.config import SamplingConfig, make_config
from rolloutlab.sampling.dataset import ReadRows, kinds_of, left_out, rows_of
from rolloutlab.sampling.programs.commands import Environment, command_name, command_program
from rolloutlab.sampling.split import ranges_of
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import CollectionSummary, Group, NewGroup, StoredCollection

Solve = Callable[[dict[str, Any], RolloutClient], Any]
"""A program: a function of a row and a client, plain or async; it returns a reward, components, or None."""
_FIXED = ("temperature", "top_p", "max_tokens")
PLANNED = ("model", "n", "seed", "timeout", *_FIXED)
"""Settings of a plan."""
CELL = "the cell"
"""What the name of a program begins with that is the body of a cell."""


@dataclass(frozen=True)
class Program:
    """A program under the name that its collections keep.

    typed: of one that a terminal began, what is typed there to go on with a collection and the words of a command.
    """

    name: str
    solve: Solve
    typed: Callable[[str, str], str] | None = None


@dataclass(frozen=True)
class ProgramRun:
    """Rollouts to be played. seats: of each its group and its position there. begun, notes: as of `SamplingRun`."""

    name: str
    program: Program
    plan: SamplingConfig
    groups: Sequence[NewGroup | Group]
    seats: Sequence[tuple[int, int]]
    begun: CollectionSummary | None = None
    notes: Sequence[str] = ()


class KnownPrograms:
    """The programs that this notebook has run, by collection: none is stored, and `compare` plays them again."""

    def __init__(self) -> None:
        self._programs: dict[tuple[str, str], Program] = {}

    def known(self, label: str, program: Program) -> Program:
        """Remember the program of a collection."""
        self._programs[label.partition(":")[0], program.name] = program
        return program

    def again(self, summary: StoredCollection, solve: Any, environment: Environment) -> Program:
        """The program that plays what a collection lacks; None is that of the collection. Errors are of both."""
        check_captured(summary)
        known = self.of(summary) if solve is None else program_of(solve, environment)
        assert known, "it was captured"
        return self.known(summary.name, known)

    def rename(self, old: str, new: str) -> None:
        """Follow a renamed collection."""
        self._programs = {(new if name == old else name, by): each for (name, by), each in self._programs.items()}

    def of(self, summary: StoredCollection) -> Program | None:
        """The program that a collection was captured from; InputError where this notebook does not have it."""
        name = summary.plan.get("program")
        if name and (summary.name, name) not in self._programs:
            message = f"{summary.label} was captured from {name}, which this notebook has not run"
            raise InputError(message, hint=to_resume(summary.name, name))
        return self._programs[summary.name, name] if name else None


def program_of(solve: Any, environment: Environment) -> Program:
    """The program of a function, or of a command as a list of words; InputError for anything else.

    environment: of commands, read whenever one starts. The list of one that a terminal began has the attribute `typed`.
    """
    if isinstance(solve, Program):
        return solve
    if isinstance(solve, list | tuple) and solve and all(isinstance(word, str) for word in solve):
        return Program(command_name(solve), command_program(solve, environment), getattr(solve, "typed", None))
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
    """The name of a program as it is typed in Python: of a function, or the words of a command."""
    return name if name.isidentifier() else "solve" if _is_anonymous(name) else str(shlex.split(name))


def to_resume(label: str, name: str, typed: Callable[[str, str], str] | None = None) -> str:
    """What to type to play what a collection of the program `name` lacks. typed: as of `Program`."""
    if typed:
        return typed(label, name)
    if name.startswith(CELL):
        return f"%%rollout {label} --resume, with its cell"
    return f"lab.resume({label!r}, program={as_python(name)})"


def run_again(program: Program) -> str:
    """What to do where a program has left nothing to go on from."""
    return "the same command again" if program.typed else "run the cell again"


def _is_anonymous(name: str) -> bool:
    return name.startswith((CELL, "<"))


def programmed(
    name: str,
    program: Program,
    over: Any,
    settings: Mapping[str, Any],
    limit: int | None = None,
    read: ReadRows = rows_of,
) -> ProgramRun:
    """Rollouts of a program for each row: a new collection. limit: of rows. read: what reads them.

    Raises:
        InputError: a setting or the rows are wrong.
    """
    Lab.check_name(name)
    rows = read(over, limit)
    fixed = {key: settings[key] for key in _FIXED if settings.get(key) is not None}
    about = {"types": kinds_of(rows), "parts": ranges_of(rows), "program": program.name, "fixed": fixed}
    about["code"] = describe_parts(program.solve, "program")
    plan = make_config({key: settings[key] for key in (*PLANNED, "checkpoint") if key in settings} | about)
    plan = plan.model_copy(update={"total": plan.n * len(rows)})
    seats = [(place, position) for place in range(len(rows)) for position in range(plan.n)]
    return ProgramRun(name, program, plan, [NewGroup((), row) for row in rows], seats, notes=left_out(rows))


def programmed_again(
    lab: Lab, label: str, program: Program, timeout: float | None, sizes: Mapping[int, int] = MappingProxyType({})
) -> ProgramRun:
    """What a generation lacks. timeout: of these rollouts; None is that of the others. sizes: as of `plan_resume`.

    Raises:
        NotFoundError: no such collection. InputError: it has no calls of a program, or of another one.
    """
    summary = lab.collection(label)
    check_captured(summary)
    plan = SamplingConfig.model_validate(summary.plan)
    if plan.program != program.name:
        message = f"{label} was captured from {plan.program}, not {program.name}"
        raise InputError(message, hint=to_resume(label, str(plan.program), program.typed))
    if timeout is not None:
        plan = make_config({**summary.plan, "timeout": timeout})
    plan, groups = plan.grow(sizes), lab.groups(summary)
    there = {(place, t.position) for place, group in enumerate(groups) for t in group.trajectories}
    seats = [(place, i) for place in range(len(groups)) for i in range(plan.size_of(place)) if (place, i) not in there]
    return ProgramRun(summary.name, program, plan, groups, seats, summary)


def programmed_as(
    lab: Lab,
    label: str,
    name: str,
    model: str,
    program: Program,
    over: Any,
    n: int | None,
    checkpoint: str | None = None,
    **unused: Any,
) -> ProgramRun:
    """A collection called `name` of another one's rows, seeds and settings, from another model. over: other rows.

    Raises:
        InputError: `unused` are set: arguments that only collections of prompts have. And as `programmed`.
    """
    if wrong := [key for key, value in unused.items() if value]:
        message = f"{label} was captured from the program {program.name}, which takes no {' and no '.join(wrong)}"
        raise InputError(message, hint=f"lab.compare({label!r}, over=rows)")
    plan = SamplingConfig.model_validate(lab.collection(label).plan)
    rows = [group.row for group in lab.groups(lab.find(label))] if over is None else over
    n = plan.n if n is None else n
    settings: dict[str, Any] = {"model": model, "n": n, "seed": plan.seed, "timeout": plan.timeout, **plan.fixed}
    settings |= {"checkpoint": checkpoint}
    return programmed(name, program, rows, settings)


def sessions_again(lab: Lab, label: str, program: Program, timeout: float) -> ProgramRun:
    """A further run of a program, or of another one, whose sessions join those of a collection.

    Raises:
        NotFoundError: no such collection. InputError: it holds no sessions.
    """
    summary = lab.collection(label)
    if not summary.plan.get("sessions"):
        raise InputError(f"{label} holds no sessions of a program", hint="a new name, without resume")
    return ProgramRun(summary.name, program, make_config({**summary.plan, "timeout": timeout}), (), (), summary)


def check_captured(summary: StoredCollection) -> None:
    """InputError for a collection that no program has sampled."""
    if summary.plan.get("sessions"):
        raise InputError(f"{summary.label} holds sessions of a program", hint=sessions_to_resume(summary.label))
    if not summary.plan.get("program"):
        label = summary.label
        raise InputError(f"{label} was not captured from a program", hint=f"%%chat {label} --resume")


def sessions_to_resume(label: str, program: Program | None = None) -> str:
    """What to type so that further sessions join a collection."""
    if program and program.typed:
        return program.typed(label, program.name)
    return f"lab.capture({label!r}, {as_python(program.name) if program else 'PROGRAM'}, resume=True)"


def check_no_program(label: str, plan: SamplingConfig) -> None:
    """InputError for a collection that only its program can sample."""
    if plan.sessions:
        raise InputError(f"{label} holds sessions of a program: no prompt samples it", hint=sessions_to_resume(label))
    if plan.program:
        message = f"{label} was captured from the program {plan.program}: no prompt samples it"
        raise InputError(message, hint=to_resume(label, plan.program))


def check_newest_program(lab: Lab, name: str, program: Program | None) -> None:
    """InputError unless the newest generation of a collection, if there is one, is of this program, or of none."""
    for newest in [each for each in lab.collections() if each.name == name][:1]:
        used = newest.plan.get("program")
        if used != (program.name if program else None):
            how = f"captured from the program {used}" if used else "not captured from a program"
            hint = f"solve={as_python(used)}" if used else "leave solve= out"
            raise InputError(f"{newest.label} was {how}", hint=hint)
