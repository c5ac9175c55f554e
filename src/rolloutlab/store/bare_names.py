"""Names without a generation. In one notebook, a name means the generation that the notebook made or first used."""

from collections.abc import Callable


class BareNames:
    """The generations that bare names mean in one notebook of a lab that others sample into too.

    Otherwise a bare name would mean the newest generation, also one that another notebook has just made. Rewards and
    jobs would then go to completions that this notebook has never seen. `say` is called with a line if a newer
    generation exists.

    What must hold: an entry is the id of a generation that this notebook made, or that was the newest when it asked.
    """

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self._own: dict[str, int] = {}
        self._say = say

    def own(self, name: str) -> int | None:
        """Return the id of the generation that a bare name means; None if it has meant none so far."""
        return self._own.get(name)

    def keep(self, name: str, collection: int) -> None:
        """Let a bare name mean this generation from now on."""
        self._own[name] = collection

    def drop(self, name: str) -> None:
        """Let a bare name mean the newest generation at its next use."""
        self._own.pop(name, None)

    def rename(self, old: str, new: str) -> None:
        """Follow a renamed collection."""
        if old in self._own:
            self._own[new] = self._own.pop(old)

    def tell(self, name: str, own: int, newest: int) -> None:
        """Say that a bare name does not mean the newest generation."""
        self._say(
            f"{name} is {name}:{own} in this notebook; {name}:{newest} was made elsewhere since"
            f" -> {name}:{newest}, or {name}:{LATEST} to go on with it as {name}"
        )


LATEST = "latest"
"""The text in place of a generation's number that selects the newest. The bare name means it from then on."""
