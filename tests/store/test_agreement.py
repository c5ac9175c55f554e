"""Whether the parts of a lab folder are of one time."""

from rolloutlab.settings import Settings
from rolloutlab.store.agreement import find_disagreements


def test_a_disk_that_does_not_list_the_checkpoints_is_no_disagreement(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.glob", fails)
    assert find_disagreements(Settings(home=tmp_path)) == []
