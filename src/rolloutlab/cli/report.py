"""`rolloutlab report`: write a run, or several, as one HTML file."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from rolloutlab.errors import NotFoundError
from rolloutlab.fsutil import path_of
from rolloutlab.settings import Settings, read_settings


def add_report(commands: Any, settings: Settings) -> None:
    """Add the command."""
    report = commands.add_parser("report", help="write a run, or several, as one HTML file to hand to a colleague")
    report.add_argument("runs", nargs="*", metavar="RUN", help="as %%runs takes them (default: the newest)")
    report.add_argument("--out", default="run.html", metavar="FILE", help="the file (%(default)s)")
    report.add_argument("--overwrite", action="store_true", help="replace the file if it is there")
    report.add_argument("--home", type=Path, default=settings.home, help="the lab folder (default: %(default)s)")
    report.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> None:
    from rolloutlab.session import Session

    session = Session(replace(read_settings(), home=path_of(options.home, "--home DIR")))
    try:
        names = options.runs or session.runs().frame.index[:1].tolist()
        if not names:
            raise NotFoundError("this lab has no run: no job has made a checkpoint", hint="%%train NAME, in a notebook")
        print(session.report(names, options.out, overwrite=options.overwrite))
    finally:
        session.close()
