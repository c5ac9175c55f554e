"""What computes below a service: an extension of rolloutlab's own service."""

from rolloutlab.api.wire.base import Wire


class EngineStatus(Wire):
    """Answer of `GET {base_url}/v1/preview/engine`.

    name: local, tinker or ray. status: what computes now, in words, such as `device` and `nodes`. unsupported: what
    the engine does not honour and why, by the option's name.
    """

    name: str
    status: dict[str, str] = {}
    unsupported: dict[str, str] = {}

    def lines(self) -> list[str]:
        """`engine ray: device cpu, nodes 2`, then a line for each option that it does not honour."""
        what = ", ".join(f"{name} {value}" for name, value in self.status.items())
        return [f"engine {self.name}{f': {what}' if what else ''}", *map(self.refusal, self.unsupported)]

    def refusal(self, option: str) -> str:
        """Why an option has no effect."""
        return f"the engine {self.name} does not honour {option}: {self.unsupported[option]}"
