"""Supervised fine-tuning from the notebook: chosen trajectories and files as lines, what of them trains, the job."""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import ValidationError

from rolloutlab.api.training import create_once, create_sft_job
from rolloutlab.api.wire.fine_tuning import (
    MAX_LINE_BYTES,
    Conversation,
    CreateSFTTrainingJob,
    SFTTrainingConfig,
    UploadedFile,
)
from rolloutlab.connection import Connector
from rolloutlab.errors import InputError, NothingTrainsError
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.data_files import is_data_file, is_parquet
from rolloutlab.sampling.split import HELD_OUT
from rolloutlab.search.build import build_search
from rolloutlab.search.field_notation import F
from rolloutlab.search.where import Where
from rolloutlab.settings import Address
from rolloutlab.store.jobs import SubmittedJobs
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import SubmittedJob, dumped, now
from rolloutlab.training.fine_tuning_lines import as_line, begins_with_answer, is_rejected, remarks
from rolloutlab.training.submission import recorded
from rolloutlab.trajectories.collection import Collection, select
from rolloutlab.trajectories.files import file_path, parquet
from rolloutlab.trajectories.files.columns import checked
from rolloutlab.trajectories.files.jsonl import documents

if TYPE_CHECKING:
    from rolloutlab.search.index import Index

Names = str | Sequence[str]
"""Of collections and files; a path is fine too."""


@dataclass(frozen=True)
class FineTuning:
    """What a job of `model` is to learn: trajectories of collections, and the lines of files.

    chosen: names of trajectories, by the label of their collection; None where all of it is chosen. options: as
    recorded with the job. opened: places of conversations that begin with the model, of the lines read so far. noted:
    places by what is to be said of them.
    """

    model: str
    collections: tuple[Collection, ...]
    files: tuple[Path, ...]
    chosen: Mapping[str, frozenset[str]] | None
    config: SFTTrainingConfig
    options: Mapping[str, Any]
    opened: list[str] = field(default_factory=list, compare=False)
    noted: dict[str, list[str]] = field(default_factory=dict, compare=False)

    @property
    def names(self) -> str:
        """What is trained on, for a heading."""
        return ", ".join([*(each.name for each in self.collections), *(path.name for path in self.files)])

    def __iter__(self) -> Iterator[bytes]:
        """The lines to upload, read some groups at a time.

        Raises:
            InputError: a line of a file is no conversation, or is longer than a service reads.
        """
        for collection in self.collections:
            label = collection.label
            for trajectory in collection.each_trajectory():
                place = trajectory.name.partition("/")[2]
                if self.chosen is None or f"{label}/{place}" in self.chosen[label]:
                    for history in trajectory.histories():
                        tools = [tool.to_wire() for tool in history.tools or ()]
                        rest = {"name": trajectory.name, **({"tools": tools} if tools else {})}
                        items = f'{{"messages_and_choices":{dumped(history.messages_and_choices)},'
                        yield _line(items + json.dumps(rest)[1:], trajectory.name)
        for path in self.files:
            structs = is_parquet(path.name)
            for place, value in parquet.documents(path) if structs else documents(path):
                if is_rejected(value):
                    self.noted.setdefault("left out: rejected answers (label is false)", []).append(place)
                    continue
                for remark in remarks(value):
                    self.noted.setdefault(remark, []).append(place)
                line = as_line(value, place, structs=structs)
                if begins_with_answer(line):
                    self.opened.append(place)
                conversation = checked(Conversation, line, place).model_copy(update={"name": place})
                yield _line(conversation.to_json(), place)

    def warnings(self) -> list[str]:
        """About prompts that are kept to compare on, and first messages of the model, once the lines are read."""
        own = count(len(self.opened), "conversation")
        opened = f"{own} beginning with the model, whose first message is context ({', '.join(self.opened[:3])})"
        noted = [f"{count(len(p), 'conversation')} {what} ({', '.join(p[:3])})" for what, p in self.noted.items()]
        return (
            [opened] * bool(self.opened)
            + noted
            + [
                f"{count(held, 'prompt')} of {c.name} held out by a split, to compare on"
                f" -> sample {c.name} --over split.train"
                for c in self.collections
                if (held := len(c.part(HELD_OUT)))
            ]
        )


