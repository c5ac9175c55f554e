"""Trackers by name, opened before anything is sent."""

import sys

import pytest

from rolloutlab import plugins
from rolloutlab.errors import InputError
from rolloutlab.runs.tracker import open_trackers


@pytest.mark.parametrize("name", ["trackio", "tensorboard", "wandb"])
def test_a_tracker_whose_package_is_not_installed_says_what_to_install(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not there
    with pytest.raises(InputError) as error:
        open_trackers([name], tmp_path)
    assert error.value.hint == f"pip install {name}"


def test_an_unknown_tracker_is_an_error_with_the_closest_name(tmp_path):
    with pytest.raises(InputError, match="'tensorbord'") as error:
        open_trackers(["tensorbord"], tmp_path)
    assert error.value.hint == "tensorboard"


def test_the_trackers_of_this_package_are_listed():
    assert plugins.names(plugins.TRACKERS)[:3] == ["tensorboard", "trackio", "wandb"]
