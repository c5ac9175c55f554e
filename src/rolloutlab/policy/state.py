"""The tensors of a checkpoint: the adapter in peft's format, which inference servers load, and AdamW's moments."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from peft import LoraConfig
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rolloutlab.errors import LabError
from rolloutlab.policy.model import Adapter

ADAPTER, OPTIMIZER = "adapter_model.safetensors", "optimizer.safetensors"


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
    """Write the tensors into a folder that exists. Raises as `writing`."""
    with writing(folder):
        save_file(state.adapter, folder / ADAPTER, metadata={"format": "pt"})
        save_file(state.optimizer, folder / OPTIMIZER)
        lora.save_pretrained(str(folder))


def read_state(folder: Path) -> State:
    """The tensors of a folder. Raises OSError, SafetensorError."""
    return State(load_file(folder / ADAPTER), load_file(folder / OPTIMIZER))


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Map errors of writing a checkpoint to LabError: an older one is still there."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise LabError(f"the checkpoint {folder} cannot be written: {error}", hint="free some disk space") from error
