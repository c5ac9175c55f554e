"""Opens the engine that the settings name; engines are imported late, because some need further packages."""

import warnings

import transformers

from rolloutlab.engines.engine import Engine, EnginePlugin
from rolloutlab.engines.local import LocalEngine
from rolloutlab.errors import InputError, PolicyError
from rolloutlab.plugins import ENGINES, load
from rolloutlab.policy.gguf import Note
from rolloutlab.policy.model import limit_threads, load_policy
from rolloutlab.policy.source import source_of
from rolloutlab.settings import ModelSettings

SAMPLER = "vllm"
"""The plug-in that samples at `settings.sampler_url`."""


def open_engine(
    policy: str, settings: ModelSettings, *, least_seconds: float | None = None, note: Note = lambda _: None
) -> Engine:
    """Open the engine `settings.engine` on a policy: a packaged one, a folder or file, or a name of the hub.

    An engine elsewhere is opened by its plug-in of `rolloutlab.engines`.

    Args:
        policy: The policy.
        settings: The user's settings.
        least_seconds: The least time between two saves of a job's progress; None leaves it to the engine.
        note: Called with what is being done while a GGUF file is converted.

    Raises:
        PolicyError: the policy cannot be loaded, or the engine's extra is not installed.
        InputError: the engine does not honour a setting, or the server at `settings.sampler_url` serves another base.
        ServiceError: the server at `settings.engine_url` or `sampler_url` does not answer.
    """
    source_of(policy, note)  # converts a file here, with notes; engines then find it converted
    engine = _open(policy, settings, least_seconds)
    for name in settings.model_dump(exclude_defaults=True):
        if why := engine.unsupported.get(name):
            engine.close()
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"the engine {engine.name} does not honour {option}: {why}", hint=f"leave {option} out")
    return _sample_elsewhere(engine, settings.sampler_url, policy) if settings.sampler_url else engine


def _open(policy: str, settings: ModelSettings, least_seconds: float | None) -> Engine:
    if settings.engine != "local":
        return _open_elsewhere(policy, settings, least_seconds)
    if settings.engine_url:
        raise InputError("the engine local computes in this process, at no URL", hint="--engine tinker")
    loaded = load_policy(policy, settings)
    limit_threads(loaded)
    return LocalEngine(loaded, least_seconds=least_seconds)


def _sample_elsewhere(engine: Engine, url: str, policy: str) -> Engine:
    sampled: Engine = load(ENGINES, SAMPLER).sample_from(engine, url, {policy, source_of(policy)})
    return sampled


def quiet_transformers() -> None:
    """Keep notes of `transformers` to its developers, and its progress bars, out of a program's output."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # of how peft uses it
    transformers.utils.logging.disable_progress_bar()


def _open_elsewhere(policy: str, settings: ModelSettings, least_seconds: float | None) -> Engine:
    name = settings.engine
    plugin: EnginePlugin = load(ENGINES, name)
    try:
        return plugin.open_engine(policy, settings, least_seconds=least_seconds)
    except ModuleNotFoundError as error:
        raise PolicyError(f"the engine {name} needs {error.name}", hint=f"pip install 'rolloutlab[{name}]'") from error
