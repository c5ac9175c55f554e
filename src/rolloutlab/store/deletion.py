"""Soft-delete, restore and rename collections. Nothing is erased, so each can be undone."""

import json
from sqlite3 import Connection

from rolloutlab.errors import ConflictError, InputError, NotFoundError
from rolloutlab.store.models import now, parts_of
from rolloutlab.store.sqlite import Database

_MATCHES_LABEL = "name = ? AND (? IS NULL OR generation = ?)"


class CollectionLifecycle:
    """Deletes, restores and renames collections. A bare name means all generations, `name:N` one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def delete(self, label: str) -> list[str]:
        """Mark a collection as deleted; returns its labels, newest first.

        Raises:
            NotFoundError: there is none of that name.
        """
        return self._change_deleted(
            f"UPDATE collections SET deleted_at = ? WHERE {_MATCHES_LABEL} AND deleted_at IS NULL",
            (now(), *_label_values(label)),
            NotFoundError(f"there is no collection {label!r}", hint="%collections lists them"),
        )

    def restore(self, label: str) -> list[str]:
        """Restore what was deleted last under a name; returns its labels, newest first.

        Raises:
            NotFoundError: nothing of that name is deleted.
        """
        values = _label_values(label)
        return self._change_deleted(
            f"UPDATE collections SET deleted_at = NULL WHERE {_MATCHES_LABEL}"
            f" AND deleted_at = (SELECT max(deleted_at) FROM collections WHERE {_MATCHES_LABEL})",
            (*values, *values),
            NotFoundError(f"no collection {label!r} is deleted", hint="%collections lists what is there"),
        )

    def deleted(self) -> list[str]:
        """List names and labels of deleted collections, for `restore`. The one that was deleted last comes first."""
        sql = "SELECT name, generation FROM collections WHERE deleted_at IS NOT NULL ORDER BY deleted_at DESC, id DESC"
        pairs = ((name, f"{name}:{generation}") for name, generation in self._database.read(sql))
        return list(dict.fromkeys(label for pair in pairs for label in pair))

    def rename(self, old: str, new: str) -> None:
        """Rename all generations of a collection, deleted ones too.

        Raises:
            NotFoundError: there is no collection `old`. ConflictError: there is a collection `new`, or a deleted one.
        """
        if (parts_of(old) or (old, None))[1] is not None:
            raise InputError(f"{old!r} is one generation; a name belongs to all", hint=old.partition(":")[0])

        def change(connection: Connection) -> None:
            sql = "SELECT min(deleted_at IS NOT NULL) FROM collections WHERE name = ?"
            (deleted,) = connection.execute(sql, (new,)).fetchone()
            if deleted is not None:
                raise ConflictError(
                    f"there is a deleted collection {new!r}" if deleted else f"there is a collection {new!r} already",
                    hint=f"%collections --restore {new}" if deleted else "another name",
                )
            existing = connection.execute("SELECT 1 FROM collections WHERE name = ? AND deleted_at IS NULL", (old,))
            if not existing.fetchone():
                raise NotFoundError(f"there is no collection {old!r}", hint="%collections lists them")
            connection.execute("UPDATE collections SET name = ? WHERE name = ?", (new, old))
            for job in connection.execute("SELECT id, collections FROM jobs").fetchall():
                labels = json.loads(job["collections"])
                renamed = [f"{new}{label[len(old) :]}" if label.partition(":")[0] == old else label for label in labels]
                if renamed != labels:
                    values = (json.dumps(renamed), job["id"])
                    connection.execute("UPDATE jobs SET collections = ? WHERE id = ?", values)

        self._database.change(change)

    def _change_deleted(self, sql: str, values: tuple[object, ...], missing: NotFoundError) -> list[str]:
        """Delete or restore generations by a statement; return their labels. Raises `missing` if there are none."""

        def move(connection: Connection) -> tuple[str, list[int], int | None]:
            if not (moved := connection.execute(f"{sql} RETURNING name, generation", values).fetchall()):
                raise missing
            name, generations = moved[0]["name"], sorted((row["generation"] for row in moved), reverse=True)
            visible = "SELECT max(generation) FROM collections WHERE name = ? AND deleted_at IS NULL"
            return name, generations, connection.execute(visible, (name,)).fetchone()[0]

        name, generations, newest = self._database.change(move)
        return [name if g == (newest or generations[0]) else f"{name}:{g}" for g in generations]


def _label_values(label: str) -> tuple[str, int | None, int | None]:
    """Return the values of `_MATCHES_LABEL`."""
    if not (parts := parts_of(label)):
        raise NotFoundError(f"there is no collection {label!r}", hint="%collections lists them")
    name, generation = parts
    return name, generation, generation
