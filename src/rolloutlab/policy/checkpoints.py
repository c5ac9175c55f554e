"""Checkpoints on disk: a folder per step, written atomically and verified by checksums.

An engine decides what a folder holds: tensors, or where they are. `checkpoint.json` names model and step, so that the
checkpoint can be listed again after the loss of the database.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from peft import LoraConfig
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rolloutlab.api.wire.base import DateTime, Integer, Items, Number, Wire
from rolloutlab.api.wire.levels import LARGEST_STEP
from rolloutlab.api.wire.training import LONGEST_NAME, NAME, Ancestor
from rolloutlab.errors import CheckpointError, LabError, ServiceError
from rolloutlab.fsutil import flush
from rolloutlab.policy.model import Adapter

ADAPTER, OPTIMIZER = "adapter_model.safetensors", "optimizer.safetensors"
ADAPTER_CONFIG = "adapter_config.json"


@dataclass(frozen=True)
class State:
    """The content of a checkpoint: the adapter, and AdamW's moments and step counts under the adapter's names."""

    adapter: Adapter
    optimizer: dict[str, Tensor]


def same_shapes(first: Adapter, second: Adapter) -> bool:
    """Whether two adapters are of the same layers and ranks."""
    shapes = [{name: tensor.shape for name, tensor in each.items()} for each in (first, second)]
    return shapes[0] == shapes[1]


def write_state(folder: Path, state: State, lora: LoraConfig) -> None:
    """Write the tensors into a folder that exists. Raises LabError if it cannot be written."""
    with map_write_errors(folder):
        save_file(state.adapter, folder / ADAPTER, metadata={"format": "pt"})
        save_file(state.optimizer, folder / OPTIMIZER)
        lora.save_pretrained(str(folder))


def read_state(folder: Path) -> State:
    """Read the tensors of a folder. Raises OSError, SafetensorError."""
    return State(load_file(folder / ADAPTER), load_file(folder / OPTIMIZER))


@contextmanager
def map_write_errors(folder: Path) -> Iterator[None]:
    """Map errors of writing a checkpoint to LabError."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise LabError(f"the checkpoint {folder} cannot be written: {error}", hint="free some disk space") from error


_SUMS, _METADATA = "sha256.json", "checkpoint.json"
_DELETE = "delete that step: the model continues from the one before"
_RETRY = "try again; if it stays so, check the disk, and `ulimit -n` of the service"


class CheckpointMetadata(Wire):
    """`checkpoint.json` in a checkpoint's folder.

    created_at: when the model was made. base: the fingerprint of its base policy. made_from: the model's ancestors, as
    of `Model`. metrics: of the last gradient step of the job `job_id`; both are empty for step 0. A checkpoint that was
    copied from another model has the metrics of the original, and no job.
    """

    id: UUID
    entity: str = Field(pattern=NAME, max_length=LONGEST_NAME)
    project: str = Field(pattern=NAME, max_length=LONGEST_NAME)
    name: str = Field(pattern=NAME, max_length=LONGEST_NAME)
    base_model: str
    run_id: str
    created_at: DateTime
    base: str | None = None
    made_from: Items[Ancestor] | None = None
    step: Integer = Field(ge=0, le=LARGEST_STEP)
    metrics: dict[str, Number] = {}
    job_id: UUID | Literal[""] = ""
    saved_at: DateTime


def seal(draft: Path, folder: Path, metadata: Mapping[str, Any] | None = None) -> None:
    """Turn the folder `draft` of an engine's files into the checkpoint `folder`, by a rename once all is on disk.

    Checksums and, if given, `metadata` as `checkpoint.json` are added to the files first.

    Raises:
        LabError: it cannot be written, for instance because the disk is full. Older checkpoints are still there.
    """
    with map_write_errors(folder):
        if metadata:
            (draft / _METADATA).write_text(json.dumps(metadata))
        (draft / _SUMS).write_text(json.dumps({path.name: _sha256(path) for path in sorted(draft.iterdir())}))
        for path in [*draft.iterdir(), draft]:
            flush(path)
        if folder.exists():
            shutil.rmtree(folder)
        draft.replace(folder)
        flush(folder.parent)


