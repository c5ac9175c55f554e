"""What the trackers share: their packages, what a tracker lacks of a run, and names that it can store."""

import hashlib
import importlib
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

from rolloutlab.errors import InputError, described
from rolloutlab.runs.table import RunTable

ByStep = Mapping[int, Mapping[str, float]]
"""The numbers of a run by step, then by name."""
_LONGEST = 240  # bytes of a file name; file systems take 255


def import_package(module: str) -> ModuleType:
    """Import a tracker's package. Raises InputError if it is not installed, or cannot be imported."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == module.partition(".")[0]:
            package = module.partition(".")[0]
            hint = f"pip install {package}"
            raise InputError(f"runs go to {package} only where that package is installed", hint=hint) from error
        raise _broken(module, error) from error
    except Exception as error:  # another package may fail in any way when it is imported
        raise _broken(module, error) from error


def _broken(module: str, error: Exception) -> InputError:
    hint = f"pip install --upgrade {module.partition('.')[0]}, and restart the kernel"
    return InputError(f"{module} cannot be imported: {described(error)}", hint=hint)


def find_added(before: ByStep, after: ByStep) -> dict[int, dict[str, float]] | None:
    """Find what `after` has and `before` lacks; None if something of `before` has changed or is gone."""
    for step, numbers in before.items():
        wanted = after.get(step, {})
        if any(name not in wanted or not _same(value, wanted[name]) for name, value in numbers.items()):
            return None
    more = {
        step: {name: value for name, value in numbers.items() if name not in before.get(step, {})}
        for step, numbers in after.items()
    }
    return {step: numbers for step, numbers in more.items() if numbers}


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def in_json(value: float) -> float:
    """Return a number that JSON readers take: an int of more than 64 bits as a float, infinite if need be."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return value


def numbers_of(run: RunTable) -> dict[int, dict[str, float]]:
    """Return the numbers of the steps that have some, as JSON can have them."""
    return {
        step: {name: in_json(value) for name, value in numbers.items()}
        for step, numbers in run.by_step().items()
        if numbers
    }


def times_of(run: RunTable) -> dict[int, datetime]:
    """Return a time for each step, in UTC, for trackers that must have one.

    If the time of a step is not known, this is the time of the step before it, else of the step after it, else now.
    """
    known = [time for time in run.times if time is not None]
    last = known[0] if known else datetime.now(UTC)
    times = {}
    for step, time in zip(run.steps, run.times, strict=True):
        last = time or last
        times[int(step)] = last.astimezone(UTC)
    return times


def identity(run: RunTable, home: Path, *places: str) -> str:
    """Compute the id of a run: the same whenever this lab writes it, and another one in every other lab or place."""
    parts = (str(home.resolve()), *places, run.project, run.name)
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:16]


def file_name(text: str) -> str:
    """Make a file name of any text, different for different texts; letters and digits of all scripts stay."""
    name = "".join(each if each.isalnum() or each in "-_. " else f"%{ord(each):02X}" for each in text)
    if name.startswith("."):  # neither a hidden file nor the folder above
        name = f"%2E{name[1:]}"
    if name and len(name.encode()) <= _LONGEST:
        return name
    return f"{name[:50]}%{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:8]}"
