"""Supervised fine-tuning from the notebook: trajectories and files as lines to upload, and the job on them."""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import ValidationError

from rolloutlab.api.training import create_once, create_sft_job
from rolloutlab.api.wire.fine_tuning import (
    MASKS,
    MAX_LINE_BYTES,
    Conversation,
    CreateSFTTrainingJob,
    SFTTrainingConfig,
    UploadedFile,
)
from rolloutlab.connection import Connector
from rolloutlab.errors import InputError, NothingTrainsError
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.conversation import (
    are_structs,
    as_list,
    as_message,
    as_tools,
    messages_of,
    parse_json,
    read_json_messages,
    tools_beside,
    tools_of,
)
from rolloutlab.sampling.data_files import is_data_file, is_parquet
from rolloutlab.sampling.split import HELD_OUT
from rolloutlab.search.build import build_search
from rolloutlab.search.field_notation import F
from rolloutlab.search.where import Where
from rolloutlab.settings import Address
from rolloutlab.store.jobs import SubmittedJobs
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import SubmittedJob, dump_items, now
from rolloutlab.training.submission import record_and_send
from rolloutlab.trajectories.collection import Collection, select
from rolloutlab.trajectories.files import file_path, parquet
from rolloutlab.trajectories.files.columns import validate
from rolloutlab.trajectories.files.jsonl import read_documents

if TYPE_CHECKING:
    from rolloutlab.search.index import Index

_SHOWN = 6
_OF_MESSAGES = ("messages", "conversations", "prompt", "completion", "chosen")
_KNOWN = {"messages", "messages_and_choices", "tools", "functions", "finish_reason"}
"""The columns of a Parquet row that are uploaded. Others may hold anything, such as dates and images."""


def as_line(value: Any, place: str, *, structs: bool = False) -> Any:
    """Convert a line to the form of `messages`.

    | the line has | its messages |
    |---|---|
    | `messages` | those |
    | `conversations` (ShareGPT) | those |
    | `prompt` and `completion` (TRL) | the prompt, then the completion |
    | `conversations` and `chosen` | the conversation, then `chosen` |
    | `chosen` and `rejected` | their common beginning, or else `prompt`; then the rest of `chosen` |

    Answers in a prompt become context. Tool calls without an id, as in TRL's data, get one. `tools` may be JSON text.

    structs: whether the line comes from Parquet. Its nulls are then left out.

    Raises:
        InputError: the line has another shape.
    """
    if not isinstance(value, Mapping):
        return value
    line = dict(value)
    if line.get("tools") is not None:
        line["tools"] = as_tools(line["tools"])
    for name in ("functions", "messages", "conversations"):
        if isinstance(line.get(name), str):
            line[name] = parse_json(line[name])
    if line.get("messages") is None and line.get("messages_and_choices") is None:
        line["messages"] = _take_messages(line, place)
    messages: Any = line.get("messages")
    if messages is not None:
        messages = line["messages"] = _add_system(line.pop("system", None), messages, place)
    tools = tools_beside(line)
    if _are_mappings(messages) and not any("message" in each for each in messages):
        structs = structs or are_structs(messages, tools)
        line["messages"] = messages_of(messages, tools, structs=structs)
    described = {name: tools_of(line[name], structs=structs) for name in ("tools", "functions") if line.get(name)}
    known = {name: each for name, each in line.items() if name in _KNOWN} if structs else line
    return {**known, **described}


def is_rejected(line: Any) -> bool:
    """Whether a line is a completion that was rejected: `label` of TRL, or `kto_tag` of LLaMA-Factory, is false."""
    return isinstance(line, Mapping) and any(line.get(name) is False for name in ("label", "kto_tag"))


def remarks(line: Any) -> list[str]:
    """Return notes about parts of a line that are not learned."""
    if not isinstance(line, Mapping):
        return []
    messages = [message for name in _OF_MESSAGES for message in as_list(line.get(name)) or ()]
    details = [as_list(each.get("reasoning_details")) or () for each in messages if isinstance(each, Mapping)]
    kinds = {each.get("type") for some in details for each in some if isinstance(each, Mapping)}
    pair = line.get("chosen") is not None and line.get("rejected") is not None
    return [*["with chosen and rejected: rejected is not learned"] * pair,
            *["with encrypted reasoning: learned without it"] * ("reasoning.encrypted" in kinds)]  # fmt: skip


def begins_with_answer(line: Any) -> bool:
    """Make the first message context if it is the model's, as in some of ShareGPT; return whether that was done.

    A single message, or a first one that has one of `MASKS`, is left as it is.

    The message answers nothing. A policy that learned it would learn to speak unasked.
    """
    messages: Any = line.get("messages") if isinstance(line, Mapping) else None
    if not _are_mappings(messages) or messages[0].get("role") != "assistant":
        return False
    if len(messages) == 1 or any(name in messages[0] for name in MASKS):
        return False
    messages[0]["weight"] = 0
    return True


