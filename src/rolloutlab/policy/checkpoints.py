"""Checkpoints on disk: a folder per step, published whole or not at all, checked when read.

`adapter_model.safetensors` with `adapter_config.json` is a folder that peft and inference servers load as it is;
`optimizer.safetensors` beside it lets training go on exactly where it stopped; `checkpoint.json` says of which model
and step it is, which lists it again where the database is lost.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from peft import LoraConfig
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rolloutlab.api.wire.base import DateTime, Integer, Number, Wire
from rolloutlab.api.wire.training import LARGEST_STEP, LONGEST_NAME, NAME
from rolloutlab.errors import CheckpointError, LabError, ServiceError
from rolloutlab.fsutil import flush
from rolloutlab.policy.trainer import State

_ADAPTER, _OPTIMIZER, _SUMS = "adapter_model.safetensors", "optimizer.safetensors", "sha256.json"
_ABOUT = "checkpoint.json"
_WAY_OUT = "delete that step: the model goes on from the one before"
_AGAIN = "try again; if it stays so, look at the disk, and at `ulimit -n` of the service"


class CheckpointAbout(Wire):
    """`checkpoint.json` in a checkpoint's folder: of which model and step it is, and who made it.

    created_at: of the model. base: the fingerprint of its base policy. metrics: of the last gradient step of the job
    that made it, whose id is `job_id`; both are empty for step 0.
    """

    id: UUID
    entity: str = Field(pattern=NAME, max_length=LONGEST_NAME)
    project: str = Field(pattern=NAME, max_length=LONGEST_NAME)
    name: str = Field(pattern=NAME, max_length=LONGEST_NAME)
    base_model: str
    run_id: str
    created_at: DateTime
    base: str | None = None
    step: Integer = Field(ge=0, le=LARGEST_STEP)
    metrics: dict[str, Number] = {}
    job_id: UUID | Literal[""] = ""
    saved_at: DateTime


def write_checkpoint(folder: Path, state: State, lora: LoraConfig, about: Mapping[str, Any] | None = None) -> None:
    """Publish a checkpoint at `folder`: written beside it, flushed to disk, then renamed.

    about: JSON of the model and the step, kept in `checkpoint.json`.

    Raises:
        LabError: it cannot be written, for instance because the disk is full; what was there before is still there.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            _fill(draft, state, lora, about)
            if folder.exists():
                shutil.rmtree(folder)
            draft.replace(folder)
            flush(folder.parent)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except (OSError, SafetensorError) as error:
        raise LabError(f"the checkpoint {folder} cannot be written: {error}", hint="free some disk space") from error


def read_checkpoint(folder: Path) -> State:
    """The state of a checkpoint.

    Raises:
        CheckpointError: it is missing, or its files are not what was written. ServiceError: the disk does not answer.
    """
    with _damage(folder):
        check_checkpoint(folder)
        return State(load_file(folder / _ADAPTER), load_file(folder / _OPTIMIZER))


def check_checkpoint(folder: Path) -> None:
    """Compare a checkpoint's files with their checksums; raises as `read_checkpoint` does."""
    with _damage(folder):
        sums = json.loads((folder / _SUMS).read_text())
        for name in sorted({_ADAPTER, _OPTIMIZER, *sums}):
            if name in {"", ".."} or Path(name).name != name:  # it leads out of the folder
                raise CheckpointError(f"{folder / _SUMS} is damaged: {name!r} is no file name", hint=_WAY_OUT)
            if _sha256(folder / name) != sums.get(name):
                raise CheckpointError(f"{folder / name} is damaged: its checksum differs", hint=_WAY_OUT)


def about_checkpoint(folder: Path) -> CheckpointAbout | None:
    """What was written of the model and the step; None for a checkpoint of a version that wrote nothing.

    Raises:
        CheckpointError: it is not what is written there. ServiceError: the disk does not answer.
    """
    path = folder / _ABOUT
    try:
        return CheckpointAbout.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise CheckpointError(f"{path} is damaged: {place}: {first['msg']}", hint=_WAY_OUT) from error
    except OSError as error:
        raise ServiceError(f"{path} cannot be read: {error.strerror or error}", hint=_AGAIN) from error


@contextmanager
def _damage(folder: Path) -> Iterator[None]:
    """Tells what is wrong with the files of a checkpoint."""
    try:
        yield
    except FileNotFoundError as error:
        missing = f"{folder} is damaged: {error}" if folder.exists() else f"there is no checkpoint at {folder}"
        raise CheckpointError(missing, hint=_WAY_OUT) from error
    except OSError as error:  # the files may be whole: a disk that does not answer, no descriptor left
        raise ServiceError(f"{folder} cannot be read: {error.strerror or error}", hint=_AGAIN) from error
    except (ValueError, AttributeError, TypeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{folder} is damaged: {error}", hint=_WAY_OUT) from error


def _fill(draft: Path, state: State, lora: LoraConfig, about: Mapping[str, Any] | None) -> None:
    save_file(state.adapter, draft / _ADAPTER, metadata={"format": "pt"})
    save_file(state.optimizer, draft / _OPTIMIZER)
    lora.save_pretrained(str(draft))
    if about:
        (draft / _ABOUT).write_text(json.dumps(about))
    (draft / _SUMS).write_text(json.dumps({path.name: _sha256(path) for path in sorted(draft.iterdir())}))
    for path in [*draft.iterdir(), draft]:
        flush(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
