"""Export of a checkpoint: an adapter folder or a merged model in a folder, with a model card; also to the hub."""

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolloutlab.api import training
from rolloutlab.api.dialect import dialect_of
from rolloutlab.api.wire.training import CheckpointFile, CheckpointFileList
from rolloutlab.connection import Connector
from rolloutlab.errors import InputError, NotOfferedError, PolicyError, ServiceError
from rolloutlab.fsutil import flush, path_of, refused, remove
from rolloutlab.objective.preflight import count
from rolloutlab.settings import Address
from rolloutlab.store.lab import Lab
from rolloutlab.training.evaluation import find_evaluation
from rolloutlab.training.hub import Hub
from rolloutlab.training.jobs import LabJobs
from rolloutlab.training.merging import write_merged
from rolloutlab.training.model_card import CheckpointFacts, model_card
from rolloutlab.training.models import Checkpoint

if TYPE_CHECKING:
    from rolloutlab.widgets.progress import Progress

CARD, RECORD = "README.md", "rolloutlab.json"
_ADAPTER_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class CheckpointExport:
    """The result of an export: the folder, and what is in it.

    url: the repository that it was uploaded to, if any. private: whether that repository is private.
    """

    checkpoint: str
    folder: Path
    merged: bool
    files: int
    bytes: int
    url: str | None = None
    private: bool | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        what = "merged weights" if self.merged else "adapter"
        line = f"{self.checkpoint}: {what}, {count(self.files, 'file')} ({self.bytes:,} bytes) -> {self.folder}"
        kept = "private" if self.private else "public, as it was before"
        return "\n".join([line, *self.notes, *([f"uploaded to {self.url} ({kept})"] if self.url else [])])


@dataclass(frozen=True)
class CheckpointExporter:
    """Downloads checkpoints of the connected service into folders.

    connector: the connection of the session.
    lab: returns the store.
    jobs: returns the jobs of the lab.
    progress: makes the line that shows what a call does.
    """

    connector: Connector
    lab: Callable[[], Lab]
    jobs: Callable[[], LabJobs]
    progress: "Callable[[str], Progress]"

    def export(
        self, checkpoint: Checkpoint, folder: str | os.PathLike[str], *, merged: bool, push: str | None, overwrite: bool
    ) -> CheckpointExport:
        """Write a checkpoint into a folder, whole or not at all, as `LabModels.export` describes."""
        target = path_of(folder, "--to FOLDER").resolve()
        hub = Hub(push) if push is not None else None
        check_target(target, overwrite=overwrite)
        draft, adapter = (target.with_name(f".{target.name}.{kind}") for kind in ("export", "adapter"))
        with self.progress(f"exporting {checkpoint}") as shown:
            try:
                for path in (draft, adapter):
                    remove(path)  # of an export that was killed
                    path.mkdir(parents=True)
                listed = self._fetch(checkpoint, adapter, shown)
                _check_base(listed, checkpoint, merged=merged)
                facts = self._find_facts(checkpoint, listed, merged=merged)
                if merged:
                    self._merge(checkpoint, adapter, draft, listed, shown.waiting)
                else:
                    # of a base that is not on the hub only the name is uploaded, not its path on this machine
                    hides_path = hub is not None and not facts.hub_base
                    _complete_adapter(adapter, draft, Path(listed.base).name if hides_path else listed.base)
                shown.waiting("writing its model card")
                (draft / CARD).write_text(model_card(facts), encoding="utf-8")
                done = _publish(draft, target, checkpoint, facts)
            except OSError as error:
                raise refused(f"{target} cannot be written", error, "--to another folder") from error
            finally:
                for path in (draft, adapter):
                    remove(path)
            if hub is None:
                return done
            private = hub.upload(target, f"{checkpoint}, by rolloutlab", shown.waiting)
            return replace(done, url=hub.url, private=private)

    def _fetch(self, checkpoint: Checkpoint, folder: Path, shown: "Progress") -> CheckpointFileList:
        """Download the adapter and its tokenizer, and check the size and checksum of each file."""
        http, address = self.connector.http, self.connector.address()
        try:
            listed = http.run(training.checkpoint_files(http, address, checkpoint.model.id, checkpoint.step))
        except NotOfferedError as error:
            raise _not_offered(error, checkpoint, address) from error
        missing = {_ADAPTER_CONFIG, _WEIGHTS} - {file.name for file in listed.data}
        if missing:
            raise ServiceError(f"{address.base_url} lists no {missing.pop()} of {checkpoint}", hint="%service log")
        total, before = sum(file.bytes for file in listed.data), 0
        for file in listed.data:
            with _Download(folder / file.name, file) as download:
                http.run(
                    training.save_checkpoint_file(
                        http, address, checkpoint.model.id, checkpoint.step, file.name, download.write
                    ),
                    lambda done=before, file=download: shown.update(done + file.bytes, total, "bytes"),  # type: ignore[misc]
                )
            before += file.bytes
        return listed

    def _merge(
        self,
        checkpoint: Checkpoint,
        adapter: Path,
        draft: Path,
        listed: CheckpointFileList,
        note: Callable[[str], None],
    ) -> None:
        """Write the merged weights into the draft. An error says that the base has to be on this machine."""
        try:
            write_merged(adapter, draft, listed.base, listed.fingerprint, listed.dtype, note)
        except PolicyError as error:
            if self.connector.settings.service is None:
                raise
            there = f"{error.message}; the base {listed.base!r} of {self.connector.name} is needed on this machine"
            hint = f"%export {checkpoint} --to FOLDER without --merged, which writes the adapter"
            raise PolicyError(there, hint=hint) from error

    def _find_facts(self, checkpoint: Checkpoint, listed: CheckpointFileList, *, merged: bool) -> CheckpointFacts:
        """Find what the model card tells: the jobs behind the checkpoint, and how it was evaluated."""
        lab, jobs = self.lab(), self.jobs()
        made, foreign = jobs.find_lineage(checkpoint)
        evaluation = find_evaluation(lab, jobs, checkpoint)
        names = jobs.trained_last([checkpoint])
        cell = f"%compare {names[0] if names else 'NAME'} {checkpoint.model.name}@0 {checkpoint} --over held_out"
        return CheckpointFacts(checkpoint, listed.base, listed.dtype, merged, made, foreign, evaluation, cell)


