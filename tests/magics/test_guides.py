"""Every guide of docs/ begins with cells that run as they stand, one after the other, in a new notebook."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = [
    "capture",
    "comparing",
    "concepts",
    "connect",
    "environments",
    "fine_tuning",
    "reading",
    "sampling",
    "scoring",
    "search",
    "training",
]
"""Guides of one task each; what is read as reference, or needs another machine, is not among them."""
CELL = re.compile(r"^```(?:python)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def first_cells(guide: str) -> list[str]:
    """The blocks of code before the first heading within a page."""
    beginning = (DOCS / f"{guide}.md").read_text().partition("\n## ")[0]
    cells = [cell for cell in CELL.findall(beginning) if "└" not in cell and "▼" not in cell]  # which are pictures
    return [cell for cell in cells if not cell.startswith("%load_ext")]


@pytest.mark.parametrize("guide", GUIDES)
def test_the_first_cells_of_a_guide_run(notebook, guide):
    cells = first_cells(guide)
    assert cells
    for cell in cells:
        notebook.run(cell)
