"""Spending of a lab at services: what calls have cost, and what those under way may still cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from sqlite3 import Connection

from rolloutlab.api.prices import Amount, Tokens
from rolloutlab.store.models import StoredCollection, now
from rolloutlab.store.sqlite import Database

SAMPLING = "sampling"
JUDGING = "judging"
"""The purpose of tokens that a model took to score a collection of another one."""
_SPENT = "SELECT coalesce(sum(amount), 0) FROM spending WHERE service = ?"


@dataclass(frozen=True)
class Account:
    """What pays for the calls of one cell to one model. limit: of all that the lab spends at the service, if any."""

    service: str
    model: str
    purpose: str
    collection: StoredCollection | None = None
    limit: Amount | None = None


class Spending:
    """One entry per cell and model. Its amount is set aside before requests are sent, and reduced to what they cost.

    So what a killed kernel had set aside counts as spent, and kernels with one budget never exceed it together.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def set_aside(self, account: Account, entry: int | None, least: Amount, most: Amount) -> tuple[int | None, Amount]:
        """Add `most` to an entry, or what the limit leaves; nothing if that is below `least`. None begins an entry.

        Returns the entry and what was added.
        """

        def add(connection: Connection) -> tuple[int | None, Amount]:
            granted = most
            if account.limit is not None:
                granted = min(most, account.limit - connection.execute(_SPENT, (account.service,)).fetchone()[0])
            if granted < least:
                return entry, 0
            if entry is not None:
                connection.execute("UPDATE spending SET amount = amount + ? WHERE id = ?", (granted, entry))
                return entry, granted
            collection = account.collection.id if account.collection else None
            values = now(), account.service, account.model, account.purpose, collection, granted
            columns = "at, service, model, purpose, collection_id, amount"
            sql = f"INSERT INTO spending ({columns}) VALUES (?, ?, ?, ?, ?, ?)"
            return connection.execute(sql, values).lastrowid, granted

        return self._database.change(add)

    def settle(self, entry: int, amount: Amount, tokens: Tokens, collection: StoredCollection | None = None) -> None:
        """Set an entry to what its calls have cost, and their tokens. collection: what they were for, once known."""
        sql = (
            "UPDATE spending SET amount = ?, prompt_tokens = ?, completion_tokens = ?, trained_tokens = ?,"
            " collection_id = coalesce(?, collection_id) WHERE id = ?"
        )
        self._database.execute(sql, amount, *tokens, collection.id if collection else None, entry)

    def at(self, service: str) -> Amount:
        """All that the lab has spent at a service."""
        return int(self._database.read(_SPENT, service)[0][0])

    def of(self, collection: StoredCollection) -> Amount:
        """What sampling and judging a collection have cost by the prices of then."""
        sql = "SELECT coalesce(sum(amount), 0) FROM spending WHERE collection_id = ?"
        return int(self._database.read(sql, collection.id)[0][0])

    def sampled(self) -> Mapping[int, Amount]:
        """By the id of a collection, what its sampling has cost by the prices of then, with what was not reported."""
        sql = """
            SELECT collection_id, sum(amount) FROM spending
            WHERE purpose = ? AND collection_id IS NOT NULL GROUP BY collection_id
        """
        return {row[0]: row[1] for row in self._database.read(sql, SAMPLING)}

    def judged(self) -> Mapping[int, Mapping[str, Tokens]]:
        """By the id of a collection, the tokens of each model that has judged it."""
        sql = """
            SELECT collection_id, model, sum(prompt_tokens), sum(completion_tokens) FROM spending
            WHERE purpose = ? AND collection_id IS NOT NULL GROUP BY collection_id, model
        """
        judged: dict[int, dict[str, Tokens]] = {}
        for collection, model, prompt, completion in self._database.read(sql, JUDGING):
            judged.setdefault(collection, {})[model] = Tokens(prompt, completion)
        return judged
