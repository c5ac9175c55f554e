"""Completions of a vLLM server are those of the engine that trains, whatever the server is started with."""

import asyncio
import json
from array import array

import pytest
import torch

from rolloutlab.engines.check import Conformance
from rolloutlab.engines.local import LocalEngine
from rolloutlab.engines.open import open_engine
from rolloutlab.errors import BrokenOffError, InputError, ServiceError, SignInError, UnreachableError
from rolloutlab.integrations.vllm.sampler import VllmSampled
from rolloutlab.policy.checkpoints import State, open_draft, seal, write_state
from rolloutlab.policy.decode import CompletionRequest
from rolloutlab.policy.token_sequence import TokenSequence
from rolloutlab.settings import ModelSettings
from tests.integrations.vllm.vllm_server import VllmServer, serving

PROMPT = (5, 6, 7, 8)
PATIENCE = 30.0


@pytest.fixture(scope="module")
def local(policy):
    engine = LocalEngine(policy)
    yield engine
    engine.close()


class Lent:
    """An engine that outlives the one that borrows it."""

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def close(self):
        pass


@pytest.fixture
def server(local):
    with serving(VllmServer(local)) as server:
        yield server


@pytest.fixture
def engine_of(local):
    engines = []

    def make(server, model="tiny", key=None):
        engines.append(VllmSampled(Lent(local), server.url, {model}, key))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def checkpoint(local, tmp_path):
    """A checkpoint whose adapter is not that of the base."""
    with open_draft(tmp_path / "models" / "1") as draft:
        generator = torch.Generator().manual_seed(4)
        moved = {n: t + torch.randn(t.shape, generator=generator) * 0.3 for n, t in local._initial.adapter.items()}
        write_state(draft, State(moved, {}), local._policy.lora)
        seal(draft, tmp_path / "models" / "1")
    return tmp_path / "models" / "1"


def sequence(row):
    prompt, sampled = list(row.request.prompt), row.tokens
    trained = bytearray([0] * len(prompt) + [1] * len(sampled))
    return TokenSequence(array("i", prompt + sampled), trained, array("f", [0.0] * len(prompt) + row.logprobs))


def sampled(engine, checkpoint, *requests, on_token=None):
    return engine.sample(checkpoint, requests, on_token).result(PATIENCE)


def test_logprobs_of_completions_are_those_of_the_checkpoint(engine_of, server, local, checkpoint):
    engine = engine_of(server)
    requests = [CompletionRequest(PROMPT, 12, index=i) for i in range(6)]
    for folder in (None, checkpoint):
        rows = sampled(engine, folder, *requests)
        scored = local.logprobs(folder, [sequence(row) for row in rows])
        assert [row.logprobs for row in rows] == [pytest.approx(each, abs=1e-4) for each in scored]
        assert len({tuple(row.tokens) for row in rows}) > 1
    assert sampled(engine, checkpoint, requests[2])[0].tokens == rows[2].tokens, "the seed is the request's alone"


def test_the_engine_samples_as_it_is_asked(engine_of, server, tmp_path, monkeypatch):
    monkeypatch.setattr("rolloutlab.engines.sampling_check._DRAWS", 160)
    only = ["logprobs", "ratio", "distribution", "seed", "stop"]
    lines = list(Conformance(engine_of(server), None, tmp_path, 1e-4).run(only=only))
    assert [line.name for line in lines if line.result == "pass" and "gradient" not in line.name] == [
        "logprobs: scored as sampled",
        "logprobs: after training",
        "first ratio",
        "sampled distribution",
        "seed: repeated",
        "seed: another",
        "stop",
    ]


def test_an_adapter_is_loaded_once_for_many_chats_and_again_after_a_restart(engine_of, server, checkpoint):
    engine = engine_of(server)
    futures = [engine.sample(checkpoint, [CompletionRequest(PROMPT, 3, index=i)]) for i in range(8)]
    first = [future.result(PATIENCE)[0].tokens for future in futures]
    assert len(server.loads) == 1
    server.loaded.clear()
    assert sampled(engine, checkpoint, CompletionRequest(PROMPT, 3, index=5))[0].tokens == first[5]
    assert len(server.loads) == 2


