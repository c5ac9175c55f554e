"""`%connect tinker:MODEL`: the embedded service on the hosted Tinker service, whose key is in its variable alone."""

import re

import pytest

from rolloutlab.settings.connected import connect_settings

URL = "https://tinker.thinkingmachines.dev/services/tinker-prod"
MODEL = "Qwen/Qwen3-8B"


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tinker-key-of-this-test")


def test_the_embedded_service_is_to_start_with_this_engine_and_model(notebook, key):
    before = notebook.lab.settings
    state = repr(notebook.run(f"%connect tinker:{MODEL}"))
    assert "the embedded service is not running; it starts when it is needed" in state
    assert "tinker-key-of-this-test" not in state
    for name in ("policy", "engine", "engine_url"):
        assert re.search(rf"^  {name} .*\(%connect tinker:{MODEL}\)$", state, re.MULTILINE)
    settings = notebook.lab.settings
    assert settings.service is None
    assert (settings.policy, settings.model.engine, settings.model.engine_url) == (MODEL, "tinker", URL)
    assert notebook.lab.embedded.settings is settings
    notebook.run("%connect embedded")
    assert (notebook.lab.settings.policy, notebook.lab.settings.model) == (before.policy, before.model)
    assert notebook.lab.embedded.settings.model.engine == "local"


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        (f"%connect tinker:{MODEL} --inference https://other.example", "--inference is for a service elsewhere"),
        (f"%connect tinker:{MODEL} --key-env OTHER", "--key-env is for a service elsewhere"),
        ("%connect tinker:", "'' is not the name of a model"),
        ("%connect tinker", "-> %connect tinker:Qwen/Qwen3-8B"),
        ("%connect tinker:--engine/x", "is not the name of a model"),
        ("%connect https://api.training.wandb.ai/v1", "is of the kind wandb"),
    ],
)
def test_what_it_does_not_take_is_refused_and_nothing_changes(notebook, key, cell, why):
    before = notebook.lab.settings
    assert why in notebook.error(cell)
    assert notebook.lab.settings is before


def test_without_the_key_it_is_not_chosen(notebook, monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    assert "TINKER_API_KEY, which should hold the key, is not set" in notebook.error(f"%connect tinker:{MODEL}")


def test_a_url_of_the_settings_does_not_get_the_key(notebook):
    settings = notebook.lab.settings
    model = settings.model.model_copy(update={"engine": "tinker", "engine_url": "https://other.example"})
    configured = settings.__class__(home=settings.home, model=model)
    chosen = connect_settings(configured, configured, f"tinker:{MODEL}", {}, {"TINKER_API_KEY": "x"})
    assert chosen.model.engine_url == URL
