"""Names and prose in the field's words: CONTRIBUTING.md, "Style"."""

import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "rolloutlab"
VAGUE_NAMES = {"found", "said", "told"}
VAGUE_PRONOUN = re.compile(r"\b(nobody|whoever|somebody|anybody)\b", re.IGNORECASE)


def prose() -> list[Path]:
    source = [path for suffix in ("py", "js", "html") for path in PACKAGE.rglob(f"*.{suffix}")]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    return sorted(path for path in (*source, *pages) if "static" not in path.parts)


def names(path: Path) -> set[str]:
    """Every identifier that a module binds or reads, without leading underscores."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    values = (getattr(node, field, None) for node in nodes for field in ("id", "arg", "attr", "name"))
    return {value.strip("_") for value in values if isinstance(value, str)}


def text(path: Path) -> str:
    """What a person wrote: of a notebook its cells, without their outputs."""
    if path.suffix != ".ipynb":
        return path.read_text()
    return "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_name_is_what_its_value_is(path: Path):
    assert names(path) & VAGUE_NAMES == set()


@pytest.mark.parametrize("path", prose(), ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_names_the_process_or_the_person_it_is_about(path: Path):
    assert VAGUE_PRONOUN.findall(text(path)) == []
