"""A checkpoint on disk is whole, or it is not there; what is read is what was written."""

import errno
import hashlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM

from rolloutlab.errors import CheckpointError, ServiceError
from rolloutlab.policy.checkpoints import (
    State,
    check_checkpoint,
    open_draft,
    read_checkpoint,
    read_metadata,
    seal,
    write_state,
)
from rolloutlab.policy.model import Policy, load_policy, read_adapter, write_adapter

FILES = ["adapter_model.safetensors", "optimizer.safetensors", "sha256.json"]
IDS = torch.tensor([[0, 20, 30, 40, 50, 60]])


@pytest.fixture(scope="module")
def policy(tiny_policy) -> Policy:
    policy = load_policy(str(tiny_policy))
    policy.base.to("cpu", torch.float32)  # also where there is an accelerator
    return policy


def state(policy: Policy, seed: int = 0, **overrides: Any) -> State:
    """A trained-looking state: every tensor of the adapter is off its initial value."""
    generator = torch.Generator().manual_seed(seed)
    names = read_adapter(policy.lora_copy()).items()
    adapter = {name: t + 0.1 * torch.randn(t.shape, generator=generator) for name, t in names}
    optimizer = {"a.step": torch.tensor(3.0), "a.exp_avg": torch.randn(4, generator=generator)}
    return State(**{"adapter": adapter, "optimizer": optimizer} | overrides)


def assert_same(found: State, expected: State) -> None:
    for a, b in [(found.adapter, expected.adapter), (found.optimizer, expected.optimizer)]:
        assert a.keys() == b.keys()
        for name in a:
            assert torch.equal(a[name], b[name])
            assert a[name].dtype == b[name].dtype


def write_checkpoint(folder: Path, state: State, lora: LoraConfig) -> None:
    with open_draft(folder) as draft:
        write_state(draft, state, lora)
        seal(draft, folder)


def cannot_be_written(policy: Policy) -> State:
    """A state whose adapter can be saved and whose optimiser state cannot: two names of one memory."""
    shared = torch.zeros(4)
    return state(policy, seed=9, optimizer={"a": shared, "b": shared})


def test_what_is_read_is_what_was_written(policy, tmp_path):
    written = state(policy)
    write_checkpoint(tmp_path / "3", written, policy.lora)
    assert_same(read_checkpoint(tmp_path / "3"), written)


def test_the_checkpoint_of_a_new_model_has_no_optimiser_state(policy, tmp_path):
    written = state(policy, optimizer={})
    write_checkpoint(tmp_path / "0", written, policy.lora)
    assert_same(read_checkpoint(tmp_path / "0"), written)


def test_missing_folders_above_are_made(policy, tmp_path):
    write_checkpoint(tmp_path / "models" / "m" / "3", state(policy), policy.lora)
    assert_same(read_checkpoint(tmp_path / "models" / "m" / "3"), state(policy))


def test_writing_leaves_the_checkpoint_and_nothing_else(policy, tmp_path):
    write_checkpoint(tmp_path / "3", state(policy), policy.lora)
    assert [path.name for path in tmp_path.iterdir()] == ["3"]
    assert {path.name for path in (tmp_path / "3").iterdir()} >= {*FILES, "adapter_config.json"}


def test_peft_loads_a_checkpoint_as_it_is(policy, tiny_policy, tmp_path):
    written = state(policy)
    write_checkpoint(tmp_path / "3", written, policy.lora)
    carrier = policy.lora_copy()
    untrained = carrier(IDS).logits.detach()
    write_adapter(carrier, written.adapter)
    base = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(base, tmp_path / "3")
    with torch.inference_mode():
        assert torch.allclose(loaded(IDS).logits, carrier(IDS).logits, atol=1e-6)
        assert not torch.allclose(loaded(IDS).logits, untrained, atol=1e-3)


def test_a_checkpoint_written_before_any_carrier_is_made_is_loaded_by_peft_too(tiny_policy, tmp_path):
    adapter = read_adapter(load_policy(str(tiny_policy)).lora_copy())
    write_checkpoint(tmp_path / "0", State(adapter, {}), load_policy(str(tiny_policy)).lora)
    base = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32)
    loaded = read_adapter(PeftModel.from_pretrained(base, tmp_path / "0"))
    assert loaded.keys() == adapter.keys()


def test_a_checkpoint_can_be_written_again(policy, tmp_path):
    write_checkpoint(tmp_path / "3", state(policy, seed=1), policy.lora)
    write_checkpoint(tmp_path / "3", state(policy, seed=2), policy.lora)
    assert_same(read_checkpoint(tmp_path / "3"), state(policy, seed=2))
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


