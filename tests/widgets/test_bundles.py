"""What is built for the browser: small, alone, and made of modules that put text into pages as text."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from rolloutlab.widgets.base import BUNDLES

ROOT = Path(__file__).parents[2]
MODULES = BUNDLES.with_name("js")
KILOBYTES = {"rewards.js": 320, "group.js": 90, "job.js": 80, "run.js": 90, "form.js": 90, "login.js": 10}
"""The most that each may weigh; a saved notebook holds one copy for each view that it shows."""
STYLE_KILOBYTES = 60
HARMLESS = re.compile(
    r"/\*[!*].*?\*/|http://www\.w3\.org/\d+/\w+|\"http://\"(?=\+)|Please report this to https://[\w./]+", re.DOTALL
)
"""Licences, names of XML, and texts of marked: what it puts before www. for a link, of which the view makes text."""
ADDRESS = re.compile(r"(?:https?|wss?)://|[\"'(]//\w+\.\w")
LOADS = {
    ".js": re.compile(r"\bimport\s*\(|\bfrom\s*[\"']|\bWebSocket\b|sendBeacon"),
    ".css": re.compile(r"@import|\burl\((?![\"']?data:)"),
}
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc")


def built(name: str) -> str:
    path = BUNDLES / name
    if not path.exists():
        pytest.fail(f"{path} is not built: `npm ci && npm run build`, or `pip install --editable .` for all of it")
    return path.read_text(encoding="utf-8")


def test_every_module_has_a_budget() -> None:
    assert {path.name for path in MODULES.glob("*.js")} == set(KILOBYTES)


@pytest.mark.parametrize(("name", "kilobytes"), KILOBYTES.items())
def test_a_bundle_weighs_no_more_than_its_budget(name: str, kilobytes: int) -> None:
    assert len(built(name).encode()) <= 1000 * kilobytes
    assert len(built(name.replace(".js", ".css")).encode()) <= 1000 * STYLE_KILOBYTES


@pytest.mark.parametrize("name", [*KILOBYTES, *(name.replace(".js", ".css") for name in KILOBYTES)])
def test_a_bundle_loads_nothing_from_anywhere(name: str) -> None:
    text = HARMLESS.sub("", built(name))
    assert ADDRESS.findall(text) + LOADS[Path(name).suffix].findall(text) == []


@pytest.mark.parametrize("path", sorted(MODULES.rglob("*.js")), ids=lambda path: str(path.relative_to(MODULES)))
def test_no_module_makes_markup_of_text(path: Path) -> None:
    code = re.sub(r"(?m)//.*$|/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert MARKUP.findall(code) == []


def test_the_wheels_metadata_has_the_licences_of_everything_that_is_bundled() -> None:
    lock = json.loads((ROOT / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    bundled = {path: package["license"] for path, package in lock.items() if path and not package.get("dev")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["license"].split(" AND ")) == {"Apache-2.0", *bundled.values()}
    for path in bundled:
        [text] = (ROOT / path).glob("LICEN[CS]E*")
        assert (ROOT / "licenses" / f"{text.parent.name}.txt").read_text("utf-8") == text.read_text("utf-8")
    shipped = {path for pattern in project["license-files"] for path in ROOT.glob(pattern)}
    assert shipped == {ROOT / "LICENSE", *(ROOT / "licenses" / f"{Path(path).name}.txt" for path in bundled)}
