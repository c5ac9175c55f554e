"""SmolLM2 from its package: converted once, also after a kill, without a network; then sampled and trained."""

import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rolloutlab.api.http.client import HttpClient
from rolloutlab.policy.model import load_policy
from rolloutlab.session import Session
from rolloutlab.settings import Settings

ROOT = Path(__file__).parents[2]
PACKAGE = next((ROOT / ".venvs" / "smollm2").glob("lib/python*/site-packages"))
TEXT = (
    "The sun is a star at the center of the solar system. The Earth goes around it once in a year, and the Moon goes "
    "around the Earth once in about 27 days. Water covers most of the surface of the Earth."
)
OFFLINE = """
import socket, sys

def refuse(event, arguments):
    if event in {"socket.getaddrinfo", "socket.connect"}:
        print("asked for", arguments, flush=True)
        raise SystemExit("the network was asked for")

sys.addaudithook(refuse)
from rolloutlab.policy.model import load_policy

policy = load_policy("smollm2", note=lambda doing: print(doing, flush=True))
print("loaded", policy.name)
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The user's cache, in which the model is; and the package on the path, also of processes that are started."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("PYTHONPATH", str(PACKAGE))
        patch.syspath_prepend(str(PACKAGE))
        yield folder / "rolloutlab" / "policies"


@pytest.fixture(scope="module")
def loading(cache):
    """The lines of a process that loads the model without a network, after one that was killed in the middle."""
    with subprocess.Popen([sys.executable, "-c", OFFLINE], stdout=subprocess.PIPE, text=True) as killed:
        for line in killed.stdout:
            if " of 272 tensors" in line:
                killed.send_signal(signal.SIGKILL)
                break
    assert [each.name[0] for each in cache.iterdir() if each.is_dir()] == ["."]
    lines = subprocess.run([sys.executable, "-c", OFFLINE], stdout=subprocess.PIPE, text=True, check=True).stdout
    return lines.splitlines()


@pytest.fixture(scope="module")
def policy(loading):
    return load_policy("smollm2")


def test_it_is_converted_anew_after_a_kill_without_a_network_and_says_how_far_it_is(loading, cache):
    assert loading[-1] == "loaded smollm2"
    assert not [line for line in loading if "asked for" in line]
    assert {line.partition(",")[0] for line in loading} >= {
        f"converting a policy: {doing}" for doing in ("reading its description", "reading the tokenizer")
    }
    assert any(" of 272 tensors, " in line for line in loading)
    (folder,) = (each for each in cache.iterdir() if each.is_dir())
    assert folder.name.startswith("smollm2-")
    assert 260e6 < (folder / "model.safetensors").stat().st_size < 280e6


def test_it_has_its_ends_its_template_and_reads_digits_one_by_one(policy):
    tokenizer = policy.tokenizer
    assert (policy.name, policy.end_ids, policy.context, policy.about) == ("smollm2", {2}, 8192, ())
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    assert tokenizer.tokenize("a  12 b") == ["a", "ĠĠ", "1", "2", "Ġb"]
    shown = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert shown.endswith("<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def test_its_weights_are_in_their_places_since_it_expects_ordinary_english(policy):
    ids = torch.tensor([policy.tokenizer.encode(TEXT)])
    with torch.no_grad():
        loss = float(policy.base(ids, labels=ids).loss)
    assert math.exp(loss) < 12


def test_a_notebook_samples_and_trains_it(policy, tmp_path):
    session = Session(Settings(home=tmp_path, policy="smollm2", linger=1.0), http=HttpClient())
    said = session.chat("capital", "What is the capital of France?", n=1, max_tokens=16, temperature=0)
    assert "Paris" in said.trajectories[0].answer
    session.chat("short", "Name a color.", n=8, max_tokens=8, seed=1)
    session.reward("short", lambda answer: float(len(answer)))
    job = session.train("short", {"learning_rate": 2e-4})
    assert (session.models.selected, job.status) == ("lab/smollm2", "succeeded")
    assert abs(job.metrics().iloc[0].ratio_mean - 1) < 1e-3
    session.close()
