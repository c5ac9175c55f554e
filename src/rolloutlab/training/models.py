"""Models of a service: which one is selected, their registration and their checkpoints."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import Any
from uuid import UUID

from rolloutlab.api import health, inference, training
from rolloutlab.api.dialect import dialect_of
from rolloutlab.api.wire.engine import EngineStatus
from rolloutlab.api.wire.training import Ancestor, Model, ModelCard, RegisterModel
from rolloutlab.connection import Connector
from rolloutlab.errors import ConflictError, InputError, NotFoundError, NotOfferedError, RolloutlabError
from rolloutlab.objective.option_docs import SMALL_POLICY_RATE
from rolloutlab.sampling.config import SamplingConfig
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.settings import PACKAGED, Address
from rolloutlab.store.agreement import Disagreement, find_disagreements
from rolloutlab.training.default_model import PRACTICE, default_model

_TIMEOUT = 3.0  # seconds for a service to report the newest checkpoint; without it the report only lacks the lag
_ID_LENGTH = 36
_NO_STEPS = "its service lists no checkpoints"
_SAMPLED_ONLY = "sampled only: its service trains no models"
_TO_TRAIN = "%connect embedded, or another service that trains"
_NAME = re.compile(r"(?P<project>[\w.-]+)/(?P<name>[\w.-]+)")


@dataclass(frozen=True)
class SelectedModel:
    """A model of a service.

    Attributes:
        name: PROJECT/NAME, or its id if it was selected by its id.
        id: The service's id for it.
        base: Its base model; empty if that is unknown.
        steps: The steps of its checkpoints; empty if the service lists none.
        trains: Whether the service trains it.
        notes: Lines about files of the lab folder that are of different times, as after a backup was put back.
        made_from: The checkpoint of another model that it was made from, then the one that the other was made from, and
            so on. Empty for a model that began at its base, or was selected by its id.
        remark: A line about the selection itself.
    """

    name: str
    id: str
    base: str
    steps: tuple[int, ...]
    trains: bool = True
    notes: tuple[str, ...] = ()
    made_from: tuple[Ancestor, ...] = ()
    remark: str = ""

    @property
    def newest(self) -> int:
        """The newest step. Raises NotOfferedError if the service lists no checkpoints."""
        return max(self._listed)

    @property
    def oldest(self) -> int:
        """The oldest step: 0, unless it was deleted or the model was made from a checkpoint. Raises as `newest`."""
        return min(self._listed)

    @property
    def _listed(self) -> tuple[int, ...]:
        if not self.steps:
            raise NotOfferedError(f"{self.name}: {self._no_steps}", hint=f"%%chat NAME samples {self.name} as it is")
        return self.steps

    def check_step(self, step: int) -> int:
        """Return a step; raise NotFoundError if there is no checkpoint of it."""
        if step not in self._listed:
            some = ", ".join(map(str, sorted(self.steps)[-8:]))
            raise NotFoundError(f"{self.name} has no checkpoint {step}; there are {some}", hint="%models lists them")
        return step

    @property
    def _no_steps(self) -> str:
        return _NO_STEPS if self.trains else _SAMPLED_ONLY

    def __repr__(self) -> str:
        if not self.steps:
            return escape_control_chars(f"model {self.name}: {self._no_steps}")
        one = len(self.steps) == 1
        steps = f"checkpoint {self.newest}" if one else f"{len(self.steps)} checkpoints, newest {self.newest}"
        source = f" from {self.made_from[0]}" if self.made_from else ""
        line = f"model {self.name}{source}{self.base and f' on {self.base}'}: {steps}"
        lines = [line, *([self.remark] if self.remark else []), *self.notes]
        return "\n".join(map(escape_control_chars, lines))


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a model."""

    model: SelectedModel
    step: int

    def __str__(self) -> str:
        return f"{self.model.name}@{self.step}"

    @property
    def key(self) -> str | None:
        """A key that no other checkpoint of any service has; None if a backup may have put back an older checkpoint."""
        return None if self.model.notes else f"{self.model.id}@{self.step}"


