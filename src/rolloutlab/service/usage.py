"""Tokens by project: the header that a client sends with its chats, and what they came to."""

from rolloutlab.api.wire.chat import Usage
from rolloutlab.api.wire.training import UsageEntry
from rolloutlab.store.sqlite import Database


class Ledger:
    """Counts requests and tokens for each project and model; chats without a project header count under ''."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, project: str, model: str, counts: Usage) -> None:
        values = (project, model, counts.prompt_tokens, counts.completion_tokens)
        with self._database.write() as connection:
            connection.execute(
                "INSERT INTO usage VALUES (?, ?, 1, ?, ?) ON CONFLICT DO UPDATE SET requests = requests + 1, "
                "prompt_tokens = prompt_tokens + excluded.prompt_tokens, "
                "completion_tokens = completion_tokens + excluded.completion_tokens",
                values,
            )

    def entries(self) -> list[UsageEntry]:
        rows = self._database.read("SELECT * FROM usage ORDER BY project, model")
        return [UsageEntry.model_validate(dict(row)) for row in rows]
