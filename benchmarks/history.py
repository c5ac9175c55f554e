"""Runs benchmarks, and compares the goals that they print with those of the last release.

    history.py [--save] SCRIPT...

history.json has the figures of each release and of the version under work, the newest last:
{"0.1.0": {"search_recall": {"figure": 1.0, "relation": ">="}, ...}, ...}. `--save` (`make bench-save`) writes those of
this run under the package's version, beside what other benchmarks have there already. The exit status is 1 when a goal
is missed; what fell is printed and fails nothing.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypedDict

from rolloutlab import __version__

PATH = Path(__file__).with_suffix(".json")
LARGEST_FALL = 0.15
"""The share of its last release that a figure may lose: one machine differs by as much from run to run."""
_LINE = re.compile(r"GOAL (?P<name>\S+) (?P<figure>\S+) (?P<relation><=|>=) \S+ (?:met|missed)")


class Figure(TypedDict):
    """A figure, and on which side of its goal it is to be."""

    figure: float
    relation: str


Release = Mapping[str, Figure]


def read(lines: Iterable[str]) -> dict[str, Figure]:
    """The figures of the GOAL lines among what a benchmark printed, by name."""
    matches = filter(None, map(_LINE.fullmatch, map(str.strip, lines)))
    return {each["name"]: {"figure": float(each["figure"]), "relation": each["relation"]} for each in matches}


def loss(now: Figure, before: Figure) -> float:
    """The share of the last release that is lost: 0.5 at half of what is to be large, or twice what is to be small.

    Negative when it is better; 0 where either is 0, of which there is no share.
    """
    worse, better = (now["figure"], before["figure"]) if now["relation"] == ">=" else (before["figure"], now["figure"])
    return 1 - worse / better if worse and better else 0.0


def fallen(now: Release, before: Release, largest: float = LARGEST_FALL) -> list[str]:
    """A sentence for each goal that lost more than the share `largest` of its figure in the last release, worst first.

    Goals that only one of them has are passed over.
    """
    losses = {name: loss(now[name], before[name]) for name in now.keys() & before.keys()}
    worst = sorted((name for name in losses if losses[name] > largest), key=lambda name: (-losses[name], name))
    return [
        f"FELL {name} {before[name]['figure']:.3g} -> {now[name]['figure']:.3g}, {100 * losses[name]:.0f} % worse"
        for name in worst
    ]


def last_release(history: Mapping[str, Release], current: str) -> str | None:
    """The newest release but the current version; the current one where it is the only one that was measured."""
    earlier = [version for version in history if version != current]
    return earlier[-1] if earlier else current if current in history else None


def run(script: str) -> tuple[bool, dict[str, Figure]]:
    """Whether a benchmark met all its goals, and its figures; what it prints is passed on line by line."""
    print(f"== {script}", flush=True)
    lines = []
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return process.returncode == 0, read(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="keep the figures as those of this version")
    parser.add_argument("scripts", nargs="+")
    options = parser.parse_args()
    history: dict[str, dict[str, Figure]] = json.loads(PATH.read_text(encoding="utf-8"))
    results = [run(script) for script in options.scripts]
    figures = {name: figure for _, printed in results for name, figure in printed.items()}
    version = last_release(history, __version__)
    if version:
        print(f"== against {version}, by more than {100 * LARGEST_FALL:.0f} %")
        print("\n".join(fallen(figures, history[version]) or ["nothing fell"]))
    if options.save:
        history[__version__] = {**history.get(__version__, {}), **figures}
        PATH.write_text(json.dumps(history, indent=1) + "\n", encoding="utf-8")
    return 0 if all(met for met, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