NEWEST = "latest"
"""What is typed for the newest checkpoint of a model."""
OLDEST = object()
"""Stands for the oldest checkpoint of a model, see `SelectedModel.oldest`. It cannot be typed."""


@dataclass(frozen=True)
class Start:
    """The checkpoint that a job starts from.

    same_base: ids of models with the same checkpoint 0 as the job's model. copy_of: the checkpoint of another model
    that it is a copy of, such as `lab/practice@2`; empty if it is none.
    """

    step: int
    same_base: frozenset[str] = frozenset()
    copy_of: str = ""

    def equals(self, model: str, step: int | None) -> bool:
        """Whether it has the weights of a checkpoint of another model."""
        return (step == self.step == 0 and model in self.same_base) or f"{model}@{step}" == self.copy_of


def _find_start(selected: Sequence[ModelCard], cards: Iterable[ModelCard]) -> Start | None:
    """Find where a job of the selected model starts; None if no step of it is known.

    selected: the selected model, as far as the service lists it. cards: all models that the service lists.
    """
    for card in selected:
        if card.newest_step is not None:
            base, made_from = card.base_model, card.made_from or ""
            same_base = frozenset(c.id for c in cards if base and base in {c.base_model, c.id})
            is_copy = made_from.endswith(f"@{card.newest_step}")
            return Start(card.newest_step, same_base, made_from if is_copy else "")
    return None


def as_id(name: str) -> UUID | None:
    """Return a name as the id of a model; None if it is no id."""
    try:
        return UUID(name) if isinstance(name, str) and len(name) == _ID_LENGTH else None
    except ValueError:
        return None


def _parse_checkpoint(text: str | int | None, name: str) -> tuple[str, int | None]:
    """Parse a checkpoint as a user writes it; step None is the newest. name: the model, if the text has none."""
    model, at, step = str(NEWEST if text is None else text).rpartition("@")
    if not at and not step.isdecimal() and step != NEWEST:
        model, step = step, NEWEST
    if (
        (not step.isdecimal() and step != NEWEST)
        or (model and not as_id(model) and "/" not in model)
        or (at and not model)
    ):
        raise InputError(f"{text!r} is not a checkpoint", hint="lab/practice@3, lab/practice for its newest, or a step")
    return model or name, None if step == NEWEST else int(step)


def _write_source(start: str | int, selected: str, new: str) -> str:
    """Write the checkpoint that a model is to be made from in the form that the service takes.

    A step alone is one of the selected model. A model without a project is in the new model's project.
    """
    model, at, step = str(start).rpartition("@")
    if at and model and "/" not in model and not as_id(model):
        start = f"{split_name(new)[0]}/{model}@{step}"
    name, number = _parse_checkpoint(start, selected)
    return f"{name}@{NEWEST if number is None else number}"


def split_name(name: str) -> tuple[str, str]:
    """Split `project/name`. Raises InputError for a name of another form."""
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if not match:
        raise InputError(f"{name!r} is not a model name", hint="project/name, such as lab/practice")
    return match["project"], match["name"]


def _checkpoint_of(model: SelectedModel, step: Any) -> Checkpoint:
    """Find a checkpoint by its number, by None for the newest, or by `OLDEST`."""
    if step is OLDEST:
        return Checkpoint(model, model.oldest)
    return Checkpoint(model, model.newest if step is None else model.check_step(step))


