"""Threads of torch: sampling has all while no job runs and half beside one; a job has all."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from rolloutlab.engines.local import LocalEngine
from rolloutlab.policy import threads
from rolloutlab.policy.checkpoints import open_draft, seal
from rolloutlab.policy.decode import CompletionRequest
from rolloutlab.policy.forward import Forward
from rolloutlab.policy.model import Policy, load_policy
from rolloutlab.policy.task import Callbacks, read_task
from tests.policy.test_trainer import parts, small_job

ALL = 6
REQUEST = CompletionRequest((1, 2, 3), 2)


@pytest.fixture
def seen() -> list[int]:
    """The threads that sampling has had, in each forward pass."""
    return []


@pytest.fixture
def engine(tiny_policy, seen) -> Iterator[LocalEngine]:
    """An engine of a process with six threads, whose sampler notes how many it has."""

    class Watched(Policy):
        def with_adapter(self, *adapter: Any) -> Any:
            model = super().with_adapter(*adapter)
            model.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
            return model

    before = torch.get_num_threads()
    torch.set_num_threads(ALL)
    policy = load_policy(str(tiny_policy))
    started = LocalEngine(Watched(**vars(policy)))
    try:
        yield started
    finally:
        started.close()
        torch.set_num_threads(before)


def first_checkpoint(engine: LocalEngine, folder: Path) -> Path:
    with open_draft(folder) as draft:
        engine.create_initial(draft)
        seal(draft, folder)
    return folder


def test_sampling_has_half_of_the_threads_beside_a_job_which_has_all(engine, seen, tmp_path, monkeypatch):
    trained, encode = [], Forward.__call__
    monkeypatch.setattr(Forward, "__call__", lambda *values: trained.append(torch.get_num_threads()) or encode(*values))

    def sampled_with() -> set[int]:
        seen.clear()
        engine.sample(None, [REQUEST]).result()
        return set(seen)

    during: list[set[int]] = []
    callbacks = Callbacks(lambda kind, _: during.append(sampled_with()) if kind == "gradient_step" else None)
    source = first_checkpoint(engine, tmp_path / "0")
    task = read_task(engine.base, *parts(small_job(1)), 0, callbacks)
    torch.set_num_threads(1)  # as any other thread may have done
    assert sampled_with() == {ALL}
    with open_draft(tmp_path / "1") as draft:
        engine.train(source, draft, task, callbacks)
    assert during
    assert all(each == {ALL // 2} for each in during)
    assert set(trained) == {ALL}
    assert sampled_with() == {ALL}


def test_a_job_that_fails_gives_sampling_its_threads_back(engine, seen, tmp_path):
    source = first_checkpoint(engine, tmp_path / "0")
    callbacks = Callbacks(lambda *_: None)
    task = read_task(engine.base, *parts(small_job(1)), 0, callbacks)

    def fails(*_: Any) -> None:
        raise ValueError("in the middle")

    with open_draft(tmp_path / "1") as draft, pytest.raises(ValueError, match="in the middle"):
        engine.train(source, draft, task, Callbacks(fails))
    engine.sample(None, [REQUEST]).result()
    assert set(seen) == {ALL}


@pytest.mark.skipif(threads._openmp() is None, reason="another OpenMP than GNU's, whose helpers stay")
def test_a_thread_that_is_idle_keeps_no_helpers():
    """They would be more than the cores, and GNU's OpenMP would let none wait without sleeping."""
    counts = []

    def compute() -> None:
        torch.set_num_threads(3)
        torch.ones(1 << 20).exp()
        counts.append(len(list(Path("/proc/self/task").iterdir())))
        threads.end_helpers()
        counts.append(len(list(Path("/proc/self/task").iterdir())))
        assert torch.ones(1 << 20).exp().sum() > 1 << 21  # with new ones

    with ThreadPoolExecutor(1) as pool:
        pool.submit(compute).result()
    assert counts[0] - counts[1] == 2


def test_sampling_a_large_policy_leaves_no_helpers_behind(engine, monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr("rolloutlab.policy.sampler.end_helpers", ended.set)
    monkeypatch.setattr("rolloutlab.policy.model._SMALL", 0)
    engine.sample(None, [REQUEST]).result()
    assert ended.wait(240)
