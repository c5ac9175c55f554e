"""The Tinker engine against SkyRL's own server, with the practice policy in fp32: `make acceptance-skyrl`."""

import json
import math
import os
import re
import signal
import socket
import subprocess
import tarfile
import time
import urllib.request
from array import array
from pathlib import Path

import pytest
import torch
from safetensors.torch import load
from transformers import AutoModelForCausalLM

from notebooks.run import printed, run
from rolloutlab.api.job_state import since_restart
from rolloutlab.api.wire.chat import UserMessage
from rolloutlab.engines.check import Conformance
from rolloutlab.engines.local import LocalEngine
from rolloutlab.engines.naive import Naive
from rolloutlab.engines.sampling_check import step_of
from rolloutlab.errors import RolloutlabError
from rolloutlab.integrations.tinker.engine import TinkerEngine, open_engine
from rolloutlab.objective.options import Options
from rolloutlab.policy.checkpoints import State, open_draft, seal, write_state
from rolloutlab.policy.decode import CompletionRequest
from rolloutlab.policy.model import load_policy, read_adapter
from rolloutlab.policy.practice import FOLDERS
from rolloutlab.policy.steps import TrainingSequence
from rolloutlab.policy.task import Callbacks, Task
from rolloutlab.policy.token_sequence import TokenSequence
from rolloutlab.session import Session
from rolloutlab.settings import ModelSettings, read_settings

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("SKYRL_PYTHON", ROOT / ".venvs/skyrl/bin/python"))
COMPILED = Path(os.environ.get("SKYRL_COMPILED", ROOT / ".venvs/skyrl/compiled"))
PATIENCE = 600.0
SIZES = {"max_lora_adapters": 16, "max_lora_rank": 16, "train_micro_batch_size": 8, "sample_max_num_sequences": 32}
LINES = ["logprobs: as in this process", "logprobs: after training", "first ratio", "gradient: default"]
LINES += ["gradient: custom_loss", "optimizer", "resume", "seed: repeated", "seed: another", "stop"]
"""Of `engine check`; all of its lines take minutes."""
OFTEN = "import rolloutlab.integrations.tinker.engine\n\nrolloutlab.integrations.tinker.engine._LEAST_SECONDS = 0.1\n"


class SkyRL:
    """A server of its own processes, which can be killed and started again on the same port, files and database."""

    def __init__(self, model: Path, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url, self.checkpoints = f"http://127.0.0.1:{self.port}", folder / "checkpoints"
        command = [PYTHON, ROOT / "tests/acceptance/start_skyrl.py", "--backend", "jax", "--base-model", model]
        command += ["--port", self.port, "--checkpoints-base", self.checkpoints, "--backend-config", json.dumps(SIZES)]
        self._command = [str(each) for each in [*command, "--database-url", f"sqlite:///{folder / 'tinker.db'}"]]
        variables = {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(COMPILED), "HF_HUB_OFFLINE": "1"}
        variables |= {f"JAX_PERSISTENT_CACHE_MIN_{name}": "0" for name in ("COMPILE_TIME_SECS", "ENTRY_SIZE_BYTES")}
        self._environment = {**os.environ, **variables}
        self._log = folder / "server.log"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=5).close()
            except OSError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < end, "the server did not start"
                time.sleep(0.5)

    def end(self, number: int = signal.SIGTERM) -> None:
        """Signal the server and the process of its engine, which is in the same session."""
        os.killpg(self._process.pid, number)
        self._process.wait()


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
def skyrl(folder):
    server = SkyRL(folder, folder.parent)
    server.start()
    yield server
    server.end()


@pytest.fixture
def variables(skyrl, folder, tmp_path, monkeypatch):
    """Those with which a kernel and its service use the server."""
    given = {"HOME": tmp_path / "lab", "ENGINE": "tinker", "ENGINE_URL": skyrl.url, "POLICY": folder, "LINGER": 2}
    variables = {f"ROLLOUTLAB_{name}": str(value) for name, value in given.items()}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


def test_the_first_notebook_reaches_its_reward_unchanged(variables, tmp_path):
    text = printed(run(ROOT / "notebooks/01_first_loop.ipynb", tmp_path / "lab"))
    print(text)
    assert float(re.search(r"-> ([\d.]+)", text)[1]) >= 0.9