class Models:
    """The models of the present service, one of which is selected to be sampled and trained.

    seen: names of models and checkpoints that a service listed.
    """

    def __init__(self, connector: Connector) -> None:
        self.seen: set[str] = set()
        self._chosen: str | None = None
        self._connector = connector
        self._registered: set[tuple[str, str]] = set()
        """Base URLs of services, and the names of models registered there."""
        self._bases: dict[tuple[str, str], str | None] = {}
        """The base that was given for each model, by service and name."""
        self._noted: set[str] = set()
        """Notes that were shown."""
        self._sample_only: set[str] = set()
        """Base URLs of services that train no models."""

    @property
    def selected(self) -> str:
        """The name of the model that was selected, else the default model of the policy that is set now."""
        return self._chosen or default_model(self._connector.reread_policy())

    @property
    def text_only(self) -> bool:
        """Whether the policy is known to read only text, as those of the embedded service are."""
        return self._connector.settings.service is None

    def record_listed(self, names: Iterable[str], *, to_another: bool, trains: bool | None = None) -> None:
        """Record the models that the present service lists. At another service, select the default model."""
        self.seen.update(names)
        if to_another:
            self._chosen = None
        if trains is not None:
            (self._sample_only.discard if trains else self._sample_only.add)(self._connector.name)

    def select(self, name: str, base: str | None, start: str | int | None = None) -> SelectedModel:
        """Select a model, registering it if it is new. Raises as `Session.model`."""
        if start is not None:
            return self._fork(name, base, start)
        if base is None and not self._is_sampled_only(name):
            self._check_base(name)
        model = self._read(name, base)
        self._chosen = model.name
        return model

    @contextmanager
    def switch(self, name: str) -> Iterator[None]:
        """Enter a context in which another model is selected. The service must have it."""
        before, self._chosen = self._chosen, name
        try:
            yield
        finally:
            self._chosen = before

    def _fork(self, name: str, base: str | None, start: str | int) -> SelectedModel:
        """Select a model that is made from a checkpoint of another, if it is new."""
        if as_id(name):
            raise InputError(f"{name} is the id of a model that exists", hint=f"%model lab/second --from {start}")
        split_name(name)
        source = _write_source(start, self.selected, name)
        self.check_forks()
        try:
            model = self._read(name, base, source)
        except NotFoundError as error:
            error.hint = error.hint or self._suggest_fork(name, source)
            raise
        self._chosen = model.name
        if not model.made_from or model.newest == model.made_from[0].step:
            return model
        goes_on = f"{name} was made from {model.made_from[0]} before, and goes on from its checkpoint {model.newest}"
        return replace(model, remark=goes_on)

    def _suggest_fork(self, name: str, source: str) -> str:
        """Return what to type if a checkpoint does not exist: the newest one of the model with the closest name."""
        wanted, names = source.rpartition("@")[0], [card.id for card in self.cards() if card.id != name]
        close = get_close_matches(wanted, names, n=1)
        return f"%model {name} --from {close[0]}" if close else "%models"

    def check_forks(self) -> None:
        """Raise NotOfferedError if the service would ignore `from_checkpoint`, and register a model from step 0."""
        http, address = self._connector.http, self._connector.address()
        engine = http.run(health.engine_of(http, address))
        if engine is None or not engine.forks:
            own = self._connector.settings.service is None
            hint = "%service stop: this one is of an earlier version" if own else "%connect embedded"
            raise NotOfferedError(f"{address.base_url} makes no models from checkpoints", hint=hint)

    def check_trains(self) -> None:
        """Raise NotOfferedError if the present service is known to train no models."""
        if not self.may_train:
            raise NotOfferedError(f"{self._connector.name} samples only: it trains no models", hint=_TO_TRAIN)

    @property
    def may_train(self) -> bool:
        """Whether the present service trains models, as far as is known."""
        service = self._connector.settings.service
        return self._connector.name not in self._sample_only and not (service and dialect_of(service).trains is False)

    def find(self, name: str) -> SelectedModel:
        """Find a model that the service has, or the selected one. NotFoundError suggests the closest name."""
        known = name == self.selected or (self._connector.name, name) in self._bases
        if not known and not as_id(name) and not self._is_sampled_only(name):
            split_name(name)
            names = [card.id for card in self.cards()]
            if name not in names:
                close = get_close_matches(name, names, n=1) or [f"%model {name}"]
                raise NotFoundError(f"there is no model {name!r}", hint=close[0])
        return self._read(name)

    def checkpoints(self, given: Sequence[Any], name: str) -> list[Checkpoint]:
        """Find checkpoints written as `lab/sorter@3`, as `lab/sorter` for its newest, or as a step of the model `name`.

        None is the newest one of this model, `OLDEST` its oldest.

        Raises:
            InputError: one is written in another form. NotFoundError: there is no such model or checkpoint.
        """
        read = cache(self.find)  # each model is requested once
        parts = [(name, OLDEST) if each is OLDEST else _parse_checkpoint(each, name) for each in given]
        return [_checkpoint_of(read(model), step) for model, step in parts]

    def register(self, name: str, base: str | None = None, source: str | None = None) -> Model:
        """Return the model as the service has it; register it if it is new. For the id of a model no request is sent.

        source: the checkpoint of another model that it is made from; by default it begins at its base.
        """
        if model_id := as_id(name):
            return Model(id=model_id, entity="", project="", name=name, base_model=base or "")
        project, short = split_name(name)
        key = self._connector.name, name
        base = base or self._bases.get(key)
        given = {} if source is None else {"from_checkpoint": source}
        request = RegisterModel(project=project, name=short, base_model=base, return_existing=True, **given)
        address = self._connector.address()
        model = self._connector.http.run(training.register_model(self._connector.http, address, request))
        self._registered.add((address.base_url, name))
        self._bases[key] = base
        self._connector.model_ids[key] = str(model.id)
        return model

    def register_selected(self) -> str:
        """Register the selected model if it is new; return its name."""
        self.register(self.selected)
        return self.selected

    def pin(self, plan: SamplingConfig) -> SamplingConfig:
        """Set the step of a plan to the newest checkpoint, if the service does not report which one it samples."""
        service = self._connector.settings.service
        model_id = self._connector.model_ids.get((self._connector.name, plan.model))
        if service is None or dialect_of(service).names_checkpoint or plan.step is not None or model_id is None:
            return plan
        http = self._connector.http
        listed = http.run(training.checkpoints(http, self._connector.address(), model_id))
        return plan.model_copy(update={"step": max(each.step for each in listed)}) if listed else plan

    def register_for_training(self, name: str) -> Model:
        """Register as `register` does; raise ConflictError if the service cannot train it, before data is sent."""
        model = self.register(name)
        if model.conflict:
            raise ConflictError(model.conflict)
        return model

    def ensure_registered(self, name: str, address: Address) -> None:
        """Register a model, unless this session has done so before or the service can only sample it."""
        if (address.base_url, name) not in self._registered and not self._find_sampled(name):
            try:
                self.register(name)
            except NotFoundError:
                if not self._find_sampled(name, ask=True):
                    raise

    def start(self) -> Start | None:
        """Ask where a job of the selected model would start; None if no service runs, answers, or lists a step."""
        if address := self._connector.running():
            http = self._connector.http
            with suppress(RolloutlabError):
                cards = http.run(inference.models(http, address, timeout=_TIMEOUT, retry=False))
                return _find_start([card for card in cards if card.id == self.selected], cards)
        return None

    def engine(self) -> EngineStatus | None:
        """Return the engine of the present service; None if no service runs, or if it is not known."""
        address = self._connector.running()
        return self._connector.engine(address) if address else None

    def default_rate(self) -> float | None:
        """Return the learning rate of a job without that option; None if it is not known."""
        if engine := self.engine():
            return engine.learning_rate
        settings = self._connector.settings
        return SMALL_POLICY_RATE if settings.service is None and settings.policy in PACKAGED else None

    def engine_name(self) -> str | None:
        """Return the name of the service's engine. For the embedded service, which need not run, it is a setting."""
        settings = self._connector.settings
        if settings.service is None:
            return settings.model.engine
        engine = self.engine()
        return engine.name if engine else None

    def cards(self) -> list[ModelCard]:
        """Return the models that the service lists."""
        return self._connector.http.run(inference.models(self._connector.http, self._connector.address()))

    def _check_base(self, name: str) -> None:
        """Raise InputError for a name that the service would have to register, unless it is in the default project."""
        if as_id(name) or split_name(name)[0] == split_name(PRACTICE)[0] or name in self.seen:
            return
        try:
            cards = self.cards()
        except NotOfferedError:  # without a list, the service decides at the registration
            return
        if name in {card.id for card in cards}:
            return
        bases = sorted({card.base_model or card.id for card in cards}) or ["BASE"]
        raise InputError(
            f"there is no model {name!r} here; a new model needs a base that is served: {', '.join(bases)}",
            hint=f"%model {name} --base {bases[0]}, or ROLLOUTLAB_POLICY={name} to serve what the hub has of that name",
        )

    def _is_sampled_only(self, name: str) -> bool:
        """Whether the present service only samples this model: it trains none, or its name is not PROJECT/NAME."""
        service = self._connector.settings.service
        if service is None or as_id(name):
            return False
        if self._connector.name in self._sample_only or (known := dialect_of(service)).trains is False:
            return True
        if not known.lists_models:
            return False
        return isinstance(name, str) and not _NAME.fullmatch(name) and name in {card.id for card in self.cards()}

    def _find_sampled(self, name: str, *, ask: bool = False) -> SelectedModel | None:
        """Find a model that the present service can only sample; None if it may train it. ask: ask whether it trains.

        Raises:
            NotFoundError: the service lists models, and this one is not among them.
        """
        service, http = self._connector.settings.service, self._connector.http
        if ask and service and dialect_of(service).trains is None:
            offer = http.run(health.ask(http, self._connector.with_token(service)))
            if offer.trains is False:
                self._sample_only.add(self._connector.name)
        if not self._is_sampled_only(name):
            return None
        with suppress(NotOfferedError):  # without a list any name may be right
            names = [card.id for card in self.cards()]
            self.seen.update(names)
            if name not in names:
                close = [*get_close_matches(str(name), names, n=1), *names, "NAME"]
                raise NotFoundError(f"{self._connector.name} has no model {name!r}", hint=f"%model {close[0]}")
        self._registered.add((self._connector.name, name))
        return SelectedModel(name, name, "", (), trains=False)

    def _read(self, name: str, base: str | None = None, source: str | None = None) -> SelectedModel:
        """Read a model and its checkpoints; register it if it is new, unless the service can only sample it.

        source: see `register`.
        """
        may_sample = base is None and source is None
        if may_sample and (sampled := self._find_sampled(name)):
            return sampled
        http = self._connector.http
        try:
            model = self.register(name, base, source)
        except NotFoundError:
            if may_sample and (sampled := self._find_sampled(name, ask=True)):
                return sampled
            raise
        try:
            checkpoints = http.run(training.checkpoints(http, self._connector.address(), str(model.id)))
        except NotOfferedError:
            checkpoints = []
        steps = tuple(checkpoint.step for checkpoint in checkpoints)
        self.seen.update({name, *(f"{name}@{step}" for step in steps if not as_id(name))})
        notes = tuple(str(each) for each in self._disagreements(name))
        made_from = tuple(model.made_from or ())
        return SelectedModel(name, str(model.id), model.base_model, steps, notes=notes, made_from=made_from)

    def take_lost_notes(self, name: str) -> list[str]:
        """Return notes, each once, that the embedded service goes on from an older checkpoint than a model had."""
        notes = [str(each) for each in self._disagreements(name) if each.lost]
        untold = [note for note in notes if note not in self._noted]
        self._noted.update(untold)
        return untold

    def _disagreements(self, name: str) -> list[Disagreement]:
        """Find where files of the lab folder are of different times, for a model of the embedded service."""
        settings = self._connector.settings
        if settings.service is not None:
            return []
        return [each for each in find_disagreements(settings) if each.model == name.partition("@")[0]]
