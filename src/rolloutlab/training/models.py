"""The models of a service: registered, selected, and their checkpoints listed, deleted, recovered and purged."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from rolloutlab.api import inference, training
from rolloutlab.api.wire.training import Model, ModelCard, RegisterModel
from rolloutlab.connection import Connector
from rolloutlab.errors import InputError, NotFoundError, NotOfferedError, RolloutlabError
from rolloutlab.settings import Address
from rolloutlab.training.model import (
    LostCheckpointTable,
    RecoveredCheckpointTable,
    SelectedModel,
    as_id,
    split_name,
    table,
)

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_MODEL = "lab/practice"

_PATIENCE = 3.0
"""Seconds for a service to answer which checkpoint is the newest; without it the report only lacks the lag."""


class Models:
    """The models of the present service, one of which is selected to be sampled and trained.

    selected: its name. seen: names of models and checkpoints that a service listed.
    """

    def __init__(self, connector: Connector) -> None:
        self.selected = DEFAULT_MODEL
        self.seen = {DEFAULT_MODEL}
        self._connector = connector
        self._registered: set[tuple[str, str]] = set()
        """Base URLs of services, and the names of models registered there."""

    @property
    def text_only(self) -> bool:
        """Whether the policy reads nothing but text: the embedded service's do, of others it is not known."""
        return self._connector.settings.service is None

    def connected(self, names: Iterable[str], *, to_another: bool) -> None:
        """Take note of the models that the present service lists; another service has the default one selected."""
        self.seen.update(names)
        if to_another:
            self.selected = DEFAULT_MODEL

    def select(self, name: str, base: str | None) -> SelectedModel:
        """Select a model, registering it if it is new. Raises as `Session.model`."""
        if base is None:
            self._check_base(name)
        model = self._read(name, base)
        self.selected = model.name
        return model

    def existing(self, name: str) -> SelectedModel:
        """A model that the service has, or the selected one: only `select` registers others.

        Raises:
            NotFoundError: there is none; the hint is the closest name.
        """
        if name != self.selected and not as_id(name):
            split_name(name)
            names = [card.id for card in self._cards()]
            if name not in names:
                close = get_close_matches(name, names, n=1) or [f"%model {name}"]
                raise NotFoundError(f"there is no model {name!r}", hint=close[0])
        return self._read(name)

    def register(self, name: str, base: str | None = None) -> Model:
        """The model as the service has it, registered if it is new; one that is named by its id is not asked for."""
        if model_id := as_id(name):
            return Model(id=model_id, entity="", project="", name=name, base_model=base or "")
        project, short = split_name(name)
        request = RegisterModel(project=project, name=short, base_model=base, return_existing=True)
        address = self._connector.address()
        model = self._connector.http.run(training.register_model(self._connector.http, address, request))
        self._registered.add((address.base_url, name))
        return model

    def ensure_registered(self, name: str, address: Address) -> None:
        """Register a model at a service unless this session has done so before."""
        if (address.base_url, name) not in self._registered:
            self.register(name)

    def table(self) -> "pd.DataFrame":
        """One row per model that the service can sample."""
        return table(self._cards())

    def newest_step(self) -> int | None:
        """The newest checkpoint of the selected model, where a job would start; None if no service runs or answers."""
        if address := self._connector.running():
            http = self._connector.http
            with suppress(RolloutlabError):
                cards = http.run(inference.models(http, address, patience=_PATIENCE, retry=False))
                return next((card.newest_step for card in cards if card.id == self.selected), None)
        return None

    def delete_checkpoint(self, name: str) -> SelectedModel:
        """Delete a checkpoint (`lab/sorter@3`); what is left of its model. Raises as `Session.delete_checkpoint`."""
        short, _, step = name.partition("@")
        if not step.isdecimal():
            raise InputError(f"{name!r} is no checkpoint: a step is missing", hint=f"%models --delete {short}@3")
        model = self.existing(short)
        steps = [model.checked(int(step))]
        http = self._connector.http
        http.run(training.delete_checkpoints(http, self._connector.address(), model.id, steps))
        self.seen.discard(name)
        return replace(model, steps=tuple(each for each in model.steps if each not in steps))

    def lost_checkpoints(self) -> LostCheckpointTable:
        """Checkpoints on the service's disk that its database does not list."""
        http = self._connector.http
        return LostCheckpointTable(http.run(training.lost_checkpoints(http, self._connector.address())))

    def recover_checkpoints(self) -> RecoveredCheckpointTable:
        """List lost checkpoints again; the embedded service starts for it also with a database that lists no model."""
        http, address = self._connector.http, self._connector.address(start_empty=True)
        recovery = http.run(training.recover_checkpoints(http, address))
        return RecoveredCheckpointTable(recovery.recovered, recovery.remaining)

    def purge_checkpoints(self) -> LostCheckpointTable:
        """Remove lost checkpoints from the disk; what was removed."""
        http = self._connector.http
        purged = http.run(training.purge_checkpoints(http, self._connector.address()))
        return LostCheckpointTable(purged, removed=True)

    def _cards(self) -> list[ModelCard]:
        return self._connector.http.run(inference.models(self._connector.http, self._connector.address()))

    def _check_base(self, name: str) -> None:
        """InputError for a name that the service would have to register, unless it can be no other's."""
        if as_id(name) or split_name(name)[0] == split_name(DEFAULT_MODEL)[0] or name in self.seen:
            return
        cards = self._cards()
        if name in {card.id for card in cards}:
            return
        bases = sorted({card.base_model or card.id for card in cards}) or ["BASE"]
        raise InputError(
            f"there is no model {name!r} here, and a new one stands on a base that is served: {', '.join(bases)}",
            hint=f"%model {name} --base {bases[0]}, or ROLLOUTLAB_POLICY={name} to serve what the hub has of that name",
        )

    def _read(self, name: str, base: str | None = None) -> SelectedModel:
        model, http = self.register(name, base), self._connector.http
        try:
            checkpoints = http.run(training.checkpoints(http, self._connector.address(), str(model.id)))
        except NotOfferedError:
            checkpoints = []
        steps = tuple(checkpoint.step for checkpoint in checkpoints)
        self.seen.update({name, *(f"{name}@{step}" for step in steps if not as_id(name))})
        return SelectedModel(name, str(model.id), model.base_model, steps)
