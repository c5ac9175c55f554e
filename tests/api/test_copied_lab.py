"""A copy of a lab folder, made while the service of the original runs: it is a lab of its own, with its own service."""

import json
import os
import shutil

import pytest

from rolloutlab.fsutil import Lock
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from tests.forked import fork_embedded

pytestmark = pytest.mark.process

LONGEST = 240


@pytest.fixture
def open_lab(tmp_path, tiny_policy, monkeypatch):
    """A notebook of a lab folder, by its name; all services have ended when the test has."""
    fork_embedded(monkeypatch)
    sessions = []

    def make(name):
        sessions.append(Session(Settings(home=tmp_path / name, policy=str(tiny_policy), linger=0.5)))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()
    for session in sessions:
        with Lock(session.settings.service_folder / "lock").acquire(timeout=LONGEST):
            pass


def published(session):
    return json.loads((session.settings.service_folder / "service.json").read_text())


def copied(session, name):
    """`cp -a`: also what the service has published, the token, the lock and the locks of its clients."""
    home = session.settings.home
    shutil.copytree(home, home.with_name(name))


def test_a_copy_of_a_lab_trains_its_own_model_while_the_service_of_the_original_runs(open_lab):
    original = open_lab("lab")
    original.model("lab/first")
    original.chat("letters", "Sort d b a c", n=4, max_tokens=4)
    original.reward("letters", lambda trajectory, *_: float(trajectory.name[-1]))
    copied(original, "copy")
    copy = open_lab("copy")
    assert copy.service() == "the embedded service is not running; the first %%chat starts it"
    copy.model("lab/first")
    copy.train("letters", say=lambda _: None)
    assert [session.model().newest for session in (original, copy)] == [0, 1]
    assert [len(session.jobs()) for session in (original, copy)] == [0, 1]
    assert published(original)["pid"] != published(copy)["pid"]


def test_stopping_the_service_of_a_copy_leaves_that_of_the_original_running(open_lab):
    original = open_lab("lab")
    original.model("lab/first")
    before = published(original)
    copied(original, "copy")
    stopped = "the embedded service is not running; the first %%chat starts it"
    assert open_lab("copy").service("stop") == stopped
    assert original.service().startswith(f"the embedded service runs at {before['base_url']}")
    assert published(original) == before


def test_a_service_that_has_just_locked_the_folder_of_a_copy_is_not_taken_for_that_of_the_original(open_lab):
    original = open_lab("lab")
    original.model("lab/first")
    copied(original, "copy")
    copy = open_lab("copy")
    stopped = "the embedded service is not running; the first %%chat starts it"
    assert copy.service() == stopped
    with Lock(copy.settings.service_folder / "lock"):  # what the original's service has published lies there still
        assert copy.service() == stopped


def test_another_notebook_reaches_the_service_of_a_lab_through_a_link_to_its_folder(open_lab):
    original = open_lab("lab")
    original.model("lab/first")
    home = original.settings.home
    home.with_name("link").symlink_to(home)
    assert open_lab("link").model("lab/first").newest == 0
    assert published(original)["pid"] == published(open_lab("link"))["pid"] != os.getpid()