def _take_messages(line: dict[str, Any], place: str) -> list[Any]:
    """Take the messages of a line without `messages` out of its other properties, which are removed from the line."""
    chosen, rejected = line.get("chosen"), line.get("rejected")
    if _are_mappings(line.get("conversations")):
        messages = line.pop("conversations")
        return messages if chosen is None else [*_as_context(messages), *_as_answers(line.pop("chosen"))]
    if chosen is not None and rejected is not None:
        pair = _as_answers(chosen), _as_answers(rejected)
        own = [one for one, other in takewhile(lambda each: each[0] == each[1], zip(*pair, strict=False))]
        prompt = own or _texts("user", line.get("prompt"))
        if _are_mappings(prompt) and _are_mappings(pair[0]):
            for name in ("prompt", "chosen", "rejected"):
                line.pop(name, None)
            return [*_as_context(prompt), *pair[0][len(own) :]]
    if {"prompt", "completion"} <= line.keys():
        prompt, completion = _texts("user", line.pop("prompt")), _as_answers(line.pop("completion"))
        if _are_mappings(prompt) and _are_mappings(completion):
            return [*_as_context(prompt), *completion]
    names = ", ".join(map(str, list(line)[:_SHOWN])) or "nothing"
    hint = '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]} in each line'
    raise InputError(f"{place}: a line has messages, conversations, or prompt and completion; here: {names}", hint=hint)


def _add_system(system: Any, messages: Any, place: str) -> Any:
    """Put the text of a `system` property before the messages. In the form of Bedrock it is a text or a list."""
    parts: list[Any] = [each.get("text") if isinstance(each, Mapping) else each for each in as_list(system) or [system]]
    if not any(parts) or not _are_mappings(messages):
        return messages
    if not all(isinstance(each, str) for each in parts):
        raise InputError(f"{place}: system is no text", hint='"system": "..." or a message with the role system')
    text, own = "\n".join(parts), as_message(messages[0])
    if own.get("role") != "system":
        return [{"role": "system", "content": text}, *messages]
    if own.get("content") != text:
        both = "system is beside the messages and among them, with other words"
        raise InputError(f"{place}: {both}", hint="leave one of them out")
    return messages


def _texts(role: str, value: Any) -> Any:
    """Return a text, a message, or JSON text of messages as a list of messages."""
    value = read_json_messages(value) or value
    value = {"role": role, "content": value} if isinstance(value, str) else value
    return [value] if isinstance(value, Mapping) else value


def _as_answers(value: Any) -> Any:
    """Return a completion as a list of messages; a text is one of the assistant."""
    return _texts("assistant", value)


