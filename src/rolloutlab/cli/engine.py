"""`rolloutlab engine check`: measure what an engine computes, before anything is trained on it."""

import argparse
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rolloutlab.errors import InputError, PolicyError
from rolloutlab.settings import ModelSettings

if TYPE_CHECKING:
    from rolloutlab.engines.report import Report

_TOLERANCE = 1e-4


def add_check_options(check: argparse.ArgumentParser) -> None:
    """Add the options of `engine check` besides policy and engine."""
    check.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="only lines whose name contains TEXT; repeat it for further lines",
    )
    check.add_argument("--json", action="store_true", help="print the report as JSON")
    check.add_argument(
        "--tolerance", type=float, default=_TOLERANCE, metavar="GAP", help="the largest gap that passes (%(default)s)"
    )


def check(policy: str, model: ModelSettings, options: argparse.Namespace) -> int:
    """Print the report, and return 0 if everything passes, else 1. Progress goes to standard error.

    Raises:
        InputError: the tolerance is wrong, or there is no such line.
        PolicyError: the engine's packages are missing.
        RolloutlabError: the errors of `open_engine`.
    """
    if not (math.isfinite(options.tolerance) and options.tolerance > 0):
        raise InputError(f"--tolerance must be a number > 0, not {options.tolerance}", hint=f"--tolerance={_TOLERANCE}")
    try:
        from rolloutlab.engines.open import quiet_transformers
    except ModuleNotFoundError as error:
        raise PolicyError(f"engines need {error.name}", hint="pip install 'rolloutlab[local]'") from error
    quiet_transformers()
    try:
        report = _measure(policy, model, options.tolerance, options.only)
    finally:
        _progress("")
    print(json.dumps(report.to_json(), indent=2) if options.json else report.table())
    return 0 if report.passed else 1


def _measure(policy: str, model: ModelSettings, tolerance: float, only: list[str]) -> "Report":
    from rolloutlab.engines.check import Conformance, load_reference
    from rolloutlab.engines.open import open_engine
    from rolloutlab.engines.report import Report

    _progress(f"opening the engine {model.engine} on {policy}")
    engine = open_engine(policy, model, least_seconds=0.0, note=_progress)
    try:
        reference, missing = load_reference(policy, model, engine)
        with tempfile.TemporaryDirectory(prefix="rolloutlab-") as folder:
            lines = tuple(Conformance(engine, reference, Path(folder), tolerance).run(_progress, only))
        return Report(engine.name, engine.base.name, dict(engine.status()), dict(engine.unsupported), lines, missing)
    finally:
        engine.close()


def _progress(line: str) -> None:
    """Write a line to standard error. In a terminal it replaces the line before it."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
    elif line:
        print(line, file=sys.stderr, flush=True)
