"""How long a newcomer waits: for the import, for the first completion, for the first loop."""

import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from goals import Goal, conclude

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "notebooks" / "01_first_loop.ipynb"
IMPORTS, COMPLETIONS = 5, 3
"""How often each is timed."""
SHELL = "from IPython.core.interactiveshell import InteractiveShell; InteractiveShell.instance()"
FIRST_COMPLETION = """
import time
from pathlib import Path
from rolloutlab.session import Session
from rolloutlab.settings import Settings

begun = time.perf_counter()
session = Session(Settings(home=Path({home!r}), linger=0.5))
session.chat("hello", "hi", n=1)
print(time.perf_counter() - begun)
session.close()
"""


def wall(code: str) -> float:
    """Seconds of a fresh Python that runs the code; the best of a few, since only noise adds."""
    times = []
    for _ in range(IMPORTS):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - begun)
    return min(times)


def first_completion() -> float:
    """Seconds from the first chat of a new lab to its answer, the service's start included; the median of a few."""
    times = []
    for _ in range(COMPLETIONS):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
            code = FIRST_COMPLETION.format(home=home)
            done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
            times.append(float(done.stdout.split()[-1]))
    return statistics.median(times)


def first_loop() -> tuple[str, float]:
    """What the notebook of the first loop prints, and the seconds in it."""
    command = [sys.executable, str(ROOT / "notebooks" / "run.py"), str(NOTEBOOK)]
    line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    found = re.search(r"(\d+) s$", line)
    if not found:
        raise SystemExit(f"the notebook ended with: {line}")
    return line, float(found[1])


def main() -> int:
    bare = wall("pass")
    ours, pandas = wall("import rolloutlab") - bare, wall("import pandas") - bare
    extension = wall(f"{SHELL}.run_line_magic('load_ext', 'rolloutlab')") - wall(SHELL)
    session = wall("import rolloutlab.session") - bare
    completion = first_completion()
    line, loop = first_loop()
    print(f"{'import rolloutlab':40} {ours:6.3f} s")
    print(f"{'%load_ext rolloutlab':40} {extension:6.3f} s")
    print(f"{'what the first cell of ours imports':40} {session:6.3f} s")
    print(f"{'import pandas':40} {pandas:6.3f} s")
    print(f"{'first completion, service start included':40} {completion:6.2f} s")
    print(line)
    return conclude(
        [
            Goal("import_and_load_ext_over_import_pandas", (ours + extension) / pandas, "<=", 1),
            Goal("first_completion_seconds", completion, "<=", 8),
            Goal("first_loop_seconds", loop, "<=", 60),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
