"""A merge in a process of its own, as a notebook does it."""

import json
import os
import subprocess
import sys

import pytest

from rolloutlab.errors import PolicyError
from rolloutlab.training.merging import write_merged

pytestmark = pytest.mark.process


@pytest.fixture
def adapter(tiny_policy, tmp_path):
    """The folder of a new adapter of the tiny policy, and the fingerprint of that."""
    from rolloutlab.policy.checkpoints import State, write_state
    from rolloutlab.policy.model import fingerprint, load_policy, read_adapter
    from rolloutlab.settings import ModelSettings

    policy = load_policy(str(tiny_policy), ModelSettings(device="cpu", dtype="float32"))
    folder = tmp_path / "adapter"
    folder.mkdir()
    write_state(folder, State(read_adapter(policy.lora_copy()), {}), policy.lora)
    return folder, fingerprint(policy)


def test_it_says_what_it_does_and_writes_the_folder(adapter, tiny_policy, tmp_path):
    folder, fingerprint = adapter
    notes = []
    write_merged(folder, tmp_path / "merged", str(tiny_policy), fingerprint, "float32", notes.append)
    assert notes == ["loading the base", "merging the adapter", "writing the weights"]
    assert (tmp_path / "merged" / "model.safetensors").exists()


def test_its_errors_arrive(adapter, tiny_policy, tmp_path):
    folder, _ = adapter
    with pytest.raises(PolicyError, match="is another base than the checkpoint was trained on") as error:
        write_merged(folder, tmp_path / "merged", str(tiny_policy), "0" * 64, "float32", print)
    assert error.value.hint == "the same command without --merged, which writes the adapter"
    with pytest.raises(PolicyError, match="could not be loaded"):
        write_merged(folder, tmp_path / "merged", str(tmp_path / "nowhere"), "0" * 64, "float32", print)


def test_it_ends_with_the_notebook(adapter, tiny_policy, tmp_path):
    """Its standard input is the notebook's: when that is killed, no process goes on writing."""
    folder, fingerprint = adapter
    arguments = {
        "adapter": str(folder),
        "folder": str(tmp_path / "merged"),
        "base": str(tiny_policy),
        "expected": fingerprint,
        "dtype": "float32",
    }
    done = subprocess.run(
        [sys.executable, "-m", "rolloutlab.policy.merged_folder"],
        input=json.dumps(arguments).encode() + b"\n",
        capture_output=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 1
    assert not (tmp_path / "merged" / "model.safetensors").exists()
