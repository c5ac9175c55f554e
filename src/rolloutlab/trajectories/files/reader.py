"""Reader: the protocol of a plug-in of `rolloutlab.readers`, for the files of another tool."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rolloutlab.store.models import Group, Recorded, StoredCollection
from rolloutlab.trajectories.files.jsonl import Document


class Reader(Protocol):
    """Reads files of another tool: JSON Lines, JSON or Parquet, opened and split into values by the lab.

    A file is stored whole or not at all, so a reader raises for what it does not understand, with the place.
    """

    def matches(self, document: Any) -> bool:
        """Whether the first value of a file is of this format, and of no other one."""

    def read(self, documents: Iterable[Document], name: str | None) -> Iterator[Recorded]:
        """Yield the trajectories of a file.

        Args:
            documents: its values, each with its place, such as `chats.jsonl, line 7`.
            name: of the collection; None for the one that the file names, if its format has names.

        Raises:
            InputError: a value is not of this format; the message begins with the place.
        """


@runtime_checkable
class FileWriter(Protocol):
    """What a reader also is if it can write its format, for `%export --format NAME`.

    writes_unscored: whether trajectories without a reward have a place in the format.
    """

    writes_unscored: bool

    def write(
        self, path: Path, groups: Iterable[tuple[StoredCollection, Group]], *, gzipped: bool, array: bool
    ) -> None:
        """Write groups.

        Args:
            path: of the file; the name says what to write, and it replaces the target when all has gone well.
            groups: each with its collection, read from the disk as they are iterated.
            gzipped: whether the file is to be gzipped.
            array: whether it is a `.json` file, one array, instead of a value per line.
        """
