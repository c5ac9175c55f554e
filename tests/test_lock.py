"""The lock file that `make` installs: complete, with hashes, and of no machine and no registry."""

import importlib
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINE = re.compile(r"(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[0-9][a-z0-9.]*) --hash=sha256:[0-9a-f]{64}")


@pytest.fixture
def lock(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("lock")


def entry(name: str, version: str, digest: str = "0" * 64):
    url = f"file:///somewhere/{name}.whl"
    return {
        "metadata": {"name": name, "version": version},
        "download_info": {"url": url, "archive_info": {"hashes": {"sha256": digest}}},
    }


def names(text: str) -> dict[str, str]:
    """Version by name, of every line but the comment; a line of any other form fails."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    matches = [LINE.fullmatch(line) for line in lines]
    assert all(matches), [line for line, match in zip(lines, matches, strict=True) if not match]
    return {match["name"]: match["version"] for match in matches if match}


def test_every_line_of_the_lock_is_a_name_a_version_and_a_hash():
    assert len(names((ROOT / "requirements.lock").read_text())) > 100


ELSEWHERE = {"gymnasium", "ray", "reasoning-gym", "textarena", "trackers"}
"""Extras of environments of their own, which `make test` does not need."""


def test_what_the_project_asks_for_is_locked_within_its_bounds_but_for_torch():
    pytest.importorskip("packaging")
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: each for name, each in project["optional-dependencies"].items() if name not in ELSEWHERE}
    wanted = map(Requirement, [*project["dependencies"], *(each for extra in extras.values() for each in extra)])
    locked = names((ROOT / "requirements.lock").read_text())
    for requirement in wanted:
        name = canonicalize_name(requirement.name)
        if name not in {"torch", "rolloutlab"}:
            assert requirement.specifier.contains(locked[name]), requirement
    assert "torch" not in locked


def test_what_constraints_pin_is_what_is_locked():
    pinned = re.findall(r"(?m)^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text())
    locked = names((ROOT / "requirements.lock").read_text())
    assert dict(pinned) == {**{name: locked.get(name, version) for name, version in pinned}}
    assert {"torch", "pyarrow"} == {name for name, _ in pinned}


def test_a_report_becomes_sorted_lines_without_places(lock):
    report = [entry("Typing_Extensions", "4.16.0", "a" * 64), entry("attrs", "26.1.0", "b" * 64)]
    own = {"metadata": {"name": "rolloutlab", "version": "0.1.0"}, "download_info": {"url": "file:///here"}}
    text = lock.locked([*report, own, entry("torch", "2.13.0+cpu")])
    assert text.splitlines()[1:] == [
        f"attrs==26.1.0 --hash=sha256:{'b' * 64}",
        f"typing-extensions==4.16.0 --hash=sha256:{'a' * 64}",
    ]


def test_a_lock_is_not_written_with_a_cuda_build_of_torch(lock):
    with pytest.raises(ValueError, match=r"torch 2\.13\.0, which is a CUDA build"):
        lock.locked([entry("torch", "2.13.0")])


@pytest.mark.parametrize(
    ("system", "machine", "python", "fits"),
    [
        ("Linux", "x86_64", "3.11.7", True),
        ("Linux", "x86_64", "3.12.1", False),
        ("Linux", "aarch64", "3.11.7", False),
        ("Darwin", "arm64", "3.11.7", False),
    ],
)
def test_the_lock_is_for_the_platform_of_its_hashes(lock, monkeypatch, system, machine, python, fits):
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("platform.python_version", lambda: python)
    assert lock.fits() is fits


def test_make_asks_whether_the_lock_fits_by_an_exit_status(lock):
    asked = subprocess.run([sys.executable, str(ROOT / "lock.py"), "--fits"], check=False)
    assert asked.returncode == (not lock.fits())


COMES_WITH = {
    "anyio": "mcp",
    "httpx2": "mcp",
    "jupyter_server": "the Jupyter server, inside which alone it is imported",
    "markupsafe": "jinja2",
    "mcp_types": "mcp",
    "pydantic_core": "pydantic",
    "starlette": "fastapi",
    "tokenizers": "transformers",
    "tornado": "the Jupyter server",
    "traitlets": "ipython",
}
"""Modules that need no declaration of their own: what they come with needs them too, in the version that fits."""


def test_what_is_imported_directly_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    declared = {re.split(r"[\[<>=]", text)[0].lower().replace("_", "-") for text in texts}
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    modules = set(re.findall(r"(?m)^(?:from|import) (\w+)", source)) - sys.stdlib_module_names - {"rolloutlab"}
    for module, distributions in metadata.packages_distributions().items():
        if module in modules - COMES_WITH.keys():
            assert {each.lower().replace("_", "-") for each in distributions} & declared, module