def test_an_adapter_that_another_process_has_loaded_is_used(engine_of, server, checkpoint):
    sampled(engine_of(server), checkpoint, CompletionRequest(PROMPT, 2))
    assert len(sampled(engine_of(server), checkpoint, CompletionRequest(PROMPT, 2))) == 1
    assert len(server.loads) == 2
    assert len(server.loaded) == 1


def test_a_deleted_checkpoint_leaves_the_server(engine_of, server, checkpoint):
    engine = engine_of(server)
    sampled(engine, checkpoint, CompletionRequest(PROMPT, 2))
    engine.forget(checkpoint)
    assert server.unloaded.wait(PATIENCE)
    assert not server.loaded


@pytest.mark.parametrize("streamed", [False, True])
def test_a_completion_ends_at_a_stop_string_though_the_server_samples_on(engine_of, server, local, policy, streamed):
    engine = engine_of(server)
    whole = sampled(engine, None, CompletionRequest(PROMPT, 40, seed=3))[0]
    text = [policy.tokenizer.decode([token]) for token in whole.tokens]
    stop = next(t for t in text[3:] if t.strip() and "\N{REPLACEMENT CHARACTER}" not in t)
    heard = []
    hear = (lambda row: heard.append(len(row.tokens))) if streamed else None
    row = sampled(engine, None, CompletionRequest(PROMPT, 40, seed=3, stops=(stop,)), on_token=hear)[0]
    assert row.finish == "stop"
    assert row.tokens == whole.tokens[: len(row.tokens)]
    assert len(row.tokens) < len(whole.tokens)
    assert stop in policy.tokenizer.decode(row.tokens)
    assert heard == (list(range(1, len(row.tokens) + 1)) if streamed else [])


def test_forced_tokens_are_scored_and_the_rest_is_sampled_after_them(engine_of, server, local, checkpoint):
    forced, only = (20, 21, 22), (20, 21)
    request = CompletionRequest(PROMPT, 8, forced=forced, top=2)
    row, none_left = sampled(engine_of(server), checkpoint, request, CompletionRequest(PROMPT, 2, forced=only))
    assert (tuple(row.tokens[:3]), tuple(none_left.tokens), none_left.finish) == (forced, only, "length")
    assert row.logprobs == pytest.approx(local.logprobs(checkpoint, [sequence(row)])[0], abs=1e-4)
    assert [len(top) for top in row.top] == [2] * len(row.tokens)


def test_the_most_likely_tokens_are_those_of_the_engine(engine_of, server, local, checkpoint):
    request = CompletionRequest(PROMPT, 6, temperature=0.0, top=3)
    (row,), (ours,) = sampled(engine_of(server), checkpoint, request), sampled(local, checkpoint, request)
    assert row.tokens == ours.tokens
    for there, here in zip(row.top, ours.top, strict=True):
        assert [token for token, _ in there] == [token for token, _ in here]
        assert [p for _, p in there] == pytest.approx([p for _, p in here], abs=1e-4)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("reason", ["abort", "error", "repetition"])
def test_a_completion_that_the_server_breaks_off_is_no_completion(engine_of, server, reason, streamed):
    server.breaks_off = reason
    hear = (lambda row: None) if streamed else None
    with pytest.raises(BrokenOffError, match=f"broke off the completion: {reason}"):
        sampled(engine_of(server), None, CompletionRequest(PROMPT, 40, seed=3), on_token=hear)


def test_a_cancelled_chat_is_abandoned_by_the_server(engine_of, server):
    engine = engine_of(server)
    server.hold = asyncio.Event()
    future = engine.sample(None, [CompletionRequest(PROMPT, 4)])
    assert server.begun.wait(PATIENCE)
    future.cancel()
    assert server.left.wait(PATIENCE)


