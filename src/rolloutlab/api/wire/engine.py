"""What computes below a service: an extension of rolloutlab's own service."""

from rolloutlab.api.wire.base import Wire
from rolloutlab.settings import ModelSettings


class EngineStatus(Wire):
    """Answer of `GET {base_url}/v1/preview/engine`.

    name: local, tinker or ray. status: what computes now, in words, such as `device` and `nodes`. unsupported: what
    the engine does not honour and why, by the option's name. notes: lines about the policy that a user should know.
    learning_rate, sft_learning_rate: the policy's defaults for a job and for a fine-tuning job.
    groups_per_step: of a job that sets none; absent at services that divide jobs in their own way.
    """

    name: str
    status: dict[str, str] = {}
    unsupported: dict[str, str] = {}
    notes: list[str] = []
    learning_rate: float | None = None
    sft_learning_rate: float | None = None
    groups_per_step: int | None = None

    def lines(self) -> list[str]:
        """`engine ray: device cpu, nodes 2`, a line for each option that it does not honour, one for all settings.

        Then the notes about the policy.
        """
        what = ", ".join(f"{name} {value}" for name, value in self.status.items())
        lines = [f"engine {self.name}{f': {what}' if what else ''}"]
        lines += [self.refusal(name) for name in self.unsupported if name not in ModelSettings.model_fields]
        settings = ", ".join(name for name in self.unsupported if name in ModelSettings.model_fields)
        lines += [f"the engine {self.name} does not honour the settings {settings}"] if settings else []
        return [*lines, *self.notes]

    def refusal(self, option: str) -> str:
        """Why an option has no effect."""
        return f"the engine {self.name} does not honour {option}: {self.unsupported[option]}"
