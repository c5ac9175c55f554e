"""Which engine a service computes on, and what is refused because an engine does not honour it."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from pydantic import ValidationError

from rolloutlab.api.health import engine_of
from rolloutlab.api.wire.training import CreateTrainingJob
from rolloutlab.cli.commands import main
from rolloutlab.engines.local import LocalEngine
from rolloutlab.engines.open import open_engine
from rolloutlab.errors import InputError, PolicyError, RefusedError
from rolloutlab.policy.model import load_policy
from rolloutlab.session import Session
from rolloutlab.settings import ModelSettings, Settings, named_policy, read_settings
from tests.conftest import Service


class Partial(LocalEngine):
    """An engine elsewhere that honours less than this machine's own."""

    name = "ray"
    unsupported = {
        "lora_alpha": "it is fixed at 32",
        "ppo": "it has no such loss",
        "device": "the weights are on Ray",
        "grad_clip": "it does not clip",
    }

    def __init__(self, policy: str, _settings: ModelSettings, **progress: Any) -> None:
        super().__init__(load_policy(policy), **progress)
        self.closed = False

    def status(self) -> dict[str, str]:
        return {"device": "cpu", "nodes": "2"}

    def close(self) -> None:
        self.closed = True
        super().close()


@pytest.fixture
def ray(monkeypatch) -> type[Partial]:
    module = ModuleType("rolloutlab.integrations.ray")
    module.open_engine = Partial
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Partial


@pytest.fixture
def partial(start: Callable[..., Service], monkeypatch) -> Iterator[Service]:
    """A service whose engine does not honour everything."""
    for name in ("name", "unsupported", "status"):
        monkeypatch.setattr(LocalEngine, name, getattr(Partial, name))
    return start()


def test_an_engine_elsewhere_is_imported_only_where_it_is_chosen(tiny_policy, ray):
    local, elsewhere = (open_engine(str(tiny_policy), ModelSettings(engine=name)) for name in ("local", "ray"))
    assert (type(local), type(elsewhere)) == (LocalEngine, ray)
    assert local.status() == {"device": "cpu"}
    for engine in (local, elsewhere):
        engine.close()


def test_an_engine_whose_module_cannot_be_imported_names_what_it_lacks(monkeypatch, tmp_path):
    (tmp_path / "ray.py").write_text("import a_package_that_is_not_installed\n")
    monkeypatch.setattr("rolloutlab.integrations.__path__", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "rolloutlab.integrations.ray", raising=False)
    lacks = "the plug-in ray of rolloutlab.engines needs a_package_that_is_not_installed"
    with pytest.raises(ValidationError, match=lacks):
        ModelSettings(engine="ray")
    with pytest.raises(InputError, match=lacks) as error:
        open_engine("practice", ModelSettings.model_construct(engine="ray"))
    assert error.value.hint == "pip install 'rolloutlab[ray]'"


def test_ray_is_imported_as_its_cluster_is_joined_and_not_before(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as where it is not installed
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    assert import_module("rolloutlab.integrations.ray")
    with pytest.raises(PolicyError, match="the engine ray needs ray") as error:
        open_engine("practice", ModelSettings(engine="ray", engine_url="127.0.0.1:1"))
    assert error.value.hint == "pip install 'rolloutlab[ray]'"


def test_a_setting_that_the_engine_does_not_honour_is_refused_at_the_start(tiny_policy, ray):
    with pytest.raises(InputError, match="the engine ray does not honour --lora-alpha: it is fixed at 32"):
        open_engine(str(tiny_policy), ModelSettings(engine="ray", lora_alpha=8))


def test_the_engine_of_this_process_has_no_url():
    with pytest.raises(InputError, match="the engine local computes in this process, at no URL"):
        open_engine("practice", ModelSettings(engine_url="http://127.0.0.1:1"))


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--engine=cloud", "--engine: must be 'local', 'ray' or 'tinker', not 'cloud'"),
        ("--engine-url=https://jo:secret@lab.example", "must not contain a user name or password"),
        ("--engine-url=jo:secret@lab.example:6379", "--engine-url: this is neither an http(s) URL nor HOST:PORT"),
    ],
)
def test_a_wrong_engine_is_an_error_before_the_service_starts(tmp_path, capsys, option, problem):
    assert main(["serve", "--home", str(tmp_path), option]) == 2
    assert problem in capsys.readouterr().err


def test_another_engine_needs_another_embedded_service():
    changed = read_settings({"ROLLOUTLAB_ENGINE": "tinker", "ROLLOUTLAB_ENGINE_URL": "http://127.0.0.1:8000/"})
    name = named_policy(changed.policy, changed.model)
    assert name == "practice --engine=tinker --engine-url=http://127.0.0.1:8000"
    assert name != named_policy("practice", ModelSettings())
    assert changed.origins["engine"] == "ROLLOUTLAB_ENGINE"


def test_a_service_lists_its_engine_and_what_that_does_not_honour_with_settings_in_one_line(partial):
    engine = partial.http.run(engine_of(partial.http, partial.address))
    assert engine.lines() == [
        "engine ray: device cpu, nodes 2",
        "the engine ray does not honour ppo: it has no such loss",
        "the engine ray does not honour grad_clip: it does not clip",
        "the engine ray does not honour the settings lora_alpha, device",
    ]


def test_a_connection_shows_what_the_engine_does_not_honour(partial, tmp_path):
    session = Session(Settings(home=tmp_path / "lab", service=partial.address), http=partial.http)
    assert "the engine ray does not honour ppo: it has no such loss" in repr(session.connect())


def test_a_job_with_an_option_that_the_engine_does_not_honour_is_refused_by_name(partial, body):
    model = partial.register()
    job = CreateTrainingJob.model_validate(body(model.id, experimental_config={"ppo": True}))
    with pytest.raises(RefusedError, match="ppo: the engine ray does not honour it: it has no such loss") as error:
        partial.train(job)
    assert error.value.status == 422


def test_a_job_that_gives_such_an_option_its_default_trains_and_lists_them_in_its_first_event(partial, body):
    model = partial.register()
    job = CreateTrainingJob.model_validate(body(model.id, experimental_config={"ppo": False}))
    events = partial.ended(partial.train(job))
    assert events[0].data["not_honoured"] == Partial.unsupported
    assert events[-1].type == "training_ended"


def test_a_dry_run_and_a_job_name_the_refused_option_before_data_is_sent(partial, tmp_path):
    session = Session(Settings(home=tmp_path / "lab", service=partial.address), http=partial.http)
    session.chat("greetings", "hello", n=2, max_tokens=4, seed=1)
    rewards = iter([0.0, 1.0])
    session.reward("greetings", lambda answer: next(rewards))
    refusal = "the engine ray does not honour ppo: it has no such loss"
    assert f"no job can begin: {refusal} -> leave it out" in repr(session.check("greetings", {"ppo": True}))
    assert "no job can begin" not in repr(session.check("greetings", {"ppo": False}))
    with pytest.raises(InputError, match=refusal):
        session.train("greetings", {"ppo": True})
    session.close()
