"""Checkpoints on disk: a folder per step, published whole or not at all, checked when read.

`adapter_model.safetensors` with `adapter_config.json` is a folder that peft and inference servers load as it is;
`optimizer.safetensors` beside it lets training go on exactly where it stopped.
"""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from peft import LoraConfig
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rolloutlab.errors import CheckpointError
from rolloutlab.policy.trainer import State

_ADAPTER, _OPTIMIZER, _SUMS = "adapter_model.safetensors", "optimizer.safetensors", "sha256.json"


def write_checkpoint(folder: Path, state: State, lora: LoraConfig) -> None:
    """Publish a checkpoint at `folder`: written beside it, flushed to disk, then renamed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        save_file(state.adapter, draft / _ADAPTER, metadata={"format": "pt"})
        save_file(state.optimizer, draft / _OPTIMIZER)
        lora.save_pretrained(str(draft))
        (draft / _SUMS).write_text(json.dumps({name: _sha256(draft / name) for name in (_ADAPTER, _OPTIMIZER)}))
        for path in [*draft.iterdir(), draft]:
            _flush(path)
        if folder.exists():
            shutil.rmtree(folder)
        draft.replace(folder)
        _flush(folder.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def read_checkpoint(folder: Path) -> State:
    """The state of a checkpoint.

    Raises:
        CheckpointError: it is missing, or its files are not what was written.
    """
    try:
        sums = json.loads((folder / _SUMS).read_text())
        for name in (_ADAPTER, _OPTIMIZER):
            if _sha256(folder / name) != sums.get(name):
                raise CheckpointError(
                    f"{folder / name} is damaged: its checksum differs", hint="train from an earlier step"
                )
        return State(load_file(folder / _ADAPTER), load_file(folder / _OPTIMIZER))
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint at {folder}") from error
    except (ValueError, AttributeError, SafetensorError) as error:
        raise CheckpointError(f"{folder} is damaged: {error}", hint="train from an earlier step") from error


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
