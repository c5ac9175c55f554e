"""`rolloutlab report`: write a run, or several, as one HTML file."""

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from rolloutlab.cli.capture import reword_for_terminal
from rolloutlab.errors import NotFoundError, RolloutlabError
from rolloutlab.fsutil import path_of
from rolloutlab.settings import Settings, read_settings

_OUT = "run.html"


def add_report(commands: Any, settings: Settings) -> None:
    """Add the command."""
    report = commands.add_parser("report", help="write a run, or several, as one HTML file to hand to a colleague")
    report.add_argument("runs", nargs="*", metavar="RUN", help="as %%runs takes them (default: the newest)")
    report.add_argument("--out", default=_OUT, metavar="FILE", help="the file (%(default)s)")
    report.add_argument("--overwrite", action="store_true", help="replace the file if it is there")
    report.add_argument("--home", type=Path, default=settings.home, help="the lab folder (default: %(default)s)")
    report.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> None:
    from rolloutlab.session import Session

    settings = read_settings()
    chosen = replace(settings, home=path_of(options.home, "--home DIR"))
    if not chosen.database.exists():  # a session would make a lab there
        own = f", such as {settings.home}" if settings.database.exists() else ""
        raise NotFoundError(f"there is no lab in {chosen.home}", hint=f"--home DIR{own}")
    session = Session(chosen)
    try:
        names = options.runs or session.runs().frame.index[:1].tolist()
        if not names:
            raise NotFoundError("this lab has no run: no job has made a checkpoint", hint="%%train NAME")
        print(session.report(names, options.out, overwrite=options.overwrite))
    except RolloutlabError as error:
        error.hint = error.hint and _reword(error.hint, options, settings)
        raise
    finally:
        session.close()


def _reword(hint: str, options: argparse.Namespace, settings: Settings) -> str:
    """Reword a hint for a terminal: for a cell that shows a run, the command that reports the run."""
    if not hint.startswith("%runs "):
        return reword_for_terminal(hint)
    home = [] if options.home == settings.home else ["--home", str(options.home)]
    out = [] if options.out == _OUT else ["--out", options.out]
    return shlex.join(["rolloutlab", "report", *shlex.split(hint)[1:], *home, *out])