def fine_tuning(
    lab: Lab, index: Callable[[], "Index"], names: Names, options: Mapping[str, Any], where: Any, model: str
) -> FineTuning:
    """Check names, options and the condition `where` on trajectories, as of a search; starts no service.

    names: collections and patterns, and fine-tuning files: JSON Lines of `{"messages": [...]}`. index: opens that of
    the lab, for a condition.

    Raises:
        InputError: an option or the condition is wrong, or there is a condition and a file. NotFoundError: no such
        collection. NothingTrainsError: no trajectory meets the condition.
    """
    config = sft_config(options)
    given = [names] if isinstance(names, str | PathLike) else list(names)
    files = tuple(file_path(name) for name in given if isinstance(name, PathLike) or is_data_file(name))
    labels = [str(name) for name in given if not isinstance(name, PathLike) and not is_data_file(name)]
    if not given:
        raise NothingTrainsError("no collection is given: nothing would train", hint="%%train NAME --sft")
    if files and where is not None:
        hint = f"%import {files[0].name} NAME, then %%train NAME --sft --where"
        raise InputError("a condition chooses among trajectories, and a file has none", hint=hint)
    collections = tuple(select(lab, labels)) if labels else ()
    chosen = None
    if where is not None:
        (searched := index()).refresh()
        condition = build_search(None, searched.fields(), where).where
        chosen = {collection.label: _chosen(searched, collection, condition) for collection in collections}
        if not any(chosen.values()):
            raise NothingTrainsError(f"no trajectory of {', '.join(labels)} meets {where}", hint="%search --where")
    chosen_by = {"where": str(where)} if where is not None else {}
    of_files = {"files": [str(name) for name in given if str(name) not in labels]} if files else {}
    recorded_options = {"sft": True, **chosen_by, **of_files, **config.to_wire()}
    return FineTuning(model, collections, files, chosen, config, recorded_options)


def check_sft(*, sft: bool, where: Any) -> bool:
    """`sft`; InputError where there is a condition without it."""
    if where is not None and not sft:
        hint = f'--sft, or %search --where "{where}" --into chosen, then %%train chosen'
        raise InputError("a condition chooses what supervised fine-tuning learns", hint=hint)
    return sft


def _chosen(index: "Index", collection: Collection, condition: Where | None) -> frozenset[str]:
    """Names of the trajectories of a collection that meet a condition."""
    name, _, generation = collection.label.partition(":")
    own = (F.collection == name) & (F.generation == int(generation))
    answer = index.search(build_search(None, index.fields(), own if condition is None else condition & own, k=0))
    return frozenset(hit.id for hit in answer.outcome.hits)


def _line(text: str, place: str) -> bytes:
    """A line to upload; InputError where it is too long."""
    line = f"{text}\n".encode()
    if len(line) > MAX_LINE_BYTES:
        message = f"{place}: {len(line):,} bytes in one conversation, and a service reads at most {MAX_LINE_BYTES:,}"
        raise InputError(message, hint="shorten this conversation, or leave it out")
    return line


def sft_config(options: Mapping[str, Any]) -> SFTTrainingConfig:
    """The options of a fine-tuning job; InputError where one is unknown or wrong."""
    if not isinstance(options, Mapping):
        raise InputError(f"options are a dict, not a {type(options).__name__}", hint='{"learning_rate": 2e-3}')
    for name in options:
        if name not in SFTTrainingConfig.model_fields:
            raise InputError(f"unknown option {name!r} with --sft", hint="learning_rate: 2e-3 or batch_size: 8")
    try:
        return SFTTrainingConfig.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        hint = {"learning_rate": "learning_rate: 2e-3, or [2e-3, 1e-3] for two steps"}.get(name, f"{name}: 8")
        raise InputError(f"{name}: {options[name]!r}: {first['msg']}", hint=hint) from error


def submit_fine_tuning(
    wanted: FineTuning, file: UploadedFile, jobs: SubmittedJobs, connector: Connector, address: Address, model_id: str
) -> str:
    """Create a job on uploaded data; its id. Raises as `submission.submit`."""
    labels = tuple(collection.label for collection in wanted.collections)
    submitted = SubmittedJob(str(uuid.uuid4()), connector.name, wanted.model, labels, wanted.options, now())
    job = CreateSFTTrainingJob(model_id=UUID(model_id), training_data_url=str(file.url), config=wanted.config)
    http = connector.http

    def send(key: str) -> str:
        return http.run(create_once(http, address, key, lambda: create_sft_job(http, address, job, key)))

    return recorded(jobs, submitted, send)