@pytest.fixture
def lab(variables, tmp_path, monkeypatch):
    """A lab with scored completions; its service has the state of a job saved after each step."""
    (tmp_path / "sitecustomize.py").write_text(OFTEN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lab = Session(read_settings(variables))
    lab.chat(
        "c",
        "Sort these letters: {{letters}}",
        n=8,
        max_tokens=16,
        seed=3,
        over=[{"letters": f"c b a {i}"} for i in range(20)],
    )
    lab.reward("c", lambda trajectory, *_: float(trajectory.id % 3))
    yield lab
    lab.close()


def steps(job):
    return [event.data for event in since_restart(job.events()) if event.type == "gradient_step"]


def ended(job):
    """Its status, once it has ended; asking starts a service again that is gone."""
    while True:
        try:
            if (status := job.status) in ("succeeded", "failed", "cancelled"):
                return status
        except RolloutlabError:
            pass
        time.sleep(0.2)


def submitted(lab, model):
    lab.model(f"lab/{model}")
    return lab.train("c", wait=False, say=lambda _: None)


def wait_for_step(job):
    while not steps(job):
        time.sleep(0.02)


# before `engine` is made: with its models and those of the killed service the server has no room for five minutes
def test_jobs_go_on_after_a_kill_of_the_service_and_of_the_server(lab, skyrl, tmp_path):
    alone = submitted(lab, "alone")
    assert ended(alone) == "succeeded"
    for name in ("service", "server"):
        job = submitted(lab, name)
        wait_for_step(job)
        if name == "service":
            os.kill(json.loads((tmp_path / "lab/service/service.json").read_text())["pid"], signal.SIGKILL)
        else:
            skyrl.end(signal.SIGKILL)
            skyrl.start()
        assert ended(job) == "succeeded"
        # a step that was applied twice, or left out, would change every later step
        for expected, step in zip(steps(alone), steps(job), strict=True):
            assert step == pytest.approx(expected, rel=1e-4, abs=1e-5)
        assert sum(event.type == "restarted" for event in job.events()) == (name == "service")
    assert len(steps(alone)) >= 3


@pytest.fixture(scope="module")
def settings(skyrl):
    return ModelSettings(engine="tinker", engine_url=skyrl.url)


@pytest.fixture(scope="module")
def engine(folder, settings):
    engine = open_engine(str(folder), settings, least_seconds=0.0)
    yield engine
    engine.close()


def test_what_the_server_ignores_is_listed(engine):
    assert engine.unsupported["max_grad_norm"] == "the Tinker server does not clip gradients"
    assert "ppo" not in engine.unsupported


@pytest.mark.parametrize("line", LINES)
def test_the_engine_conforms(engine, checked, line):
    measured = checked[line]()
    assert measured.result == "pass", measured


@pytest.fixture(scope="module")
def checked(engine, folder, tmp_path_factory):
    reference = Naive(load_policy(str(folder)))
    return Conformance(engine, reference, tmp_path_factory.mktemp("check"), 1e-4).measurements()


@pytest.fixture(scope="module")
def prompt(engine):
    return tuple(engine.base.renderer().prompt([UserMessage(role="user", content="yes or no?")], ()))


def sequence(row):
    prompt, tokens = row.request.prompt, row.tokens
    marks = bytearray([0] * len(prompt) + [1] * len(tokens))
    return TokenSequence(array("i", [*prompt, *tokens]), marks, array("f", [0.0] * len(prompt) + row.logprobs))


def trained(engine, source, folder, task):
    """The checkpoint of a task, and the metrics of its steps."""
    events = []
    with open_draft(folder) as draft:
        engine.train(source, draft, task, Callbacks(lambda kind, data: events.append(data), progress_seconds=math.inf))
        seal(draft, folder)
    return folder, events


def initial_adapter(engine: TinkerEngine, checkpoints: Path, names):
    """The adapter with which the server begins, by our names: A is random."""
    made = engine._client.create()
    path, _ = engine._client.sampler(made)
    engine._client.unload(made)
    model, _, name = path.removeprefix("tinker://").partition("/")
    with tarfile.open(checkpoints / model / "sampler_weights" / f"{name}.tar.gz") as archive:
        (member,) = [each for each in archive.getmembers() if each.name.endswith(".safetensors")]
        tensors = load(archive.extractfile(member).read())
    found = {name.replace(".default.", "."): name for name in names}
    assert found.keys() == tensors.keys()
    return {found[name]: tensor for name, tensor in tensors.items()}


def test_the_same_job_gives_the_same_weights_here(engine, skyrl, folder, prompt, tmp_path):
    targets = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
    policy = load_policy(str(folder), ModelSettings(lora_rank=engine._client.rank, lora_alpha=32, lora_targets=targets))
    local = LocalEngine(policy)
    adapter = initial_adapter(engine, skyrl.checkpoints, read_adapter(policy.lora_copy()))
    begins = {
        "local": lambda draft: write_state(draft, State(adapter, {}), policy.lora),
        "tinker": engine.create_initial,
    }
    requests = [CompletionRequest(prompt, 16, temperature=2.0, seed=5, index=i) for i in range(8)]
    sequences = [sequence(row) for row in engine.sample(None, requests).result(PATIENCE)]
    # weights so small that no gradient is clipped, as the server does not clip
    row = [TrainingSequence(each, 1.0 - 0.4 * i, 1e-3) for i, each in enumerate(sequences)]
    task = Task([step_of(each) for each in (row, row[:4], row[4:], row)], [1e-3] * 4, Options(), 1, {})
    results = []
    for each, name in ((local, "local"), (engine, "tinker")):
        with open_draft(tmp_path / name) as draft:
            begins[name](draft)
            seal(draft, tmp_path / name)
        after, steps = trained(each, tmp_path / name, tmp_path / f"{name}1", task)
        results.append((steps, [value for some in each.logprobs(after, sequences) for value in some]))
    local.close()
    (ours, expected), (theirs, logprobs) = results
    assert all(step["grad_norm"] < 0.1 for step in ours)
    before = [value for some in engine.logprobs(None, sequences) for value in some]
    loss, norm = (
        max(abs(b[key] / a[key] - 1) for a, b in zip(ours, theirs, strict=True)) for key in ("loss", "grad_norm")
    )
    moved, apart = (sum(abs(a - b) for a, b in zip(expected, other, strict=True)) for other in (before, logprobs))
    print(f"loss {loss:.1e}, grad_norm {norm:.1e}; logprobs moved {moved:.3f} nats, and are {apart:.1e} apart")
    assert loss < 1e-4
    # AdamW's step has the size of the rate also where a gradient is little more than rounding
    assert norm < 1e-2
    assert apart < 1e-2 * moved
