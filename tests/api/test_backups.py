"""Backups of one part of a lab folder that are put back: what is older or newer than the rest of it is said."""

import shutil

import pytest

from rolloutlab.fsutil import Lock
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from tests.forked import fork_embedded

pytestmark = pytest.mark.process

LONGEST = 240


class TrainedLab:
    """A lab whose model is at checkpoint 2, with a copy of it at checkpoint 1; no service runs."""

    def __init__(self, home, policy):
        self.home = home
        self.copy = home.with_name("copy")
        self._policy = policy
        session = self.open()
        session.model("lab/first")
        session.chat("letters", "Sort d b a c", n=4, max_tokens=4)
        session.reward("letters", lambda trajectory, *_: float(trajectory.name[-1]))
        session.train("letters", say=lambda _: None)
        self.end(session)
        shutil.copytree(home, self.copy)
        session = self.open()
        session.model("lab/first")
        session.train("letters", say=lambda _: None)
        self.end(session)

    def open(self):
        return Session(Settings(home=self.home, policy=self._policy, linger=0.2))

    def end(self, session):
        session.service("stop")
        session.close()
        with Lock(self.home / "service" / "lock").acquire(timeout=LONGEST):
            pass

    def put_back(self, pattern):
        for path in self.home.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in self.copy.glob(pattern):
            target = self.home / path.relative_to(self.copy)
            shutil.copytree(path, target) if path.is_dir() else shutil.copy(path, target)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_policy):
    with pytest.MonkeyPatch.context() as patch:
        fork_embedded(patch)
        yield TrainedLab(tmp_path_factory.mktemp("trained") / "lab", str(tiny_policy))


@pytest.fixture
def lab(trained, tmp_path, monkeypatch):
    """A copy of the trained lab for one test."""
    fork_embedded(monkeypatch)
    mine = TrainedLab.__new__(TrainedLab)
    mine.home, mine.copy, mine._policy = tmp_path / "lab", trained.copy, trained._policy
    shutil.copytree(trained.home, mine.home)
    return mine


LOST = (
    "1 newer checkpoint of lab/first (2) is set aside: service.db is older and does not list it, as after a backup "
    "was put back; lab/first goes on from 1 -> %models --recover lists it again"
)


def test_a_lab_of_one_time_says_nothing(lab, capsys):
    session = lab.open()
    assert [line for line in session.service("check").splitlines() if not line.endswith("sound")] == [
        f"{session.settings.search_database}: not there"
    ]
    assert repr(session.model("lab/first")) == "model lab/first on tiny: 3 checkpoints, newest 2"
    session.chat("more", "Sort d b a c", max_tokens=4)
    assert capsys.readouterr().out == ""
    lab.end(session)


def test_an_older_database_of_the_service_is_said_wherever_its_model_is_used(lab, capsys):
    lab.put_back("service/service.db*")
    session = lab.open()
    assert LOST in session.service("check").splitlines()  # before a start sets it aside
    first, *notes = repr(session.model("lab/first")).splitlines()
    assert first == "model lab/first on tiny: 2 checkpoints, newest 1"
    assert notes[0] == LOST
    assert LOST in session.service("check").splitlines()
    session.chat("more", "Sort d b a c", n=2, max_tokens=4)
    assert LOST in capsys.readouterr().out.splitlines()
    session.chat("more", "Sort d b a c", max_tokens=4)
    assert LOST not in capsys.readouterr().out  # once for each kernel
    lab.end(session)
    session = lab.open()
    session.model("lab/first")
    said = []
    session.train("letters", say=said.append, wait=False).wait(progress=False)
    assert LOST in said
    lab.end(session)


def test_recovered_checkpoints_are_no_longer_said_to_be_set_aside(lab):
    lab.put_back("service/service.db*")
    session = lab.open()
    session.models.recover()
    assert session.model("lab/first").newest == 2
    assert "set aside" not in session.service("check") + repr(session.model("lab/first"))
    lab.end(session)


def test_a_service_folder_of_another_time_is_said(lab, capsys):
    lab.put_back("service")
    session = lab.open()
    (note,) = [line for line in session.service("check").splitlines() if line.startswith("this lab has trained")]
    assert note.startswith(
        "this lab has trained lab/first to checkpoint 2, and service.db has no more than 1: they are "
    )
    assert note.endswith(f"put {session.settings.service_folder} of the same backup in its place")
    assert repr(session.model("lab/first")).splitlines()[1:] == [note]
    session.chat("more", "Sort d b a c", max_tokens=4)
    assert note in capsys.readouterr().out.splitlines()
    lab.end(session)


def test_a_lab_without_its_service_folder_is_said(lab, capsys):
    shutil.rmtree(lab.home / "service")
    session = lab.open()
    (note,) = [line for line in session.service("check").splitlines() if line.startswith("this lab has trained")]
    assert note.startswith("this lab has trained lab/first to checkpoint 2, and service.db does not list it")
    session.model("lab/first")
    session.chat("more", "Sort d b a c", max_tokens=4)
    assert "to checkpoint 2, and service.db has no more than 0" in capsys.readouterr().out
    lab.end(session)


@pytest.mark.parametrize("older", [True, False], ids=["an older lab.db", "no lab.db"])
def test_a_database_of_the_lab_older_than_that_of_the_service_is_said(lab, older):
    lab.put_back("lab.db*")
    if not older:
        for path in lab.home.glob("lab.db*"):
            path.unlink()
    session = lab.open()
    jobs = "1 job" if older else "2 jobs"
    note = f"{jobs} of lab/first in service.db that lab.db does not have: another program has sent them, or lab.db is "
    note += "older, as after a backup was put back -> %compare cannot know what they trained on"
    assert note in session.service("check").splitlines()
    assert note in repr(session.model("lab/first")).splitlines()
    lab.end(session)
