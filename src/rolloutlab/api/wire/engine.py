"""The engine of a service, as `GET /v1/preview/engine` reports it: an extension of rolloutlab's own service."""

from collections.abc import Iterable

from rolloutlab.api.wire.base import Wire
from rolloutlab.settings import ModelSettings


class EngineStatus(Wire):
    """Answer of `GET {base_url}/v1/preview/engine`.

    Attributes:
        name: local, tinker or ray.
        status: What computes now, in words, such as `device` and `nodes`.
        unsupported: The options that the engine does not honour, each with the reason.
        notes: Lines about the policy that a user should know.
        learning_rate: The policy's default for a job.
        sft_learning_rate: The policy's default for a fine-tuning job.
        groups_per_step: The default for a job; absent at services that divide jobs into steps in their own way.
        forks: Whether a model can be made from a checkpoint of another. Earlier versions would ignore the wish.
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
        """Return a copy that does not honour these options either."""
        return self.model_copy(update={"unsupported": {**dict.fromkeys(options, why), **self.unsupported}})

    def lines(self) -> list[str]:
        """Return lines about the engine and its policy.

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
        """Say why an option has no effect."""
        return f"the engine {self.name} does not honour {option}: {self.unsupported[option]}"
