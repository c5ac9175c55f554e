"""Options that a service's engine does not support: such a job is refused before its data is sent."""

from rolloutlab.api.wire.engine import EngineStatus
from rolloutlab.api.wire.fine_tuning import SFTTrainingConfig
from rolloutlab.api.wire.training import ExperimentalTrainingConfig
from rolloutlab.connection import Connector
from rolloutlab.errors import InputError
from rolloutlab.objective.algorithms import AS_TYPED, Expanded
from rolloutlab.objective.option_docs import OPTIONS
from rolloutlab.objective.options import not_honoured
from rolloutlab.settings import Address

Config = ExperimentalTrainingConfig | SFTTrainingConfig


def refusals(config: Config, engine: EngineStatus | None) -> dict[str, str]:
    """Return why an engine refuses a job, by option; empty if the engine is not known."""
    return {name: engine.refusal(name) for name in not_honoured(config, engine.unsupported)} if engine else {}


def refusal_lines(config: Config, engine: EngineStatus | None, given: Expanded = AS_TYPED) -> list[str]:
    """Write the refusals as lines of a report. given: the options as they were given."""
    return [f"no job can begin: {why} -> {_hint(name, given)}" for name, why in refusals(config, engine).items()]


def check_honoured(config: Config, connector: Connector, address: Address, given: Expanded = AS_TYPED) -> None:
    """Raise InputError if the engine of a service refuses a job.

    Before that, the service is asked again, because its engine may have changed since it was first asked.
    """
    if refusals(config, connector.engine(address)):
        refused = refusals(config, connector.engine(address, again=True))
        hints = dict.fromkeys(_hint(name, given) for name in refused)
        if refused:
            raise InputError("; ".join(refused.values()), hint="; ".join(hints))


def _hint(name: str, given: Expanded) -> str:
    """Return what to do about a refused option: leave it out, or type its default if an algorithm has set it."""
    if name not in given.own:
        return "leave it out"
    name = "loss_aggregation" if name == "loss_scale_factor" else name  # the factor has an effect only with it
    return f"{name}: {OPTIONS[name].default}"
