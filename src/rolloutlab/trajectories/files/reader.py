"""Reader: the protocol of a plug-in of `rolloutlab.readers`, for files of another tool."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rolloutlab.store.models import Group, Recorded, StoredCollection
from rolloutlab.trajectories.files.jsonl import Document


class Reader(Protocol):
    """Reads files of another tool. The lab opens a file of JSON Lines, JSON or Parquet and splits it into values.

    The lab stores a file completely or not at all. So a reader must raise an error with the place if it does not
    understand a value, and must not skip it.
    """

    def matches(self, document: Any) -> bool:
        """Whether the first value of a file is of this format, and cannot be of another one."""

    def read(self, documents: Iterable[Document], name: str | None) -> Iterator[Recorded]:
        """Yield the trajectories of a file.

        Args:
            documents: The values of the file, each with its place, such as `chats.jsonl, line 7`.
            name: The name of the collection. If it is None, the reader takes the name in the file, if the format has
                names.

        Raises:
            InputError: a value is not of this format; the message begins with the place.
        """


@runtime_checkable
class FileWriter(Protocol):
    """A reader that can also write its format, for `%export --format NAME`.

    Attributes:
        writes_unscored: Whether the format can hold trajectories without a reward.
    """

    writes_unscored: bool

    def write(
        self, path: Path, groups: Iterable[tuple[StoredCollection, Group]], *, gzipped: bool, array: bool
    ) -> None:
        """Write groups into a file.

        Args:
            path: The file to write, a temporary one: the lab moves it to its final place if this succeeds.
            groups: The groups, each with its collection. They are read from the disk while they are iterated.
            gzipped: Whether to compress the file with gzip.
            array: Whether to write one JSON array (a `.json` file) instead of one value per line.
        """
