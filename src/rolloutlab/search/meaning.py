"""The vectors of an index: all of one embedding model, made for whatever has none yet."""

from collections.abc import Callable
from pathlib import Path

from rolloutlab.errors import InputError
from rolloutlab.search.embedding import Embedder
from rolloutlab.search.engine.kept import KeptRecords
from rolloutlab.store.disk import Lock

_TEXTS = 64
_LONGEST = 24_000
"""Characters of a document that an embedding model is given; models cut further themselves."""


class Meaning:
    """Gives records their vectors. One process at a time does; searches go on meanwhile with those that are there.

    embedder: the model; None where texts are compared by their words.
    """

    def __init__(self, records: KeptRecords, lock: Path, embedder: Embedder | None) -> None:
        self.embedder = embedder
        self._records = records
        self.lock = Lock(lock)

    def mixed(self) -> str | None:
        """What is wrong where the vectors there are of another embedding model than the one there is."""
        known = self._records.model
        if self.embedder is None or known is None or known == self.embedder.model or not self._records.embedded():
            return None
        name, dimension = self.embedder.model.name, self.embedder.model.dimension
        return (
            f"mixed embedding spaces: the index has vectors of {known.name} ({known.dimension}), "
            f"the model here is {name} ({dimension})"
        )

    def check(self) -> None:
        """InputError where vectors would be mixed."""
        if mixed := self.mixed():
            raise InputError(mixed, hint="%search --reindex makes all vectors anew")

    def update(self, told: Callable[[str, int, int], None], *, patience: float = -1) -> None:
        """Give a vector to every document that has none. What was done before an interrupt is not done again.

        patience: seconds to wait for another process that does it; filelock's Timeout after them.
        """
        embedder = self.embedder  # another one may be put in its place meanwhile
        if embedder is None or self._records.embedded() == self._records.count or self.mixed():
            return
        with self.lock.acquire(timeout=patience):
            model = embedder.model
            if self._records.model != model:
                self._records.set_model(model.name, model.dimension, model.digest)
            total, done, last = self._records.count, self._records.embedded(), 0
            while batch := self._records.without_vectors(last, _TEXTS):
                told("embedding", done, total)
                vectors = embedder([bare.document[:_LONGEST] for bare in batch])
                self._records.embed({bare.id: vector for bare, vector in zip(batch, vectors, strict=True)})
                done, last = done + len(batch), batch[-1].row
