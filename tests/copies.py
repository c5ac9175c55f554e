"""What each of thousands of tests makes anew, copied: an adapter of a policy, and the tables of a database."""

import io
import pickle
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from rolloutlab.store.sqlite import Database

if TYPE_CHECKING:
    import torch

    from rolloutlab.policy.model import Policy


class LoraCopies:
    """Stands in for `Policy.lora_copy` with policies of many tests: peft takes 30 ms for a copy, this takes 2."""

    def __init__(self, make: "Callable[[Policy], Any]") -> None:
        self._make = make
        self._made: dict[int, tuple[Policy, bytes, list[torch.Tensor]]] = {}

    def keep(self, policy: "Policy") -> "Policy":
        """Copy this policy from now on."""
        model, stream = self._make(policy), io.BytesIO()
        pickler = _Pickler(stream)
        pickler.dump(model)
        self._made[id(policy)] = policy, stream.getvalue(), pickler.tensors
        return policy

    def of(self, policy: "Policy") -> Any:
        """A new LoRA copy; as with peft's, the tensors of the base are shared."""
        if id(policy) not in self._made:
            return self._make(policy)
        _, data, tensors = self._made[id(policy)]
        shared = {id(t) for t in (*policy.base.parameters(), *policy.base.buffers())}
        return _Unpickler(data, [t if id(t) in shared else _copied(t) for t in tensors]).load()


class _Pickler(pickle.Pickler):
    """Leaves tensors out, each by its number."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        import torch

        if not isinstance(value, torch.Tensor):
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.tensors)
            self.tensors.append(value)
        return self._numbers[id(value)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, tensors: "Sequence[torch.Tensor]") -> None:
        super().__init__(io.BytesIO(data))
        self._tensors = tensors

    def persistent_load(self, number: int) -> Any:
        return self._tensors[number]


def _copied(tensor: "torch.Tensor") -> Any:
    import torch

    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(tensor.detach().clone(), tensor.requires_grad)
    return tensor.detach().clone()


def create_tables_at_once(patch: pytest.MonkeyPatch) -> None:
    """Give a new database the tables of today: all migrations one after the other take three times as long."""
    migrate, made = Database._migrate, dict[tuple[str, ...], list[str]]()

    def at_once(database: Database) -> None:
        migrations = tuple(database._migrations)
        if database._version() == 0 and migrations not in made:
            made[migrations] = _tables_after(migrations)
        if database._version() or not made[migrations]:
            migrate(database)
            return
        with database.write() as connection:
            if database._version() == 0:  # nobody else came first
                for statement in made[migrations]:
                    connection.execute(statement)

    patch.setattr(Database, "_migrate", at_once)


def _tables_after(migrations: Sequence[str]) -> list[str]:
    """The statements that make the same tables; none where migrations make more than tables."""
    made = "SELECT sql FROM sqlite_master WHERE sql NOT NULL AND name NOT LIKE 'sqlite%' ORDER BY type = 'index', rowid"
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(";\n".join(migrations))
        statements = [sql for (sql,) in connection.execute(made)]
        if connection.total_changes or any("VIRTUAL" in sql for sql in statements):
            return []
        return [*statements, f"PRAGMA user_version = {len(migrations)}"]