def flip_a_bit(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip_a_bit, cut_short, empty, Path.unlink], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", FILES)
def test_damage_to_any_file_is_found(policy, tmp_path, name, damage):
    write_checkpoint(tmp_path / "3", state(policy), policy.lora)
    damage(tmp_path / "3" / name)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(tmp_path / "3")
    assert str(tmp_path / "3") in str(caught.value)


@pytest.mark.parametrize("name", FILES[:2])
def test_a_damaged_file_is_named_and_there_is_something_to_do_about_it(policy, tmp_path, name):
    write_checkpoint(tmp_path / "3", state(policy), policy.lora)
    flip_a_bit(tmp_path / "3" / name)
    with pytest.raises(CheckpointError, match="damaged") as caught:
        read_checkpoint(tmp_path / "3")
    assert name in str(caught.value)
    assert caught.value.hint


def test_files_of_another_checkpoint_are_found_out(policy, tmp_path):
    write_checkpoint(tmp_path / "3", state(policy, seed=1), policy.lora)
    write_checkpoint(tmp_path / "4", state(policy, seed=2), policy.lora)
    (tmp_path / "4" / FILES[0]).replace(tmp_path / "3" / FILES[0])
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(tmp_path / "3")


def test_a_missing_checkpoint_is_missing(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        read_checkpoint(tmp_path / "7")


def test_a_write_that_fails_leaves_nothing(policy, tmp_path):
    with pytest.raises(RuntimeError):
        write_checkpoint(tmp_path / "3", cannot_be_written(policy), policy.lora)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_checkpoint_that_was_there(policy, tmp_path):
    write_checkpoint(tmp_path / "3", state(policy), policy.lora)
    with pytest.raises(RuntimeError):
        write_checkpoint(tmp_path / "3", cannot_be_written(policy), policy.lora)
    assert_same(read_checkpoint(tmp_path / "3"), state(policy))
    assert [path.name for path in tmp_path.iterdir()] == ["3"]


def test_a_disk_that_does_not_answer_has_damaged_no_checkpoint(policy, tmp_path, monkeypatch):
    write_checkpoint(tmp_path / "3", state(policy), policy.lora)

    def refuse(*_arguments, **_options):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(ServiceError, match=r"cannot be read: Input/output error") as caught:
            read_checkpoint(tmp_path / "3")
        with pytest.raises(ServiceError, match=r"checkpoint\.json cannot be read: Input/output error"):
            read_metadata(tmp_path / "3")
    assert "delete" not in caught.value.hint
    read_checkpoint(tmp_path / "3")


@pytest.fixture
def opened(monkeypatch) -> list[Path]:
    """The files that were opened, in order."""
    paths: list[Path] = []
    here = Path.open

    def remember(path: Path, *arguments: Any, **options: Any) -> Any:
        paths.append(path)
        return here(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", remember)
    return paths


def test_each_file_of_a_checkpoint_is_read_once_when_it_is_checked(policy, tmp_path, opened):
    write_checkpoint(tmp_path / "3", state(policy), policy.lora)
    opened.clear()
    check_checkpoint(tmp_path / "3")
    assert sorted(opened) == sorted((tmp_path / "3").iterdir())


def test_a_large_checkpoint_is_checked_without_being_held_in_memory(policy, tmp_path):
    large = {"a.exp_avg": torch.zeros(16_000_000)}  # 64 MB
    tracemalloc.start()
    try:
        write_checkpoint(tmp_path / "3", state(policy, optimizer=large), policy.lora)
        check_checkpoint(tmp_path / "3")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


OUTSIDE = ["../outside", "{folder}/outside", "..", ".", "", "3/../outside"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_list_of_checksums_that_leads_out_of_the_folder_is_damaged_and_what_it_names_is_not_read(
    policy, tmp_path, opened, name
):
    write_checkpoint(tmp_path / "3", state(policy), policy.lora)
    outside = tmp_path / "outside"
    outside.write_text("another's")
    sums = json.loads((tmp_path / "3" / "sha256.json").read_text())
    sums[name.format(folder=tmp_path)] = hashlib.sha256(outside.read_bytes()).hexdigest()
    (tmp_path / "3" / "sha256.json").write_text(json.dumps(sums))
    opened.clear()
    with pytest.raises(CheckpointError, match=r"sha256\.json is damaged: '.*' is not a file name"):
        check_checkpoint(tmp_path / "3")
    assert {path.name for path in opened} <= {path.name for path in (tmp_path / "3").iterdir()}


def test_checksums_that_are_nested_too_deep_to_be_read_are_damage(policy, tmp_path):
    write_checkpoint(tmp_path / "3", state(policy), policy.lora)
    (tmp_path / "3" / "sha256.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="damaged"):
        check_checkpoint(tmp_path / "3")
