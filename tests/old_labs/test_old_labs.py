"""A lab folder that 0.1.0 of 2026-11 wrote opens and goes on: its service was killed with one job running, two queued.

The archive holds `lab.db`, `search.db` and the service's folder as they were left, without locks and tokens.
"""

import tarfile
from pathlib import Path

import pytest

from rolloutlab.session import Session
from rolloutlab.settings import Settings

ARCHIVE = Path(__file__).with_name("2026_11_killed_while_training.tar.xz")


@pytest.fixture
def old_lab(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    session = Session(Settings(tmp_path / "lab", None, "practice", linger=1.0))
    yield session
    session.close()


def test_collections_rewards_and_their_history_are_as_they_were(old_lab):
    assert old_lab.rewards("capitals:1").to_frame()["reward"].tolist()[2] == 1.0
    history = old_lab.collection("capitals:1").reward_history()
    assert len(history) == 5  # four by the function, one by hand
    old_lab.collection("capitals:1").undo_rewards()
    assert old_lab.rewards("capitals:1").to_frame()["reward"].tolist()[2] != 1.0
    assert len(old_lab.collection("words").groups) == 2


def test_a_deleted_collection_is_restored(old_lab):
    old_lab.restore("gone")
    [group] = old_lab.collection("gone").groups
    assert len(group.trajectories) == 2


def test_its_search_index_answers(old_lab):
    assert len(old_lab.search("yes", k=50).hits) == 6


@pytest.mark.process
def test_its_queued_jobs_run_one_after_another(old_lab):
    for job in reversed(old_lab.jobs().index):
        old_lab.job(job).wait()
    jobs = old_lab.jobs()
    assert jobs["status"].tolist() == ["succeeded"] * 3
    assert jobs["step"].tolist() == [3, 2, 1]
    assert old_lab.models.list().loc["lab/practice", "newest"] == 3
