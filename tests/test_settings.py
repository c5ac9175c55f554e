"""Where the lab lives and which service it talks to, from the environment."""

import dataclasses
from pathlib import Path

import platformdirs
import pytest

from rolloutlab.errors import InputError
from rolloutlab.settings import Address, Settings, read_settings

HOSTED = {"ROLLOUTLAB_URL": "https://train.example", "ROLLOUTLAB_API_KEY": "sekret"}


def environment(**overrides: str) -> dict[str, str]:
    return {"ROLLOUTLAB_HOME": "/labs/mine", **overrides}


def test_an_empty_environment_means_the_users_data_folder_and_the_embedded_practice_policy():
    home = Path(platformdirs.user_data_dir("rolloutlab"))
    assert read_settings({}) == Settings(home=home, service=None, policy="practice", linger=60.0)


def test_every_variable_is_read():
    given = environment(**HOSTED, ROLLOUTLAB_POLICY="/policies/tiny", ROLLOUTLAB_LINGER="1.5")
    service = Address("https://train.example", "https://train.example/v1", "sekret")
    assert read_settings(given) == Settings(Path("/labs/mine"), service, "/policies/tiny", 1.5)


def test_without_an_argument_the_environment_of_the_process_is_read(monkeypatch):
    monkeypatch.setenv("ROLLOUTLAB_HOME", "/labs/mine")
    assert read_settings().home == Path("/labs/mine")


def test_a_tilde_is_the_users_home_and_a_relative_folder_becomes_absolute(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.chdir(tmp_path)
    assert read_settings({"ROLLOUTLAB_HOME": "~/lab"}).home == Path("/home/ada/lab")
    assert read_settings({"ROLLOUTLAB_HOME": "lab"}).home == tmp_path / "lab"


def test_the_files_of_a_lab_are_in_its_folder():
    settings = read_settings(environment())
    assert settings.database == Path("/labs/mine/lab.db")
    assert settings.service_folder == Path("/labs/mine/service")


@pytest.mark.parametrize(
    "url",
    ["https://train.example", "https://train.example/", "https://train.example/v1", "https://train.example/v1/"],
)
def test_the_base_address_excludes_the_version_and_the_inference_address_ends_in_it(url):
    service = read_settings(environment(ROLLOUTLAB_URL=url)).service
    assert service == Address("https://train.example", "https://train.example/v1", None)


def test_a_path_before_the_version_is_kept():
    service = read_settings(environment(ROLLOUTLAB_URL="https://train.example/api/v1")).service
    assert service == Address("https://train.example/api", "https://train.example/api/v1")


def test_inference_may_have_an_address_of_its_own():
    given = environment(**HOSTED, ROLLOUTLAB_INFERENCE_URL="https://infer.example/v1/")
    service = read_settings(given).service
    assert service == Address("https://train.example", "https://infer.example/v1", "sekret")


@pytest.mark.parametrize("bad", ["soon", "1 minute", "nan"])
def test_a_linger_that_is_no_number_of_seconds_is_refused_with_its_value(bad):
    with pytest.raises(InputError, match="ROLLOUTLAB_LINGER") as refused:
        read_settings(environment(ROLLOUTLAB_LINGER=bad))
    assert repr(bad) in refused.value.message
    assert refused.value.hint == "ROLLOUTLAB_LINGER=60"


@pytest.mark.parametrize(
    "name",
    [
        "ROLLOUTLAB_HOME",
        "ROLLOUTLAB_URL",
        "ROLLOUTLAB_INFERENCE_URL",
        "ROLLOUTLAB_API_KEY",
        "ROLLOUTLAB_POLICY",
        "ROLLOUTLAB_LINGER",
    ],
)
def test_an_empty_variable_is_an_absent_one(name):
    others = {key: value for key, value in environment(**HOSTED).items() if key != name}
    assert read_settings({**others, name: ""}) == read_settings(others)


def test_no_token_is_shown_with_the_settings():
    settings = read_settings(environment(**HOSTED))
    assert settings.service.token == "sekret"
    assert "sekret" not in f"{settings} {settings!r} {settings.service} {settings.service!r}"


@pytest.mark.parametrize("value", [read_settings(environment()), Address("http://a", "http://a/v1")])
def test_settings_cannot_be_changed(value):
    first = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, first, "other")
