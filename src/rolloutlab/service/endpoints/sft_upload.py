"""Files of fine-tuning data: JSON Lines as uploaded, or the body of a job, which has its options in the first line."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rolloutlab.api.wire.errors import ValidationError
from rolloutlab.api.wire.fine_tuning import MAX_LINE_BYTES, Conversation, CreateSFTTrainingJob
from rolloutlab.fsutil import flush
from rolloutlab.service.endpoints.body import InvalidBodyError, parse

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def conversations(path: Path) -> Iterator[tuple[str, Conversation]]:
    """Read the conversations of an uploaded file lazily, each with its own name or `line 7`.

    Raises:
        InvalidBodyError: a line is no conversation; the path begins with the line.
    """
    with path.open("rb") as file:
        yield from _read_lines(file)


def write(job: CreateSFTTrainingJob, data: Path, body: Path) -> None:
    """Write the body of a job with a copy of its data, and flush it to disk."""
    with data.open("rb") as source, body.open("wb") as target:
        target.write(job.to_json().encode() + b"\n")
        shutil.copyfileobj(source, target)
    flush(body)


def read(body: Path) -> tuple[CreateSFTTrainingJob, Iterator[tuple[str, Conversation]]]:
    """Read a job that `write` has written, and its conversations."""
    with body.open("rb") as file:
        job = CreateSFTTrainingJob.model_validate_json(file.readline())
    return job, _read_after_job(body)


def _read_after_job(body: Path) -> Iterator[tuple[str, Conversation]]:
    with body.open("rb") as file:
        file.readline()
        yield from _read_lines(file)


def _read_lines(file: BinaryIO) -> Iterator[tuple[str, Conversation]]:
    number = 0
    while text := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        place = f"line {number}"
        if len(text) > MAX_LINE_BYTES:
            message = f"a line is longer than {MAX_LINE_BYTES:,} bytes: shorten or leave out its conversation"
            raise InvalidBodyError([ValidationError(loc=["body", place], msg=message, type="too_long")])
        text = text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text
        if text.strip():
            conversation = parse(Conversation, text, ("body", place))
            yield conversation.name or place, conversation
