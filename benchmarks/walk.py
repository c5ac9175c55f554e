"""How many of the package's files a cell runs through: functions entered in the kernel by a second, warm call.

Files that do what the cell says are counted apart from those that draw its result.

    python benchmarks/walk.py [--files CELL]

A reader who follows a cell opens these files. `--files` lists them with the functions that were entered.
"""

import argparse
import os
import sys
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

GOALS = {"%%chat": 40, "%%reward": 30, "%%train": 45, "%login": 35}
BROWSER = Path(__file__).parents[1] / "notebooks" / "browser.py"
PACKAGE = str(Path(__file__).parents[1] / "src" / "rolloutlab") + os.sep


class Walk:
    """Files and functions of the package that are entered, in any thread of this process, while it is open.

    Threads that ran before are not seen: their calls wait for what this thread gives them.
    """

    def __init__(self) -> None:
        self.entered: defaultdict[str, set[str]] = defaultdict(set)

    def __enter__(self) -> "Walk":
        threading.setprofile_all_threads(self._enter) if sys.version_info >= (3, 12) else threading.setprofile(
            self._enter
        )
        sys.setprofile(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _enter(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name != "<module>":
            self.entered[code.co_filename.removeprefix(PACKAGE)].add(code.co_qualname)


def cells(folder: Path) -> dict[str, list[str]]:
    """For each magic a first call, which warms up, and the second, which is followed."""
    rows = folder / "rows.jsonl"
    rows.write_text('{"word": "one"}\n{"word": "two"}\n')
    chat = f"%%chat NAME -n 4 --over '{rows}' --max-tokens 4\nSay {{{{word}}}}."
    reward = "%%reward NAME\nreturn float(trajectory.name.endswith(('0', '2')))"
    return {
        "%%chat": [chat.replace("NAME", name) for name in ("first", "second")],
        "%%reward": [reward.replace("NAME", name) for name in ("first", "second")],
        "%%train": [f"%%train {name}\nlearning_rate: 1e-6" for name in ("first", "second")],
        "%login": ["%login embedded"] * 2,
    }


def main() -> None:
    """Print a line for each magic."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", metavar="CELL", help="list the files of %%chat, %%reward, %%train or %login")
    options = parser.parse_args()

    from IPython.core.interactiveshell import InteractiveShell

    from rolloutlab.magics import register
    from rolloutlab.session import Session
    from rolloutlab.settings import Settings

    os.environ["ROLLOUTLAB_BROWSER"] = f"{sys.executable} {BROWSER}"  # a program signs in, as in the tests
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ROLLOUTLAB_HOME"] = str(Path(folder) / "lab")
        session = Session(Settings(home=Path(folder) / "lab", linger=1.0))
        shell = InteractiveShell()
        register(shell, session)
        walks = {}
        for magic, (first, second) in cells(Path(folder)).items():
            shell.run_cell(first).raise_error()
            line, _, body = second.partition("\n")
            name, _, typed = line.lstrip("%").partition(" ")
            with Walk() as does:
                call = (name, typed, body) if magic.startswith("%%") else (name, typed)
                result = (shell.run_cell_magic if magic.startswith("%%") else shell.run_line_magic)(*call)
            with Walk() as draws:
                shell.display_formatter.format(result)
            walks[magic] = does, draws
        session.service("stop")
        session.close()
    for magic, (does, draws) in walks.items():
        files = len(does.entered.keys() | draws.entered.keys())
        print(f"{magic}: {files} files (goal {GOALS[magic]}): {len(does.entered)} do it, {len(draws.entered)} draw it")
        for what, walk in [("does", does), ("draws", draws)] if options.files == magic else []:
            for file, functions in sorted(walk.entered.items()):
                print(f"    {what} {file}: {', '.join(sorted(functions))}")


if __name__ == "__main__":
    main()
