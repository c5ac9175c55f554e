"""The models of the service, and the one that is selected."""

from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from rolloutlab.client import inference, training
from rolloutlab.errors import InputError, NotFoundError, NotOfferedError
from rolloutlab.lost import LostCheckpoints, RecoveredCheckpoints
from rolloutlab.model import SelectedModel, as_id, split_name, table
from rolloutlab.session.base import DEFAULT_MODEL, SessionBase
from rolloutlab.wire.training import Model, RegisterModel

if TYPE_CHECKING:
    import pandas as pd


class ModelCalls(SessionBase):
    """Models, registered when they are first used."""

    def model(self, name: str | None = None, *, base: str | None = None) -> SelectedModel:
        """Select a model, registering it at first; without a name, the selected one.

        name: project/name; or the id of a model, a UUID, which is never registered and may be of a service that
        registers none.
        base: the base model a new one stands on; names of the project `lab` get the service's own by default.

        Raises:
            InputError: the name is new and of another project, and no base is given: it may be the name of a model
            elsewhere, which would not be what trains.
        """
        name = name or self._selected
        if base is None:
            self._check_base(name)
        selected = self._select(name, base)
        self._selected = selected.name
        return selected

    def models(self) -> "pd.DataFrame":
        """Every model that the service can sample, with its base, newest checkpoint and number of checkpoints."""
        return table(self._http.run(inference.models(self._http, self._address())))

    def delete_checkpoint(self, name: str) -> SelectedModel:
        """Delete a checkpoint such as `lab/sorter@3`, also a damaged one; what is left of its model.

        Raises:
            InputError: the name has no step. NotFoundError: there is no such checkpoint. RefusedError: it is the last
            one of its model.
        """
        short, _, step = name.partition("@")
        if not step.isdecimal():
            raise InputError(f"{name!r} is no checkpoint: a step is missing", hint=f"%models --delete {short}@3")
        model = self._existing(short)
        steps = [model.checked(int(step))]
        self._http.run(training.delete_checkpoints(self._http, self._address(), model.id, steps))
        self.seen.discard(name)
        return replace(model, steps=tuple(each for each in model.steps if each not in steps))

    def lost_checkpoints(self) -> LostCheckpoints:
        """Checkpoints that the service found on disk and its database does not list; it keeps them aside."""
        return LostCheckpoints(self._http.run(training.lost_checkpoints(self._http, self._address())))

    def recover_checkpoints(self) -> RecoveredCheckpoints:
        """List lost checkpoints again under their models and steps, so that they are sampled and trained.

        The embedded service is started for it also where its database lists no model any more.
        """
        address = self.settings.service or self._embedded_address(start_empty=True)
        recovery = self._http.run(training.recover_checkpoints(self._http, address))
        return RecoveredCheckpoints(recovery.recovered, recovery.remaining)

    def purge_checkpoints(self) -> LostCheckpoints:
        """Remove lost checkpoints from the disk for good; what was removed."""
        purged = self._http.run(training.purge_checkpoints(self._http, self._address()))
        return LostCheckpoints(purged, removed=True)

    def _check_base(self, name: str) -> None:
        """InputError for a name that the service would have to register, unless it can be no other's."""
        if as_id(name) or split_name(name)[0] == split_name(DEFAULT_MODEL)[0] or name in self.seen:
            return
        cards = self._http.run(inference.models(self._http, self._address()))
        if name in {card.id for card in cards}:
            return
        bases = sorted({card.base_model or card.id for card in cards}) or ["BASE"]
        raise InputError(
            f"there is no model {name!r} here, and a new one stands on a base that is served: {', '.join(bases)}",
            hint=f"%model {name} --base {bases[0]}, or ROLLOUTLAB_POLICY={name} to serve what the hub has of that name",
        )

    def _register(self, name: str, base: str | None = None) -> Model:
        """The model as the service has it, registered at first unless it is called by its id."""
        if model_id := as_id(name):
            return Model(id=model_id, entity="", project="", name=name, base_model=base or "")
        project, short = split_name(name)
        wanted, address = (
            RegisterModel(project=project, name=short, base_model=base, return_existing=True),
            self._address(),
        )
        model = self._http.run(training.register_model(self._http, address, wanted))
        self._known.add((address.base_url, name))
        return model

    def _existing(self, name: str) -> SelectedModel:
        """A model that is there, or the selected one: only `model` makes others.

        Raises:
            NotFoundError: there is none; the hint is the closest name.
        """
        if name != self._selected and not as_id(name):
            split_name(name)
            names = [card.id for card in self._http.run(inference.models(self._http, self._address()))]
            if name not in names:
                close = get_close_matches(name, names, n=1) or [f"%model {name}"]
                raise NotFoundError(f"there is no model {name!r}", hint=close[0])
        return self._select(name)

    def _select(self, name: str, base: str | None = None) -> SelectedModel:
        model = self._register(name, base)
        try:
            listed = self._http.run(training.checkpoints(self._http, self._address(), str(model.id)))
        except NotOfferedError:
            listed = []
        steps = tuple(checkpoint.step for checkpoint in listed)
        self.seen |= {name, *(f"{name}@{step}" for step in steps if not as_id(name))}
        return SelectedModel(name, str(model.id), model.base_model, steps)