@contextmanager
def open_draft(folder: Path) -> Iterator[Path]:
    """Make a new folder beside a checkpoint's, for an engine to fill. It is removed at the end unless it was sealed."""
    with map_write_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def copy_files(source: Path, draft: Path) -> None:
    """Copy what an engine wrote into the checkpoint `source` into the empty folder `draft`, to be sealed.

    The checksums of the source are compared first. All files are open before the first is copied: if the source is
    deleted meanwhile, the copy is whole or not made at all.

    Raises:
        CheckpointError, ServiceError: as `check_checkpoint` does. LabError: the copy cannot be written.
    """
    with ExitStack() as files:
        with map_read_errors(source):
            check_checkpoint(source)
            names = json.loads((source / _SUMS).read_text()).keys() - {_METADATA}
            opened = {name: files.enter_context((source / name).open("rb")) for name in sorted(names)}
        with map_write_errors(draft):
            for name, file in opened.items():
                with (draft / name).open("wb") as copy:
                    shutil.copyfileobj(file, copy)


def read_checkpoint(folder: Path) -> State:
    """Read the state of a checkpoint, once its files match their checksums.

    Raises:
        CheckpointError: it is missing or damaged. ServiceError: its files cannot be read.
    """
    with map_read_errors(folder):
        check_checkpoint(folder)
        return read_state(folder)


def check_checkpoint(folder: Path) -> None:
    """Compare a checkpoint's files with their checksums. Raises as `read_checkpoint` does."""
    with map_read_errors(folder):
        sums = json.loads((folder / _SUMS).read_text())
        for name in sorted(sums):
            if name in {"", ".."} or Path(name).name != name:  # path traversal
                raise CheckpointError(f"{folder / _SUMS} is damaged: {name!r} is not a file name", hint=_DELETE)
            if _sha256(folder / name) != sums.get(name):
                raise CheckpointError(f"{folder / name} is damaged: its checksum differs", hint=_DELETE)


def adapter_sums(folder: Path) -> dict[str, str]:
    """Return the recorded checksums of an adapter's files by name; none if an engine keeps the adapter elsewhere.

    The files are not read. Raises as `check_checkpoint` does.
    """
    with map_read_errors(folder):
        sums = json.loads((folder / _SUMS).read_text())
        return {name: str(sums[name]) for name in (ADAPTER, ADAPTER_CONFIG) if name in sums}


def identity(folder: Path) -> str:
    """Hash a checkpoint's checksums. Raises as `check_checkpoint` does."""
    with map_read_errors(folder):
        return _sha256(folder / _SUMS)


def read_metadata(folder: Path) -> CheckpointMetadata | None:
    """Read the metadata of a checkpoint; None if it was written by a version without them.

    Raises:
        CheckpointError: they are damaged. ServiceError: the disk does not answer.
    """
    path = folder / _METADATA
    try:
        return CheckpointMetadata.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "it"
        raise CheckpointError(f"{path} is damaged: {field}: {first['msg']}", hint=_DELETE) from error
    except OSError as error:
        raise ServiceError(f"{path} cannot be read: {error.strerror or error}", hint=_RETRY) from error


@contextmanager
def map_read_errors(folder: Path) -> Iterator[None]:
    """Map errors of reading a checkpoint to CheckpointError and ServiceError."""
    try:
        yield
    except FileNotFoundError as error:
        message = f"{folder} is damaged: {error}" if folder.exists() else f"there is no checkpoint at {folder}"
        raise CheckpointError(message, hint=_DELETE) from error
    except OSError as error:  # the files may be intact: a disk that does not answer, no descriptor left
        raise ServiceError(f"{folder} cannot be read: {error.strerror or error}", hint=_RETRY) from error
    except (ValueError, AttributeError, TypeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{folder} is damaged: {error}", hint=_DELETE) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