def test_a_context_that_the_server_limits_is_the_base_s(engine_of, local):
    with serving(VllmServer(local, max_model_len=16)) as server:
        engine = engine_of(server)
        assert engine.base.context == 16
        with pytest.raises(ServiceError, match="maximum context length is 16"):
            sampled(engine, None, CompletionRequest(PROMPT, 20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"updating": False}, "loads no adapters while it runs"),
        ({"max_lora_rank": 1}, "greater than max_lora_rank 1"),
    ],
)
def test_a_server_that_cannot_load_an_adapter_is_an_error_with_how_to_start_it(
    engine_of, local, checkpoint, options, message
):
    with serving(VllmServer(local, **options)) as server:
        engine = engine_of(server)
        with pytest.raises(ServiceError, match=message) as caught:
            sampled(engine, checkpoint, CompletionRequest(PROMPT, 2))
        assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in caught.value.hint
        assert len(sampled(engine, None, CompletionRequest(PROMPT, 2))) == 1, "checkpoint 0 needs no adapter"


def test_a_folder_that_the_server_does_not_see_is_an_error_that_names_it(engine_of, server, checkpoint, monkeypatch):
    monkeypatch.setattr("tests.integrations.vllm.vllm_server.Path", lambda path: type(checkpoint)("/elsewhere"))
    with pytest.raises(ServiceError, match="does not see") as caught:
        sampled(engine_of(server), checkpoint, CompletionRequest(PROMPT, 2))
    assert "the same path" in caught.value.hint


@pytest.mark.parametrize("name", ["tiny", "/models/tiny"])
def test_the_base_is_known_by_its_name_or_its_folder(engine_of, server, name):
    assert engine_of(server, model=name).status()["sampler"] == f"vLLM at {server.url}"


def test_another_base_is_refused(engine_of, server):
    with pytest.raises(InputError, match="serves tiny, not practice"):
        engine_of(server, model="practice")


def test_no_server_is_an_error_before_anything_is_sampled(engine_of):
    with pytest.raises(UnreachableError) as caught:
        engine_of(VllmServer(None, url="http://127.0.0.1:9"))
    assert "--sampler-url URL" in caught.value.hint


def test_a_key_goes_over_https_or_to_this_machine_alone(engine_of, local):
    with serving(VllmServer(local, key="k")) as server:
        assert len(sampled(engine_of(server, key="k"), None, CompletionRequest(PROMPT, 2))) == 1
        with pytest.raises(SignInError) as refused:
            engine_of(server)
    assert refused.value.hint.startswith("export VLLM_API_KEY")
    with pytest.raises(InputError, match="not encrypted") as caught:
        engine_of(VllmServer(None, url="http://gpu.example:8000"), key="k")
    assert caught.value.hint.startswith("ssh ")  # `rolloutlab serve` has no --insecure-http


@pytest.mark.parametrize(
    "answer",
    [
        '{"choices": []}',
        '{"choices": [{"token_ids": [5]}]}',
        '{"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [null]}}]}',
        '{"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [-1], "top_logprobs": [{" the": -1}]}}]}',
        '{"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [-1], "top_logprobs": [{}, {}]}}]}',
        '{"error": "out of memory"}',
        "[]",
        '"yes"',
    ],
)
def test_an_answer_without_tokens_or_logprobs_is_an_error(engine_of, server, monkeypatch, answer):
    engine = engine_of(server)

    async def post(url, body):
        return json.loads(answer)

    monkeypatch.setattr(engine, "_post", post)
    with pytest.raises(ServiceError):
        sampled(engine, None, CompletionRequest(PROMPT, 2, top=1))


def test_a_service_samples_with_the_server_of_its_settings(tiny_policy, policy, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "k")
    local = LocalEngine(policy)
    with serving(VllmServer(local, model=str(tiny_policy), key="k")) as server:
        engine = open_engine(str(tiny_policy), ModelSettings(sampler_url=server.url))
        assert sampled(engine, None, CompletionRequest(PROMPT, 2))[0].finish
        assert engine.status() == {"device": "cpu", "sampler": f"vLLM at {server.url}"}
        engine.close()
    local.close()