def check_target(target: Path, *, overwrite: bool) -> None:
    """Raise InputError unless the target is missing or empty, or, with `overwrite`, holds an earlier export alone."""
    try:
        there = sorted(each.name for each in target.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:  # a file, or a folder that cannot be read
        raise InputError(f"{target} cannot be replaced: {error.strerror}", hint="--to another folder") from error
    if not there:
        return
    if not overwrite:
        hint = "--overwrite replaces an earlier export; or --to another folder"
        raise InputError(f"{target} is not empty", hint=hint)
    others = sorted(set(there) - _read_record(target))
    if others:  # only what an export has written may be deleted
        message = f"{target} has files that no export wrote: {', '.join(others[:3])}"
        raise InputError(message, hint=f"--to another folder, or !rm -r {shlex.quote(str(target))}")


def _read_record(folder: Path) -> set[str]:
    """Read the names of an earlier export's files from its record; none if there is no record."""
    try:
        return {RECORD, *map(str, json.loads((folder / RECORD).read_text())["files"])}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


class _Download:
    """A file that arrives in parts. At the end it must have the checksum that was listed; it never gets larger."""

    def __init__(self, path: Path, expected: CheckpointFile) -> None:
        self.bytes = 0
        self._expected = expected
        self._digest = hashlib.sha256()
        self._file = path.open("wb")

    def write(self, part: bytes) -> None:
        self.bytes += len(part)
        if self.bytes > self._expected.bytes:
            raise self._damaged(f"more than its {self._expected.bytes:,} bytes arrive")
        self._digest.update(part)
        self._file.write(part)

    def __enter__(self) -> "_Download":
        return self

    def __exit__(self, kind: object, *_error: object) -> None:
        self._file.close()
        if kind is None and self._digest.hexdigest() != self._expected.sha256:
            raise self._damaged("its checksum differs")

    def _damaged(self, why: str) -> ServiceError:
        message = f"{self._expected.name} did not arrive as the service listed it: {why}"
        return ServiceError(message, hint="run the cell again; if it stays so, the checkpoint is damaged on the disk")


def _not_offered(error: NotOfferedError, checkpoint: Checkpoint, address: Address) -> NotOfferedError:
    """Return the error with what to type to download from a service of another kind."""
    typed = dialect_of(address).download(address, str(checkpoint))
    return NotOfferedError(error.message, hint=typed or error.hint, status=error.status)


def _check_base(listed: CheckpointFileList, checkpoint: Checkpoint, *, merged: bool) -> None:
    """Raise InputError for an adapter whose base is an adapter too: peft can only load it on a merged base."""
    if listed.merged_base and not merged:
        message = f"the base of {checkpoint} is itself an adapter, which its service has merged"
        raise InputError(message, hint=f"%export {checkpoint} --to FOLDER --merged")


def _complete_adapter(adapter: Path, draft: Path, base: str) -> None:
    """Move the adapter's files into the draft, and write into its configuration the base that peft is to load."""
    for path in sorted(adapter.iterdir()):
        path.rename(draft / path.name)
    config: dict[str, Any] = json.loads((draft / _ADAPTER_CONFIG).read_text())
    config["base_model_name_or_path"] = base
    (draft / _ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def _publish(draft: Path, target: Path, checkpoint: Checkpoint, facts: CheckpointFacts) -> CheckpointExport:
    """Write the record, flush all files to the disk, and move the draft to the target."""
    names = sorted(path.name for path in draft.iterdir())
    record = {
        "checkpoint": str(checkpoint),
        "base": facts.hub_base or checkpoint.model.base,
        "dtype": facts.dtype,
        "merged": facts.merged,
    }
    (draft / RECORD).write_text(json.dumps({**record, "files": names}, indent=2) + "\n")
    written = sorted(draft.iterdir())
    for path in (*written, draft):
        flush(path)
    size = sum(path.stat().st_size for path in written)
    earlier = target.with_name(f".{target.name}.earlier")
    if target.exists():
        remove(earlier)
        target.rename(earlier)
    draft.rename(target)
    flush(target.parent)
    shutil.rmtree(earlier, ignore_errors=True)
    return CheckpointExport(str(checkpoint), target, facts.merged, len(written), size, notes=_notes(facts))


def _notes(facts: CheckpointFacts) -> tuple[str, ...]:
    """Return notes for the user of the folder: that its base is only here, or that nothing was measured."""
    notes = []
    if not facts.merged and not facts.hub_base:
        notes.append(f"its base is on this machine only, at {facts.base} -> --merged for a folder that needs no base")
    if facts.evaluation is None:
        notes.append(f"it was not measured on held-out rows -> {facts.unmeasured}")
    return tuple(notes)
