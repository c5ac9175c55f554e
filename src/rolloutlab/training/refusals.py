"""Jobs that the engine below a service refuses, as it does not honour an option: known before data is sent."""

from rolloutlab.api.wire.engine import EngineStatus
from rolloutlab.api.wire.fine_tuning import SFTTrainingConfig
from rolloutlab.api.wire.training import ExperimentalTrainingConfig
from rolloutlab.connection import Connector
from rolloutlab.errors import InputError
from rolloutlab.objective.options import not_honoured
from rolloutlab.settings import Address

Config = ExperimentalTrainingConfig | SFTTrainingConfig


def refusals(config: Config, engine: EngineStatus | None) -> dict[str, str]:
    """Why an engine refuses a job with these options, by the option's name; nothing where it is not known."""
    return {name: engine.refusal(name) for name in not_honoured(config, engine.unsupported)} if engine else {}


def refusal_lines(config: Config, engine: EngineStatus | None) -> list[str]:
    """The same for a report."""
    return [f"no job can begin: {why} -> leave it out" for why in refusals(config, engine).values()]


def check_honoured(config: Config, connector: Connector, address: Address) -> None:
    """InputError where the engine of a service refuses a job; it may have another one since it was first asked."""
    if refusals(config, connector.engine(address)):
        for why in refusals(config, connector.engine(address, again=True)).values():
            raise InputError(why, hint="leave it out")
