"""After notebook 08 has run, no secret of it is where others may read it. Secrets are noted where they are drawn."""

import os
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytest.importorskip("mcp")
pytest.importorskip("torch")

pytestmark = pytest.mark.process

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LONGEST_CELL = 600
KINDS = {
    "rolloutlab.auth.authorization.prepare": "state",
    "rolloutlab.auth.pkce.new_verifier": "verifier",
    "rolloutlab.auth.redirect.login.__init__": "ticket of a login",
    "rolloutlab.service.oauth.consent.show": "form of the consent page",
    "rolloutlab.service.oauth.grants._insert_token": "code or token",
    "rolloutlab.service.lifecycle.draw_token": "token of the service",
    "rolloutlab.service.lifecycle.key": "key of the service",
}
"""Secrets by who draws them."""
PUBLIC = {
    "rolloutlab.auth.redirect.loopback.listening",  # a redirect URI, which the client's id holds
    "rolloutlab.service.oauth.clients.add",  # client ids, which %whoami shows
    "rolloutlab.service.oauth.page.show",  # nonces of pages
    "rolloutlab.auth.redirect.page.render",
}


@dataclass(frozen=True)
class Ran:
    """A run of notebook 08. canaries: secrets and what each is. places: what others may read, by where it is."""

    canaries: Mapping[str, str]
    places: Mapping[str, bytes]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("canaries")
    home, drawn = folder / "lab", folder / "drawn"
    (folder / "noting").mkdir()
    shutil.copy(Path(__file__).with_name("drawn.py"), folder / "noting" / "sitecustomize.py")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder / "noting"), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "ROLLOUTLAB_TEST_DRAWN": str(drawn),
        "ROLLOUTLAB_HOME": str(home),
        "ROLLOUTLAB_LINGER": "1",
        "ROLLOUTLAB_BROWSER": shlex.join([sys.executable, str(NOTEBOOKS / "browser.py")]),
    }
    notebook = nbformat.read(NOTEBOOKS / "08_sign_in_and_tools.ipynb", as_version=4)
    history = str(folder / "history.sqlite")
    client = NotebookClient(notebook, timeout=LONGEST_CELL, store_widget_state=True, ipython_hist_file=history)
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        client.execute(env=environment, stdout=out, stderr=err)
    nbformat.write(notebook, folder / "notebook.ipynb")
    canaries = dict(noted(drawn))
    passcode = (home / "service" / "passcode").read_text().strip()
    canaries |= {passcode: "passcode", passcode.replace("-", ""): "passcode"}
    return Ran(canaries, dict(readable(folder, home)))


def noted(drawn: Path) -> Iterator[tuple[str, str]]:
    """Each secret that was drawn, and what it is."""
    for line in drawn.read_text().splitlines():
        who, secret = line.split()
        if who not in PUBLIC:
            yield secret, KINDS[who]  # a new kind has to be named, or be said to be public


def readable(folder: Path, home: Path) -> Iterator[tuple[str, bytes]]:
    """What is left behind where others may read it; in the lab, each file whose mode lets them."""
    for name in ("notebook.ipynb", "stdout", "stderr"):
        yield name, (folder / name).read_bytes()
    for path in folder.glob("history.sqlite*"):
        yield path.name, path.read_bytes()
    yield "service/log", (home / "service" / "log").read_bytes()
    for path in home.rglob("*"):
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            yield f"lab/{path.relative_to(home)}", path.read_bytes()


def leaks(places: Mapping[str, bytes], canaries: Mapping[str, str]) -> set[tuple[str, str]]:
    """Where a secret is, and of what kind."""
    return {
        (place, kind) for place, held in places.items() for secret, kind in canaries.items() if secret.encode() in held
    }


def test_every_kind_of_secret_was_drawn_and_noted(ran):
    assert {*KINDS.values(), "passcode"} - {"ticket of a login"} <= set(ran.canaries.values())
    kinds = list(ran.canaries.values())
    assert kinds.count("state") == kinds.count("verifier") == 2  # the sign-in and the step-up
    assert kinds.count("code or token") == 6  # a code, an access and a refresh token of each
    assert all(len(secret) >= 12 for secret in ran.canaries)


def test_what_was_looked_through_is_what_the_notebook_left_behind(ran):
    assert b"signed in by" in ran.places["notebook.ipynb"]
    assert b"application/vnd.jupyter.widget-state+json" in ran.places["notebook.ipynb"]
    assert b"rolloutlab serves" in ran.places["service/log"]
    assert b"%login embedded" in b"".join(held for name, held in ran.places.items() if name.startswith("history"))
    assert b"tasks:1/0/0" in b"".join(ran.places.values())
    assert any(name.startswith("lab/lab.db") for name in ran.places)


def test_no_secret_is_where_others_may_read_it(ran):
    assert leaks(ran.places, ran.canaries) == set()


def test_the_scan_finds_each_kind_wherever_it_is_planted(ran):
    for secret, kind in ran.canaries.items():
        for place, held in ran.places.items():
            planted = {**ran.places, place: held[: len(held) // 2] + secret.encode() + held[len(held) // 2 :]}
            assert leaks({place: planted[place]}, ran.canaries) >= {(place, kind)}
