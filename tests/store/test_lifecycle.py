"""Collections deleted, restored and renamed; nothing is erased."""

import pytest

from rolloutlab.errors import ConflictError, InputError, NotFoundError
from rolloutlab.store.lab import Lab


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    for name in ("capitals", "capitals", "rivers"):
        lab.open_collection(name)
    yield lab
    lab.close()


def labels(lab):
    return [each.label for each in lab.collections()]


def test_a_bare_name_deletes_and_restores_all_generations(lab):
    assert lab.lifecycle.delete("capitals") == ["capitals", "capitals:1"]
    assert labels(lab) == ["rivers"]
    assert lab.lifecycle.restore("capitals") == ["capitals", "capitals:1"]
    assert labels(lab) == ["rivers", "capitals", "capitals:1"]


def test_without_its_newest_generation_the_name_means_the_one_before(lab):
    assert lab.lifecycle.delete("capitals:2") == ["capitals:2"]
    assert labels(lab) == ["rivers", "capitals"]
    assert lab.find("capitals").generation == 1


def test_what_was_deleted_last_is_restored_first(lab):
    lab.lifecycle.delete("capitals:1")
    lab.lifecycle.delete("capitals")
    assert lab.lifecycle.restore("capitals") == ["capitals"]
    assert lab.lifecycle.restore("capitals") == ["capitals:1"]


def test_what_can_be_restored_is_known_by_name(lab):
    assert lab.lifecycle.deleted() == []
    lab.lifecycle.delete("rivers")
    lab.lifecycle.delete("capitals:1")
    assert lab.lifecycle.deleted() == ["capitals", "capitals:1", "rivers", "rivers:1"]


def test_a_name_that_was_deleted_begins_after_its_last_generation(lab):
    lab.lifecycle.delete("capitals")
    assert lab.open_collection("capitals").generation == 3
    lab.lifecycle.restore("capitals")
    assert labels(lab) == ["capitals", "rivers", "capitals:2", "capitals:1"]


def test_what_is_deleted_is_found_nowhere_and_suggested_to_nobody(lab):
    lab.lifecycle.delete("rivers")
    with pytest.raises(NotFoundError) as missing:
        lab.collection("rivers")
    assert missing.value.hint == "%collections lists them"
    with pytest.raises(NotFoundError):
        lab.find("rivers:1")
    with pytest.raises(NotFoundError):
        lab.lifecycle.delete("rivers")


def test_a_rename_takes_all_generations_and_can_be_undone(lab):
    lab.lifecycle.delete("capitals:1")
    lab.lifecycle.rename("capitals", "cities")
    assert labels(lab) == ["rivers", "cities"]
    lab.lifecycle.rename("cities", "capitals")
    lab.lifecycle.restore("capitals")
    assert labels(lab) == ["rivers", "capitals", "capitals:1"]


def test_a_name_in_use_is_refused_also_when_its_collection_is_deleted(lab):
    with pytest.raises(ConflictError, match="there is a collection 'rivers' already"):
        lab.lifecycle.rename("capitals", "rivers")
    lab.lifecycle.delete("rivers")
    with pytest.raises(ConflictError) as held:
        lab.lifecycle.rename("capitals", "rivers")
    assert held.value.hint == "%collections --restore rivers"


@pytest.mark.parametrize("label", ["capitols", "capitals:9", "no name", "capitals:"])
def test_what_is_not_there_cannot_be_deleted_or_restored(lab, label):
    for deed in (lab.lifecycle.delete, lab.lifecycle.restore):
        with pytest.raises(NotFoundError):
            deed(label)


def test_one_generation_has_no_name_of_its_own(lab):
    with pytest.raises(InputError):
        lab.lifecycle.rename("capitals:1", "cities")
    with pytest.raises(NotFoundError):
        lab.lifecycle.rename("capitols", "cities")
