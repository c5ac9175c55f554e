"""The collections of the lab: found, listed, hidden, renamed."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rolloutlab.catalogue import catalogue
from rolloutlab.client.logprobs import score
from rolloutlab.collection import Collection
from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.session.base import SessionBase
from rolloutlab.store.records import StoredCollection
from rolloutlab.wire.logprobs import ScoredHistories
from rolloutlab.wire.trajectories import History

if TYPE_CHECKING:
    import pandas as pd


class CollectionCalls(SessionBase):
    """Collections, of which nothing is sampled or sent."""

    def collection(self, name: str) -> Collection:
        """The collection `name` (its newest generation) or `name:N`; NotFoundError when there is none."""
        return self._held(self.store.find(name))

    def group(self, name: str) -> Collection:
        """One group, `name/N`, as a collection of one; NotFoundError when there is none."""
        label, _, position = str(name).rpartition("/")
        if not label or not position.isdecimal():
            raise InputError(f"{name!r} names no group", hint=f"%group {name if isinstance(name, str) else 'NAME'}/0")
        stored = self.store.find(label)
        if int(position) not in self.store.outlines.positions(stored):
            raise NotFoundError(f"there is no group {name!r}", hint=f"%group {label}/0")
        return self._held(stored, int(position))

    def collections(self, pattern: str | None = None) -> "pd.DataFrame":
        """The collections whose name is like `pattern` (`cap*`), every generation, newest first, counted.

        Where the settings file has prices, the table says what sampling has cost.
        """
        if pattern is not None and not isinstance(pattern, str):
            raise InputError(f"a {type(pattern).__name__} is no pattern", hint="%collections 'cap*'")
        return catalogue(self.store.collections(), pattern, self.settings.prices)

    def delete(self, name: str, *, say: Callable[[str], None] = print) -> None:
        """Hide a collection, or one generation of it (`name:2`), everywhere; NotFoundError when there is none."""
        hidden = self.store.shelf.delete(name)
        say(f"deleted {', '.join(hidden)}; undo: %collections --restore {name}")

    def restore(self, name: str, *, say: Callable[[str], None] = print) -> None:
        """Bring back what was deleted last under this name; NotFoundError when nothing was."""
        found = self.store.shelf.restore(name)
        say(f"restored {', '.join(found)}; undo: %collections --delete {name}")

    def rename(self, old: str, new: str, *, say: Callable[[str], None] = print) -> None:
        """Give a collection, with all its generations, another name.

        Raises:
            NotFoundError: there is no collection `old`. ConflictError: `new` is in use. InputError: it is no name.
        """
        self.store.check_name(new)
        self.store.shelf.rename(old, new)
        self._scorers = {re.sub(rf"^{re.escape(old)}(?=:|$)", new, label): by for label, by in self._scorers.items()}
        say(f"renamed {old} to {new}; undo: %collections --rename {new} {old}")

    def _held(self, stored: StoredCollection, position: int | None = None) -> Collection:
        """A stored generation, or one group of it, as a notebook holds it."""
        return Collection(self.store, stored, position, self._logprobs_now)

    def _logprobs_now(self, model: str, histories: Sequence[History]) -> ScoredHistories:
        """What the newest checkpoint of a model thinks of some histories."""
        return self._http.run(score(self._http, self._address(), model, histories))