def _as_context(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages with their answers marked as not to be learned."""
    return [{**each, "weight": 0} if as_message(each).get("role") == "assistant" else each for each in messages]


def _are_mappings(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


Names = str | Sequence[str]
"""Names of collections and files; also paths."""


@dataclass(frozen=True)
class FineTuning:
    """What a fine-tuning job is to learn: trajectories of collections, and the lines of files.

    model: the model that the job trains.
    collections: the collections.
    files: the files.
    chosen: the names of the chosen trajectories, by the label of their collection; None if all are chosen.
    config: the options of the job.
    options: the options as the lab records them.
    opened: the places of conversations that begin with the model, among the lines read so far.
    noted: the places of the lines that each note is about, among the lines read so far.
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
        """The names of collections and files, for a heading."""
        return ", ".join([*(each.name for each in self.collections), *(path.name for path in self.files)])

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines to upload, read some groups at a time.

        Raises:
            InputError: a line of a file is no conversation, or is longer than a service reads.
        """
        self.opened.clear()  # an upload that is tried again reads every line again
        self.noted.clear()
        for collection in self.collections:
            label = collection.label
            for trajectory in collection.each_trajectory():
                place = trajectory.name.partition("/")[2]
                if self.chosen is None or f"{label}/{place}" in self.chosen[label]:
                    for history in trajectory.histories():
                        tools = [tool.to_wire() for tool in history.tools or ()]
                        rest = {"name": trajectory.name, **({"tools": tools} if tools else {})}
                        items = f'{{"messages_and_choices":{dump_items(history.messages_and_choices)},'
                        yield _encode_line(items + json.dumps(rest)[1:], trajectory.name)
        for path in self.files:
            structs = is_parquet(path.name)
            for place, value in parquet.read_documents(path) if structs else read_documents(path):
                if is_rejected(value):
                    self.noted.setdefault("left out: rejected answers (label is false)", []).append(place)
                    continue
                for remark in remarks(value):
                    self.noted.setdefault(remark, []).append(place)
                line = as_line(value, place, structs=structs)
                if begins_with_answer(line):
                    self.opened.append(place)
                conversation = validate(Conversation, line, place).model_copy(update={"name": place})
                yield _encode_line(conversation.to_json(), place)

    def warnings(self) -> list[str]:
        """Return warnings about the data. Those about lines of files are known once the lines have been read."""
        own = count(len(self.opened), "conversation")
        opened = f"{own} beginning with the model, whose first message is context ({', '.join(self.opened[:3])})"
        noted = [f"{count(len(p), 'conversation')} {what} ({', '.join(p[:3])})" for what, p in self.noted.items()]
        return (
            [opened] * bool(self.opened)
            + noted
            + [
                f"{count(held, 'prompt')} of {c.name} held out by a split would be trained on"
                f" -> sample {c.name} --over split.train"
                for c in self.collections
                if (held := len(c.part(HELD_OUT)))
            ]
        )


def plan_fine_tuning(
    lab: Lab, index: Callable[[], "Index"], names: Names, options: Mapping[str, Any], where: Any, model: str
) -> FineTuning:
    """Check the arguments of a fine-tuning job. It starts no service.

    Args:
        lab: The lab.
        index: Opens the search index of the lab; only called for a condition.
        names: Collections and patterns, and fine-tuning files: JSON Lines, JSON or Parquet, in the forms of `as_line`.
        options: The options of the job.
        where: A condition on trajectories, as a search has; None chooses all.
        model: The model to train.

    Raises:
        InputError: an option or the condition is wrong, or there is a condition and a file.
        NotFoundError: there is no such collection.
        NothingTrainsError: nothing is named, or no trajectory meets the condition.
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
        chosen = {collection.label: _find_chosen(searched, collection, condition) for collection in collections}
        if not any(chosen.values()):
            raise NothingTrainsError(f"no trajectory of {', '.join(labels)} meets {where}", hint="%search --where")
    chosen_by = {"where": str(where)} if where is not None else {}
    of_files = {"files": [str(name) for name in given if str(name) not in labels]} if files else {}
    recorded_options = {"sft": True, **chosen_by, **of_files, **config.to_wire()}
    return FineTuning(model, collections, files, chosen, config, recorded_options)


def check_sft(*, sft: bool, where: Any) -> bool:
    """Return `sft`; raise InputError if there is a condition `where` without it."""
    if where is not None and not sft:
        hint = f'--sft, or %search --where "{where}" --into chosen, then %%train chosen'
        raise InputError("a condition chooses what supervised fine-tuning learns", hint=hint)
    return sft


def _find_chosen(index: "Index", collection: Collection, condition: Where | None) -> frozenset[str]:
    """Find the names of the trajectories of a collection that meet a condition."""
    name, _, generation = collection.label.partition(":")
    own = (F.collection == name) & (F.generation == int(generation))
    answer = index.search(build_search(None, index.fields(), own if condition is None else condition & own, k=0))
    return frozenset(hit.id for hit in answer.outcome.hits)


def _encode_line(text: str, place: str) -> bytes:
    """Encode a line to upload. Raises InputError if it is too long."""
    line = f"{text}\n".encode()
    if len(line) > MAX_LINE_BYTES:
        message = f"{place}: {len(line):,} bytes in one conversation, and a service reads at most {MAX_LINE_BYTES:,}"
        raise InputError(message, hint="shorten this conversation, or leave it out")
    return line


def sft_config(options: Mapping[str, Any]) -> SFTTrainingConfig:
    """Read the options of a fine-tuning job. Raises InputError if one is unknown or wrong."""
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
    """Create a job on uploaded data; return its id.

    Args:
        wanted: The data and the options.
        file: What the service has said of the uploaded data.
        jobs: The jobs of the lab, where the job is recorded.
        connector: The connection to the service.
        address: The address of the service.
        model_id: The id of the model at the service.

    Raises:
        RolloutlabError: as `submission.submit` does.
    """
    labels = tuple(collection.label for collection in wanted.collections)
    submitted = SubmittedJob(str(uuid.uuid4()), connector.name, wanted.model, labels, wanted.options, now())
    job = CreateSFTTrainingJob(model_id=UUID(model_id), training_data_url=str(file.url), config=wanted.config)
    http = connector.http

    def send(key: str) -> str:
        return http.run(create_once(http, address, key, lambda: create_sft_job(http, address, job, key)))

    return record_and_send(jobs, submitted, send)
