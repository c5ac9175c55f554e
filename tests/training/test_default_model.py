"""The model that is sampled and trained before any is selected: each policy of a lab has one of its own."""

import sqlite3

import pytest

from rolloutlab.session import Session
from rolloutlab.settings import Address, ModelSettings, Settings
from rolloutlab.training.default_model import default_model


@pytest.fixture
def used(tmp_path):
    """Makes a lab whose service has these models of the project `lab`, each on a policy."""

    def make(**policies: str):
        (tmp_path / "service").mkdir(exist_ok=True)
        with sqlite3.connect(tmp_path / "service" / "service.db") as database:
            database.execute("CREATE TABLE models (project TEXT, name TEXT, base_model TEXT)")
            rows = [("lab", name, policy) for name, policy in policies.items()]
            database.executemany("INSERT INTO models VALUES (?, ?, ?)", rows)
        database.close()
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("policy", "model"),
    [
        ("practice", "lab/practice"),
        ("practice-games", "lab/practice-games"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "lab/SmolLM2-135M-Instruct"),
        ("org/a model: new", "lab/a-model-new"),
        ("smollm2", "lab/smollm2"),
        ("...", "lab/policy"),
    ],
)
def test_a_policy_has_a_default_model_of_its_own_name(tmp_path, policy, model):
    assert default_model(Settings(home=tmp_path, policy=policy)) == model


def test_a_folder_has_its_name(tmp_path):
    folder = tmp_path / "my policy"
    folder.mkdir()
    assert default_model(Settings(home=tmp_path, policy=str(folder))) == "lab/my-policy"
    assert default_model(Settings(home=tmp_path, policy=f"{folder}/../my policy/")) == "lab/my-policy"


def test_a_file_has_its_name_without_the_ending(tmp_path):
    file = tmp_path / "Tiny-1.5 (new).Q8_0.gguf"
    file.write_bytes(b"GGUF")
    assert default_model(Settings(home=tmp_path, policy=str(file))) == "lab/Tiny-1.5-new-.Q8_0"
    (tmp_path / "smollm2").mkdir()
    assert default_model(Settings(home=tmp_path, policy=str(tmp_path / "smollm2"))) == "lab/smollm2"


def test_a_lab_of_an_earlier_version_goes_on_with_its_model(used):
    home = used(practice="my-folder")
    (home / "my-folder").mkdir()
    assert default_model(Settings(home=home, policy=str(home / "my-folder"))) == "lab/practice"
    assert default_model(Settings(home=home, policy="practice-games")) == "lab/practice-games"


def test_a_model_of_the_own_name_comes_before_an_older_one(used):
    home = used(practice="tiny", tiny="tiny")
    assert default_model(Settings(home=home, policy="tiny")) == "lab/tiny"


def test_a_database_that_cannot_be_read_is_left_to_the_service(tmp_path):
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "service.db").write_bytes(b"no database")
    assert default_model(Settings(home=tmp_path, policy="tiny")) == "lab/tiny"
    assert (tmp_path / "service" / "service.db").read_bytes() == b"no database"


def test_a_service_elsewhere_has_the_practice_model(tmp_path):
    away = Address("http://127.0.0.1:1", "http://127.0.0.1:1/v1")
    assert default_model(Settings(home=tmp_path, service=away, policy="tiny")) == "lab/practice"


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLOUTLAB_HOME", str(tmp_path / "lab"))
    session = Session()
    yield session
    session.close()


def test_a_policy_that_is_set_in_a_used_kernel_is_the_next_ones(session, monkeypatch):
    assert (session.models.selected, session.embedded.settings.policy) == ("lab/practice", "practice")
    monkeypatch.setenv("ROLLOUTLAB_POLICY", "practice-games")
    monkeypatch.setenv("ROLLOUTLAB_LORA_RANK", "2")
    assert session.models.selected == "lab/practice-games"
    assert session.embedded.settings.policy == session.settings.policy == "practice-games"
    assert session.settings.model == ModelSettings(lora_rank=2)
    assert session.settings.origins["policy"] == "ROLLOUTLAB_POLICY"
    monkeypatch.delenv("ROLLOUTLAB_POLICY")
    assert session.models.selected == "lab/practice"


def test_settings_that_were_handed_in_stay(tmp_path, monkeypatch):
    session = Session(Settings(home=tmp_path, policy="tiny"))
    monkeypatch.setenv("ROLLOUTLAB_POLICY", "practice-games")
    assert session.models.selected == "lab/tiny"
    assert session.settings.policy == "tiny"
    session.close()
