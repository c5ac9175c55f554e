"""The engine of a service, as `GET /v1/preview/engine` reports it: an extension of rolloutlab's own service."""

from collections.abc import Iterable

from rolloutlab.api.wire.base import Wire
from rolloutlab.settings import ModelSettings


class EngineStatus(Wire):
    """Answer of `GET {base_url}/v1/preview/engine`.

    name: local, tinker or ray. status: what computes now, in words, such as `device` and `nodes`. unsupported: what
    the engine does not honour and why, by the option's name. notes: lines about the policy that a user should know.
    learning_rate, sft_learning_rate: the policy's defaults for a job and for a fine-tuning job.
    groups_per_step: of a job that sets none; absent at services that divide jobs in their own way.
    forks: whether a model can be made from a checkpoint of another; earlier versions would ignore the wish.
    """

    name: str
    status: dict[str, str] = {}
    unsupported: dict[str, str] = {}
    notes: list[str] = []
    learning_rate: float | None = None
    sft_learning_rate: float | None = None
    groups_per_step: int | None = None
    forks: bool = False

    def without(self, options: Iterable[str], why: str) -> "EngineStatus":
        """A copy that does not honour these options either."""
        return self.model_copy(update={"unsupported": {**dict.fromkeys(options, why), **self.unsupported}})

    def lines(self) -> list[str]:
        """Lines about the engine and its policy.

        The first is as `engine ray: device cpu, nodes 2`. Then come the options that it does not honour, a line per
        reason; the settings that it does not honour, in one line; and the notes about the policy.
        """
        what = ", ".join(f"{name} {value}" for name, value in self.status.items())
        lines = [f"engine {self.name}{f': {what}' if what else ''}"]
        names: dict[str, list[str]] = {}
        for name, why in self.unsupported.items():
            if name not in ModelSettings.model_fields:
                names.setdefault(why, []).append(name)
        lines += [f"the engine {self.name} does not honour {', '.join(each)}: {why}" for why, each in names.items()]
        settings = ", ".join(name for name in self.unsupported if name in ModelSettings.model_fields)
        lines += [f"the engine {self.name} does not honour the settings {settings}"] if settings else []
        return [*lines, *self.notes]

    def refusal(self, option: str) -> str:
        """Why an option has no effect."""
        return f"the engine {self.name} does not honour {option}: {self.unsupported[option]}"
