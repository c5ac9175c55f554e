"""Pages in Markdown: their links lead somewhere, and the reference is what the code has."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_type_hints

import pytest

from rolloutlab.session import Session

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb")])
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"(?<![\w./])lab\.(?!(?:db|example|py)\b)([a-z]\w*(?:\.[a-z]\w*)?)")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(path: Path) -> str:
    """The text of a page, or of a notebook's cells of text, without blocks of code."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return FENCED.sub("", text)


@cache
def anchors(path: Path) -> set[str]:
    """The headings of a page as GitHub links to them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_repository_leads_to_a_file_and_to_a_heading_of_it(page):
    links = [link for link in LINK.findall(prose(page)) if not re.match(r"https?:", link)]
    dead = []
    for link in links:
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_the_reference_has_what_the_code_has():
    code = "import reference; print(reference.page(), end='')"
    made = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "docs", capture_output=True, text=True, check=True)
    assert (ROOT / "docs" / "reference.md").read_text() == made.stdout, "run: python docs/reference.py"


def test_every_call_of_the_lab_that_a_page_names_exists():
    """`lab.NAME` and `lab.PART.NAME`, in prose and in code; `lab.db`, `lab.py` and `lab.example` are none."""
    parts = get_type_hints(Session)
    missing = []
    for page in PAGES:
        for first, _, second in {call.partition(".") for call in CALL.findall(page.read_text())}:
            kind, name = (parts[first], second) if second and first in parts else (Session, first)
            if not hasattr(kind, name) and name not in parts:
                missing.append((page.name, f"{first}.{second}".strip(".")))
    assert missing == []


def test_the_guide_to_plug_ins_has_the_package_that_is_tested():
    example = ROOT / "tests" / "acceptance" / "plugin"
    files = ["pyproject.toml", "tests/test_plugins.py"]
    modules = ("environment", "reward", "reader", "search", "tracker", "engine")
    files += [f"src/rolloutlab_example/{name}.py" for name in modules]
    page = (ROOT / "docs" / "plugins.md").read_text()
    assert [name for name in files if (example / name).read_text().rstrip() not in page] == []
