"""The models of the lab, as `lab.models`: their table, and their checkpoints to delete, recover and purge."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rolloutlab.api import training
from rolloutlab.api.wire.training import LostCheckpoint
from rolloutlab.connection import Connector
from rolloutlab.errors import InputError, LabError, NotOfferedError
from rolloutlab.objective.preflight import count
from rolloutlab.training.checkpoint_export import CheckpointExport, CheckpointExporter
from rolloutlab.training.models import Models, SelectedModel
from rolloutlab.trajectories.tables import data_frame, here_and_now
from rolloutlab.widgets.model_list import LabRecord, model_listing

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class LostCheckpointTable:
    """Checkpoints that the service has set aside or, with `removed`, has deleted. Falsy if there are none."""

    checkpoints: Sequence[LostCheckpoint]
    removed: bool = False

    @property
    def bytes(self) -> int:
        """The size of all their files, in bytes."""
        return sum(lost.bytes for lost in self.checkpoints)

    def __bool__(self) -> bool:
        return bool(self.checkpoints)

    def __repr__(self) -> str:
        if not self:
            return "no checkpoint was removed" if self.removed else "no checkpoint is set aside"
        what = f"{count(len(self.checkpoints), 'checkpoint')} ({self.bytes:,} bytes)"
        if self.removed:
            return "\n".join([f"removed {what}:", *map(_line, self.checkpoints)])
        head = f"{what} in the service's folder models/.lost, which its database does not list:"
        hint = "  -> %models --recover lists them again; %models --purge removes them"
        return "\n".join([head, *(f"{_line(lost)}: {lost.reason}" for lost in self.checkpoints), hint])


@dataclass(frozen=True)
class RecoveredCheckpointTable:
    """Checkpoints that are listed again, and those that remain set aside, each with the reason."""

    recovered: Sequence[LostCheckpoint]
    remaining: Sequence[LostCheckpoint]

    def __repr__(self) -> str:
        if not self.recovered and not self.remaining:
            return "no checkpoint is set aside"
        lines = [f"listed again: {count(len(self.recovered), 'checkpoint')}", *map(_line, self.recovered)]
        return "\n".join([*lines, *(f"{_line(lost)} remains set aside: {lost.reason}" for lost in self.remaining)])


def _line(lost: LostCheckpoint) -> str:
    return f"  {lost.model or lost.model_id}@{lost.step}  {lost.bytes:,} bytes"


class LabModels:
    """The models of the present service, and their checkpoints; `lab.model(NAME)` selects one.

    models: the models of the session. exporter: exports checkpoints, and has the connection. read_lab: returns
    what the lab knows of the models.
    """

    def __init__(self, models: Models, exporter: CheckpointExporter, read_lab: Callable[[], LabRecord]) -> None:
        self._models = models
        self._connector: Connector = exporter.connector
        self._exporter = exporter
        self._read_lab = read_lab

    @property
    def selected(self) -> str:
        """The name of the selected model."""
        return self._models.selected

    @property
    def seen(self) -> set[str]:
        """Names of models and checkpoints that a service listed; tab completion offers them."""
        return self._models.seen

    def newest_step(self) -> int | None:
        """Return the newest checkpoint of the selected model; None if its service does not say."""
        try:
            cards = self._models.cards()
        except NotOfferedError:
            return None
        return next((card.newest_step for card in cards if card.id == self.selected), None)

    def list(self) -> "pd.DataFrame":
        """List the models that the service can sample, with base, newest checkpoint and number of checkpoints.

        `made_from` is the checkpoint of another model that a model was made from. Values that the service does not
        report are missing. A cell marks the selected model. It also shows the reward
        of the newest checkpoint of each model, and what the model was last trained on.
        """
        from rolloutlab.trajectories.frame import ListingFrame

        cards = self._models.cards()
        columns = {
            "base": [card.base_model for card in cards],
            "newest": [card.newest_step for card in cards],
            "checkpoints": [card.checkpoints for card in cards],
            "made_from": [card.made_from for card in cards],
        }
        types = {"base": "string", "newest": "Int64", "checkpoints": "Int64", "made_from": "string"}
        frame = data_frame(columns, [card.id for card in cards], "model", types=types)
        try:
            lab = self._read_lab()
        except LabError:  # the service's models can be listed without the lab
            lab = LabRecord()
        return ListingFrame.of(frame, model_listing(cards, self.selected, lab, here_and_now()))

    def delete(self, name: str) -> SelectedModel:
        """Delete a checkpoint such as `lab/sorter@3`, also a damaged one; returns its model.

        Raises:
            InputError: the name has no step. NotFoundError: there is no such checkpoint. RefusedError: it is the last
            one of its model.
        """
        short, _, step = name.partition("@")
        if not step.isdecimal():
            raise InputError(f"{name!r} is not a checkpoint: a step is missing", hint=f"%models --delete {short}@3")
        model = self._models.find(short)
        steps = [model.check_step(int(step))]
        http = self._connector.http
        http.run(training.delete_checkpoints(http, self._connector.address(), model.id, steps))
        self.seen.discard(name)
        return replace(model, steps=tuple(each for each in model.steps if each not in steps))

    def export(
        self,
        name: str | int,
        folder: str | os.PathLike[str],
        *,
        merged: bool = False,
        push: str | None = None,
        overwrite: bool = False,
    ) -> CheckpointExport:
        """Write a checkpoint to a folder that other tools load, with a model card; whole or not at all.

        The folder is an adapter of peft, or with `merged` a complete model of transformers. The card (README.md) has
        the base, the jobs and options that made the checkpoint, and its newest held-out mean with its 95% interval.

        Args:
            name: the checkpoint, such as `lab/practice@3`; `lab/practice` for its newest, or a step of the selected
                model.
            folder: the folder to write, missing or empty.
            merged: merge the adapter into the base's weights, which must be on this machine.
            push: OWNER/REPO of the Hugging Face hub to upload the folder to. A new repository is private.
            overwrite: replace an earlier export. A folder with files that no export wrote is never replaced.

        Raises:
            InputError: the folder is not empty, or the name is not of a checkpoint.
            NotFoundError: there is no such checkpoint.
            NotOfferedError: the service keeps its checkpoints elsewhere; the hint says where.
            PolicyError: the base is not on this machine, or the adapter cannot be merged.
            SignInError: there is no token of the hub, or it was refused.
            ServiceError: a file did not arrive whole, or the upload failed.
        """
        given = name.removeprefix("@") if isinstance(name, str) else name
        [checkpoint] = self._models.checkpoints([given], self._models.selected)
        return self._exporter.export(checkpoint, folder, merged=merged, push=push, overwrite=overwrite)

    def lost(self) -> LostCheckpointTable:
        """List the checkpoints on disk that the service's database does not list."""
        http = self._connector.http
        return LostCheckpointTable(http.run(training.lost_checkpoints(http, self._connector.address())))

    def recover(self) -> RecoveredCheckpointTable:
        """Add lost checkpoints to the database again, under their models and steps.

        This starts the embedded service if it does not run, even if its database lists no model.
        """
        http, address = self._connector.http, self._connector.address(start_empty=True)
        recovery = http.run(training.recover_checkpoints(http, address))
        return RecoveredCheckpointTable(recovery.recovered, recovery.remaining)

    def purge(self) -> LostCheckpointTable:
        """Delete lost checkpoints from the disk; returns those deleted. This cannot be undone."""
        http = self._connector.http
        purged = http.run(training.purge_checkpoints(http, self._connector.address()))
        return LostCheckpointTable(purged, removed=True)
