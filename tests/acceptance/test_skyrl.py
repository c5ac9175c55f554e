"""The Tinker engine against SkyRL's own server, with the practice policy in fp32: `make acceptance-skyrl`."""

import json
import os
import socket
import subprocess
import time
import urllib.request
from array import array
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.api.wire.training import ExperimentalTrainingConfig
from rolloutlab.engines.local import LocalEngine
from rolloutlab.engines.tinker import TinkerEngine
from rolloutlab.engines.tinker_client import TinkerClient
from rolloutlab.objective.options import settle
from rolloutlab.policy.checkpoints import drafted, seal
from rolloutlab.policy.decode import CompletionRequest
from rolloutlab.policy.model import describe, load_policy
from rolloutlab.policy.practice import FOLDERS
from rolloutlab.policy.rows import TrainingSequence
from rolloutlab.policy.task import Callbacks, Task
from rolloutlab.policy.token_sequence import TokenSequence

HERE = Path(__file__).parent
PYTHON = Path(os.environ.get("SKYRL_PYTHON", HERE.parent.parent / ".venvs/skyrl/bin/python"))
PATIENCE = 600.0
SIZES = {"max_lora_adapters": 8, "max_lora_rank": 16, "train_micro_batch_size": 1, "sample_max_num_sequences": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The practice policy in fp32: the server computes adapters and AdamW in the precision of the base."""
    folder = tmp_path_factory.mktemp("skyrl") / "practice"
    source = FOLDERS["practice"]
    AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).save_pretrained(folder)
    for path in Path(source).iterdir():
        if not (folder / path.name).exists():
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.fixture(scope="module")
def url(folder):
    """The address of a server that has started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = folder.parent
    command = [PYTHON, HERE / "start_skyrl.py", "--backend", "jax", "--base-model", folder, "--port", port]
    command += ["--checkpoints-base", run / "checkpoints", "--database-url", f"sqlite:///{run / 'tinker.db'}"]
    command += ["--backend-config", json.dumps(SIZES)]
    variables = {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(run / "jax")}
    with (run / "server.log").open("wb") as log:
        process = subprocess.Popen(list(map(str, command)), env={**os.environ, **variables}, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{address}/api/v1/healthz", process)
        yield address
    finally:
        process.terminate()
        process.wait()


def wait_for(address, process):
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return urllib.request.urlopen(address, timeout=5).close()
        except OSError:
            assert process.poll() is None, "the server ended"
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.5)


@pytest.fixture(scope="module")
def engine(url, folder):
    base, rank = describe(str(folder))
    engine = TinkerEngine(base, TinkerClient(url, None, str(folder), rank, timeout=PATIENCE))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def local():
    engine = LocalEngine(load_policy("practice"))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def prompt(engine):
    return tuple(engine.base.renderer().prompt([UserMessage(role="user", content="yes or no?")], ()))


def sequence(row):
    prompt, tokens = row.request.prompt, row.tokens
    marks = bytearray([0] * len(prompt) + [1] * len(tokens))
    return TokenSequence(array("i", [*prompt, *tokens]), marks, array("f", [0.0] * len(prompt) + row.logprobs))


def test_what_the_server_does_with_gradients_is_measured(engine):
    assert engine.unsupported["gradient clipping at 0.1"] == "the Tinker server ignores it"


def test_samples_have_the_logprobs_of_the_embedded_service_and_repeat(engine, local, prompt):
    requests = [CompletionRequest(prompt, 16, seed=1, index=i) for i in range(4)]
    first, again = (engine.sample(None, requests).result(PATIENCE) for _ in range(2))
    assert [(row.tokens, row.logprobs) for row in first] == [(row.tokens, row.logprobs) for row in again]
    for row, expected in zip(first, local.logprobs(None, [sequence(row) for row in first]), strict=True):
        assert row.logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("config", [{}, {"importance_sampling_level": "sequence"}, {"kl_penalty_coef": 0.1}], ids=str)
def test_a_job_begins_with_the_loss_of_the_embedded_service_and_learns(engine, local, prompt, tmp_path, config):
    rows = engine.sample(None, [CompletionRequest(prompt, 16, temperature=2.0, index=i) for i in range(4)])
    sequences = [sequence(row) for row in rows.result(PATIENCE)]
    row = [TrainingSequence(each, 1.0 - 0.6 * i, 1.0) for i, each in enumerate(sequences)]
    task = Task([row] * 3, [2e-3] * 3, settle(ExperimentalTrainingConfig(**config)), 1, {})
    losses = {}
    for name, each in (("local", local), ("tinker", engine)):
        events = []
        with drafted(tmp_path / name) as draft:
            each.create_initial(draft)
            seal(draft, tmp_path / name)
        with drafted(tmp_path / f"{name}1") as draft:
            each.train(tmp_path / name, draft, task, Callbacks(lambda kind, data, to=events: to.append(data)))
            seal(draft, tmp_path / f"{name}1")
        losses[name] = [event["loss"] for event in events]
    assert losses["tinker"][0] == pytest.approx(losses["local"][0], rel=1e-4, abs=1e-6)
    (before, *_), (after, *_) = (engine.logprobs(tmp_path / step, sequences[:1]) for step in ("tinker", "tinker1"))
    assert sum(after) > sum(before)
