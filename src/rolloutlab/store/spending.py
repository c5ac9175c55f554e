"""Spending of a lab at services: what calls have cost, and what calls under way may still cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sqlite3 import Connection

from rolloutlab.api.prices import Amount, Tokens
from rolloutlab.store.models import StoredCollection, now
from rolloutlab.store.sqlite import Database

SAMPLING = "sampling"
JUDGING = "judging"
"""The purpose of an entry for the tokens of a judge."""
TRAINING = "training"
_SPENT = "SELECT coalesce(sum(amount), 0) FROM spending WHERE service = ?"


@dataclass(frozen=True)
class Account:
    """The account of the calls of one cell to one model. limit: what the lab may spend at the service."""

    service: str
    model: str
    purpose: str
    collection: StoredCollection | None = None
    limit: Amount | None = None


class Spending:
    """The records of what calls cost, one per cell and model.

    An amount is set aside before requests are sent, and later reduced to what they have cost. So kernels that share a
    budget never exceed it together. What a killed kernel had set aside counts as spent.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def set_aside(self, account: Account, entry: int | None, least: Amount, most: Amount) -> tuple[int | None, Amount]:
        """Add `most` to an entry, or as much of it as the limit allows. If that is below `least`, add nothing.

        entry: the id of the entry; None begins a new one.

        Returns:
            The id of the entry, and the amount that was added.
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
        """Set an entry to what its calls have cost, and to their tokens.

        collection: the collection that the calls were for, once it is known.
        """
        sql = (
            "UPDATE spending SET amount = ?, prompt_tokens = ?, completion_tokens = ?, trained_tokens = ?,"
            " collection_id = coalesce(?, collection_id) WHERE id = ?"
        )
        self._database.execute(sql, amount, *tokens, collection.id if collection else None, entry)

    def at(self, service: str) -> Amount:
        """Add up what the lab has spent at a service, with what is set aside."""
        return int(self._database.read(_SPENT, service)[0][0])

    def of(self, collection: StoredCollection) -> Amount:
        """Add up what sampling and judging a collection have cost, by the prices at that time."""
        sql = "SELECT coalesce(sum(amount), 0) FROM spending WHERE collection_id = ?"
        return int(self._database.read(sql, collection.id)[0][0])

    def of_each(self) -> Mapping[int, Amount]:
        """Add up what sampling and judging each collection have cost, by the prices at that time."""
        sql = "SELECT collection_id, sum(amount) FROM spending WHERE collection_id IS NOT NULL GROUP BY collection_id"
        return {row[0]: row[1] for row in self._database.read(sql)}

    def trained(self) -> Sequence[tuple[str, str, Amount]]:
        """List what training jobs have cost, oldest first: the time of the payment, the model, and the amount."""
        sql = "SELECT at, model, amount FROM spending WHERE purpose = ? AND amount > 0 ORDER BY id"
        return [tuple(row) for row in self._database.read(sql, TRAINING)]

    def sampled(self) -> Mapping[int, Amount]:
        """Add up what sampling each collection has cost, by the prices at that time.

        With a budget, a request whose usage was not reported counts as its worst case.
        """
        sql = """
            SELECT collection_id, sum(amount) FROM spending
            WHERE purpose = ? AND collection_id IS NOT NULL GROUP BY collection_id
        """
        return {row[0]: row[1] for row in self._database.read(sql, SAMPLING)}

    def judged(self) -> Mapping[int, Mapping[str, Tokens]]:
        """Add up the tokens of each model that has judged a collection, by the id of the collection."""
        sql = """
            SELECT collection_id, model, sum(prompt_tokens), sum(completion_tokens) FROM spending
            WHERE purpose = ? AND collection_id IS NOT NULL GROUP BY collection_id, model
        """
        judged: dict[int, dict[str, Tokens]] = {}
        for collection, model, prompt, completion in self._database.read(sql, JUDGING):
            judged.setdefault(collection, {})[model] = Tokens(prompt, completion)
        return judged
