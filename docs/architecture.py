"""Writes docs/architecture.md: every module of the package with the first line of its docstring.

Run `python docs/architecture.py` after you have added or moved a module, or changed its first line. A test
compares the page with what this script makes.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "rolloutlab"
PAGE = ROOT / "docs" / "architecture.md"

WIDTH = 31
"""Width of the column of names, with their indentation: one more than the longest."""

HEAD = """\
# Architecture

rolloutlab has a notebook side and a service side, which talk over HTTP. Each package under `src/rolloutlab` is a
layer and imports only packages below it. In these lists `a > b` means that `a` is above `b`, and `a | b` that the two
are at the same level:

- Notebook side: `magics` > `session.py` > `training` > `scoring` > `trajectories` > `widgets` | `sampling` >
  `capture` | `environments` > `connection.py` > `auth`.
- Service side: `cli` > `service` > `engines` > `policy`.
- Shared, below both sides: `search` > `store` > `objective` > `api` > `settings` > `plugins.py` > `runtime.py` >
  `fsutil.py` > `keywords.py` > `errors.py` > `hints.py` > `sanitize.py`.
- `integrations` has one module or package for each third party. No other package imports it: `plugins.py` loads its
  modules by entry points.

The two sides never import each other, except that `cli/capture.py` calls the session. `pyproject.toml` lists the
layers and the few exceptions to them, and `make lint` checks them.

`python docs/architecture.py` generates this page from the first line of each module's docstring.

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
