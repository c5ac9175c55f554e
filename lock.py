"""Writes requirements.lock, the versions and hashes that `make` installs; `make lock` runs it.

    python lock.py           resolve the newest versions that pyproject.toml and constraints.txt allow, and write them
    python lock.py --fits    exit status 0 where the file can be installed: hashes are those of one platform's wheels

torch is not in it: its wheel for processors has no hash that a registry knows, so that constraints.txt pins it.
"""

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
WHERE = ("Linux", "x86_64", "3.11")
HEADING = (
    "# Made by `make lock` for Python 3.11 on Linux x86_64; elsewhere `make` resolves anew within constraints.txt.\n"
)


def fits() -> bool:
    """Whether this Python takes the wheels whose hashes are in the file."""
    return (platform.system(), platform.machine(), platform.python_version().rpartition(".")[0]) == WHERE


def locked(installs: Iterable[Mapping[str, Any]]) -> str:
    """The file for the `install` entries of pip's report; neither the project itself nor torch is among its lines.

    Raises ValueError for a torch without a local version such as `+cpu`: its several GB of companions would be locked.
    """
    lines = []
    for entry in installs:
        name, version = entry["metadata"]["name"].lower().replace("_", "-"), entry["metadata"]["version"]
        if name == "torch" and "+" not in version:
            raise ValueError(
                f"pip chose torch {version}, which is a CUDA build; write the lock where it finds a CPU wheel"
            )
        if name not in {"torch", "rolloutlab"}:
            lines.append(
                f"{name}=={version} --hash=sha256:{entry['download_info']['archive_info']['hashes']['sha256']}\n"
            )
    return HEADING + "".join(sorted(lines))


def main() -> int:
    if "--fits" in sys.argv:
        return not fits()
    if not fits():
        raise SystemExit(f"the lock is made on {' '.join(WHERE)}, and this is {platform.platform()}")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--report", str(report), "--constraint", "constraints.txt", "--editable", ".[dev]"]
        subprocess.run(command, cwd=ROOT, check=True)
        text = locked(json.loads(report.read_text(encoding="utf-8"))["install"])
    (ROOT / "requirements.lock").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
