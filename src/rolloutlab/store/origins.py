"""Origins of models: the checkpoint that a model was made from, and the sweep or loop that it belongs to."""

import json
from dataclasses import dataclass, field
from typing import Any

from rolloutlab.store.sqlite import Database


@dataclass(frozen=True)
class Origin:
    """What a model was made from, and for.

    Attributes:
        made_from: The checkpoint that the model began at, such as `lab/practice@2`; None for a new model.
        sweep: The name of the sweep, or of the loop with several seeds, that the model belongs to; None if there is
            none.
        settings: The settings in which the model differs from the other models of the sweep.
        seed: The number of the model among the seeds of the same settings; None if there is none.
    """

    made_from: str | None = None
    sweep: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None


class Origins:
    """The origins of models, by service and name of the model."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set(self, service: str, model: str, origin: Origin) -> None:
        """Store the origin of a model, in place of an earlier one.

        service: the URL of a hosted service, or `embedded`, as of jobs. model: PROJECT/NAME.
        """
        columns = "service, model, made_from, sweep, settings, seed"
        values = service, model, origin.made_from, origin.sweep, json.dumps(origin.settings), origin.seed
        self._database.execute(f"INSERT OR REPLACE INTO origins ({columns}) VALUES (?, ?, ?, ?, ?, ?)", *values)

    def set_made_from(self, service: str, model: str, checkpoint: str | None) -> None:
        """Store which checkpoint a model was made from; None for a new model, even if one of a sweep had its name."""
        known = self.all().get((service, model), Origin())
        if known.made_from != checkpoint and (known.sweep is None or checkpoint is None):
            self.set(service, model, Origin(checkpoint))

    def all(self) -> dict[tuple[str, str], Origin]:
        """Read every known origin, by service and model."""
        if not self._database.has_table("origins"):  # a read-only lab of an earlier version
            return {}
        rows = self._database.read("SELECT * FROM origins")
        return {
            (row["service"], row["model"]): Origin(
                row["made_from"], row["sweep"], json.loads(row["settings"]), row["seed"]
            )
            for row in rows
        }
