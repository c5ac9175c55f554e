"""TensorBoard: a run is a folder with an event file, written by the package tensorboard without torch.

TensorBoard keeps a scalar in 32 bits. What it shows is the lab's number, rounded to float32.
"""

import io
import json
import shlex
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rolloutlab.fsutil import locked, path_of, refused, remove
from rolloutlab.integrations.trackers.written import ByStep, file_name, find_added, import_package, in_json, times_of
from rolloutlab.runs.table import RunTable

_HINT = 'report_to=["tensorboard:FOLDER"]'
_PREFIX, _SUFFIX = "events.out.tfevents.", ".rolloutlab"
_HEADER, _CHECKSUM = 12, 4  # bytes of a record before and after its content


def open_tracker(place: str, home: Path) -> "EventFiles":
    """Open a folder of runs: `place`, or `runs` in the lab folder."""
    import_package("tensorboard")
    return EventFiles(path_of(place, _HINT) if place else home / "runs")


class EventFiles:
    """Event files, one folder per project and run. Files of other writers in such a folder are left alone."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def log(self, run: RunTable) -> str:
        """Append the new steps of a run, or write it anew in a file that replaces the older one.

        It is written anew if a number has changed, if one is new at a step before the last one that has it (TensorBoard
        drops what came after such a step), or if the writer was killed while it wrote.
        """
        folder = self._root / file_name(run.project) / Path(*map(file_name, run.name.split("/")))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder / ".rolloutlab.lock"):
                _update(folder, run)
        except OSError as error:
            raise refused(f"{folder} cannot be written", error, _HINT) from error
        return f"TensorBoard: {folder} (tensorboard --logdir {shlex.quote(str(self._root))})"


def _update(folder: Path, run: RunTable) -> None:
    """Bring the last file of this package in a folder up to date. The caller holds the folder's lock."""
    files = sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"))
    before, is_whole = _read(files[-1]) if files else ({}, False)
    after = {step: {name: _round(value) for name, value in each.items()} for step, each in run.by_step().items()}
    more = find_added(before, after)
    if is_whole and more is not None and _follows(before, more):
        with files[-1].open("ab") as file:
            file.writelines(map(_record, _events(run, more)))
        return
    # TensorBoard reads the files of a folder by name. The new one comes last, and tells it to forget the older ones.
    last = max((int(each.name.split(".")[3]) for each in files), default=0)
    path = folder / f"{_PREFIX}{max(int(time.time()), last + 1):010d}{_SUFFIX}"
    draft = folder / ".rolloutlab.draft"
    try:
        draft.write_bytes(b"".join(map(_record, [*_beginning(run), *_events(run, after)])))
        draft.replace(path)
    except OSError:
        remove(draft)
        raise
    if files:  # a reader that has one open goes on to the next file from an empty one, and not from one that is removed
        files.pop().write_bytes(b"")
    for older in files:
        older.unlink()


def _round(value: float) -> float:
    """Round to the number that TensorBoard keeps: the nearest float32, infinite beyond its range."""
    import numpy as np

    with np.errstate(over="ignore"):
        return float(np.float32(in_json(value)))


def _follows(before: ByStep, more: ByStep) -> bool:
    """Whether each number comes after the last one of its name. TensorBoard drops those after an earlier one."""
    last: dict[str, int] = {}
    for step, numbers in before.items():
        last.update({name: max(step, last.get(name, step)) for name in numbers})
    return all(step > last.get(name, step - 1) for step, numbers in more.items() for name in numbers)


def _beginning(run: RunTable) -> Iterator[Any]:
    """Yield the first events of a file: its version, the start of a session, and the options for the page HParams."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # the module `summary` needs TensorFlow

    begin = min(times_of(run).values(), default=None)
    wall_time = begin.timestamp() if begin else time.time()
    first = min(run.steps, default=0)
    yield Event(wall_time=wall_time, file_version="brain.Event:2")
    yield Event(wall_time=wall_time, step=first, session_log=SessionLog(status=SessionLog.START))
    options = {**run.config, "tags": ", ".join(run.tags)}
    hparams = {str(name): _option(value) for name, value in options.items()}
    yield Event(wall_time=wall_time, summary=hparams_pb(hparams, run.name, wall_time))


def _option(value: Any) -> bool | float | str:
    """Convert an option to what HParams takes: a truth value, a number or a text."""
    return value if isinstance(value, bool | int | float | str) else json.dumps(value, default=str)


def _events(run: RunTable, numbers: ByStep) -> Iterator[Any]:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    times = times_of(run)
    for step, values in numbers.items():
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        if values:
            yield Event(wall_time=times[step].timestamp(), step=step, summary=summary)


def _record(event: Any) -> bytes:
    """Write an event as a record of an event file: length, checksum, content, checksum."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    buffer = io.BytesIO()
    RecordWriter(buffer).write(event.SerializeToString())
    return buffer.getvalue()


def _read(path: Path) -> tuple[dict[int, dict[str, float]], bool]:
    """Read the numbers of an event file by step, and whether its last record is whole."""
    from tensorboard.compat.proto.event_pb2 import Event

    numbers: dict[int, dict[str, float]] = {}
    content, at = path.read_bytes(), 0
    while at + _HEADER <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        end = at + _HEADER + length
        if end + _CHECKSUM > len(content):
            break
        try:
            event = Event.FromString(content[at + _HEADER : end])
        except Exception:  # noqa: BLE001 - protobuf's own error: what is there is no event
            break
        for value in event.summary.value:
            if value.HasField("simple_value"):
                numbers.setdefault(event.step, {})[value.tag] = value.simple_value
        at = end + _CHECKSUM
    return numbers, bool(content) and at == len(content)
