"""Which collections a line of names and patterns means."""

import pytest

from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.store.lab import Lab
from rolloutlab.trajectories.collection import select


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    for name in ("capitals", "letters", "capes", "capitals"):
        lab.open_collection(name)
    yield lab
    lab.close()


def labels(lab, *names: str) -> list[str]:
    return [collection.label for collection in select(lab, names)]


def test_names_mean_what_they_say_in_their_order(lab):
    assert labels(lab, "letters", "capitals:1", "capitals") == ["letters:1", "capitals:1", "capitals:2"]
    assert [collection.label for collection in select(lab, "letters")] == ["letters:1"]


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("cap*", ["capes:1", "capitals:2"]),
        ("*", ["capes:1", "capitals:2", "letters:1"]),
        ("?apes", ["capes:1"]),
        ("[kl]etters", ["letters:1"]),
    ],
)
def test_a_pattern_means_the_newest_generation_of_each_that_fits(lab, pattern, meant):
    assert labels(lab, pattern) == meant


def test_a_collection_that_several_patterns_mean_is_there_once(lab):
    assert labels(lab, "capitals", "cap*", "*s") == ["capitals:2", "capes:1", "letters:1"]


def test_an_older_generation_is_another_collection(lab):
    assert labels(lab, "capitals:1", "capit*") == ["capitals:1", "capitals:2"]


@pytest.mark.parametrize("names", [("letters", "letters"), ("capitals", "letters", "capitals:2")])
def test_a_name_that_is_given_twice_is_an_error(lab, names):
    with pytest.raises(InputError, match="twice"):
        labels(lab, *names)


def test_a_pattern_that_fits_nothing_names_the_closest(lab):
    with pytest.raises(NotFoundError, match=r"no collection's name fits 'kap\*'") as refused:
        labels(lab, "letters", "kap*")
    assert refused.value.hint == "capes, capitals"


def test_a_pattern_is_of_bare_names(lab):
    with pytest.raises(NotFoundError):
        labels(lab, "capitals:*")
