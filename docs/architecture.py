"""Writes docs/architecture.md: every module of the package with the first line of its docstring.

Run it after a module was added, moved or described anew: `python docs/architecture.py`. A test compares the page with
what this prints.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "rolloutlab"
PAGE = ROOT / "docs" / "architecture.md"

WIDTH = 31
"""Columns of a name with its indentation: one more than the longest."""

HEAD = """\
# Architecture

Each room is a layer, and imports point down: `pyproject.toml` has the layers and `make lint` enforces them.

- Notebook side: `magics` > `session.py` > `training` > `scoring` > `trajectories` > `widgets` | `sampling` >
  `capture` | `environments` > `connection.py` > `auth`.
- Shared: `search` > `store` > `objective` > `api` > `settings` > `plugins.py` > `runtime.py` > `fsutil.py` >
  `errors.py` > `sanitize.py`.
- `integrations` know third parties by name. Nothing imports them: `plugins.py` finds them by entry points.
- Service side: `cli` > `service` > `engines` > `policy`, on top of the shared rooms. The two sides
  never import each other, except that `cli/capture.py` calls the session.

This page is generated from the first line of each module by `python docs/architecture.py`.

"""


def first_line(path: Path) -> str:
    """The first line of a module's docstring, without its full stop."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].rstrip(".")


def listing(folder: Path, depth: int = 1) -> list[str]:
    """The modules of a folder, then its sub-packages, one line each."""
    lines = [
        f"{'  ' * depth}{path.name:<{WIDTH - 2 * depth}}{first_line(path)}"
        for path in sorted(folder.glob("*.py"))
        if path.name != "__init__.py" or folder == PACKAGE
    ]
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").exists():
            lines.append(f"{'  ' * depth}{path.name + '/':<{WIDTH - 2 * depth}}{first_line(path / '__init__.py')}")
            lines += listing(path, depth + 1)
    return lines


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(["```", "src/rolloutlab/", *listing(PACKAGE), "```"]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
