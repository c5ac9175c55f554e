"""Odd answers and a full disk end in words, nothing is lost, and the key of a Tinker server goes nowhere else."""

import json
import math
from errno import ENOSPC
from pathlib import Path

import pytest

pytest.importorskip("tinker")

from fastapi import HTTPException

from rolloutlab import errors
from rolloutlab.cli.commands import main
from rolloutlab.engines.engine import partial_of
from rolloutlab.engines.open import open_engine
from rolloutlab.integrations.tinker.client import NoRoomError, TinkerClient
from rolloutlab.integrations.tinker.engine import PLACE, TinkerEngine
from rolloutlab.integrations.tinker.trainer import SavedProgress
from rolloutlab.policy.checkpoints import open_draft, seal
from rolloutlab.policy.decode import CompletionRequest
from rolloutlab.policy.model import base_of
from rolloutlab.policy.task import Callbacks
from rolloutlab.settings import ModelSettings
from tests.integrations.tinker.test_tinker import filled, task_of
from tests.integrations.tinker.tinker_server import PATIENCE, Server, engine_of, serving

PROMPT = (5, 6, 7, 8)


@pytest.fixture
def initial(engine, tmp_path):
    return filled(tmp_path / "0", engine.create_initial)


def taught(engine, source, target, rows=1):
    """Train into a folder, from what is kept of it; the metrics of the steps."""
    target.mkdir(exist_ok=True)
    events = []
    engine.train(
        source, target, task_of(rows), Callbacks(lambda kind, data: events.append(data), progress_seconds=math.inf)
    )
    return events


def test_a_server_that_does_not_answer_or_answers_no_numbers_ends_in_an_error(server, engine):
    client = TinkerClient(server.url, None, server.model, server.policy.lora.r, timeout=PATIENCE)
    model = client.create()
    client._timeout = 0.2  # only now: a busy machine needs more to make a model
    for switch in ("held", "broken"):
        server.held.clear() if switch == "held" else setattr(server, "broken", True)
        try:
            with pytest.raises(errors.BrokenOffError, match=r"has not answered for 0\.2 s"):
                client.logprobs(model, [[1, 2, 3]])
        finally:
            server.held.set()
            server.broken = False
    client._timeout = PATIENCE
    client.close()


def test_another_model_than_the_server_has_is_refused(policy, server):
    client = TinkerClient(server.url, None, "another", policy.lora.r, timeout=PATIENCE)
    with pytest.raises(errors.PolicyError, match=r"serves tiny, not another"):
        TinkerEngine(base_of(policy), client)


def refusing(status):
    def refuse(answer):
        raise HTTPException(status, "something is wrong")

    return refuse


def outputs(change):
    return lambda answer: answer | {"loss_fn_outputs": [change(each) for each in answer["loss_fn_outputs"]]}


def shorter(each):
    values = each["logprobs"]["data"][1:]
    return {"logprobs": each["logprobs"] | {"data": values, "shape": [len(values)]}}


def sampled(**changes):
    return lambda answer: {"sequences": [each | changes for each in answer["sequences"]]}


ODD = {
    "a refusal": ("forward", refusing(422), "something is wrong"),
    "a route that is missing": ("forward_backward", refusing(404), "something is wrong"),
    "no logprobs": ("forward", outputs(lambda each: {}), "an answer of another form"),
    "fewer logprobs": ("forward", outputs(shorter), "another number of tokens"),
    "fewer rows": ("forward", lambda answer: answer | {"loss_fn_outputs": []}, "another number of tokens"),
    "nothing": ("forward", lambda answer: {}, "another form"),
    "no path of a state": ("save_weights", lambda answer: {"type": "save_weights"}, "another form"),
    "no path to sample": (
        "save_weights_for_sampler",
        lambda answer: {"type": "save_weights_for_sampler"},
        "another form",
    ),
    "no completion": ("asample", lambda answer: {"sequences": []}, "an answer of another form"),
    "completions without logprobs": ("asample", sampled(logprobs=None), "without their logprobs"),
    "completions of fewer logprobs": ("asample", sampled(logprobs=[-1.0]), "without their logprobs"),
    "tokens that the policy does not have": ("asample", sampled(tokens=[9999] * 3, logprobs=[-1.0] * 3), "token 9999"),
}


@pytest.mark.parametrize(("request_", "change", "message"), ODD.values(), ids=ODD)
def test_an_odd_answer_is_an_error_that_names_what_to_type_and_leaves_no_checkpoint(
    server, engine, initial, tmp_path, request_, change, message
):
    (tmp_path / "1").mkdir()

    def act():
        if request_ == "asample":
            return engine.sample(initial, [CompletionRequest(PROMPT, 3)]).result(PATIENCE)
        return taught(engine, initial, tmp_path / "1")

    server.odd = {request_: change}
    try:
        with pytest.raises(errors.ServiceError, match=message) as caught:
            act()
    finally:
        server.odd = {}
    assert caught.value.hint
    assert list((tmp_path / "1").iterdir()) == []
    assert len(act()) == 1


def test_a_server_that_no_longer_knows_the_base_is_an_error_in_words(server, engine):
    server.odd = {"create_model": refusing(422)}
    try:
        with pytest.raises(errors.CheckpointError, match=r"makes no new model: .*something is wrong"):
            engine._create(None)
    finally:
        server.odd = {}


def test_a_server_whose_memory_is_full_is_given_room_by_models_that_can_be_made_again(policy, tmp_path):
    with serving(Server(policy, "tiny", most=2)) as server, engine_of(server) as engine:
        source = filled(tmp_path / "0", engine.create_initial)
        taught(engine, source, tmp_path / "1")
        for folder in (source, None):
            assert len(engine.sample(folder, [CompletionRequest(PROMPT, 3)]).result(PATIENCE)) == 1
        assert len(server.models) <= 2


def test_a_service_that_starts_waits_for_the_room_that_a_killed_one_had(policy, monkeypatch, caplog):
    with serving(Server(policy, "tiny", most=2)) as server:
        left = {"left_1": None, "left_2": None}
        server.models |= left
        with monkeypatch.context() as session:
            session.setattr(TinkerClient, "pause", lambda client, *_: server.models.clear())  # the session ends
            with engine_of(server) as engine:
                assert len(engine.sample(None, [CompletionRequest(PROMPT, 3)]).result(PATIENCE)) == 1
        (said,) = [each.getMessage() for each in caplog.records if "has no room" in each.getMessage()]
        assert said.startswith(f"{server.url} has no room: waiting up to 600 s")
        server.models |= left
        monkeypatch.setattr("rolloutlab.integrations.tinker.engine._ROOM_SECONDS", -1.0)
        with pytest.raises(NoRoomError, match="Maximum number of LoRA adapters"), engine_of(server):
            pass


def test_a_disk_that_refuses_a_checkpoint_is_an_error_and_the_job_given_again_goes_on(
    server, engine, initial, tmp_path, monkeypatch
):
    monkeypatch.setattr(SavedProgress, "due", lambda self: True)

    def full(*arguments, **options):
        raise OSError(ENOSPC, "No space left on device")

    expected = taught(engine, initial, tmp_path / "whole", rows=2)
    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_text", full)
        with pytest.raises(errors.LabError, match="No space left on device") as caught:
            taught(engine, initial, tmp_path / "1", rows=2)
        with pytest.raises(errors.LabError, match="No space left on device"):
            engine.create_initial(tmp_path)
    assert caught.value.hint == "free some disk space"
    steps = server.calls["optim_step"]
    assert taught(engine, initial, tmp_path / "1", rows=2) == expected
    assert server.calls["optim_step"] == steps


def test_a_disk_that_refuses_the_progress_of_a_job_does_not_end_it(engine, initial, tmp_path, monkeypatch):
    monkeypatch.setattr(SavedProgress, "due", lambda self: True)
    partial_of(tmp_path / "1").mkdir()  # no file can be put in its place
    assert len(taught(engine, initial, tmp_path / "1", rows=2)) == 2


def test_progress_and_checkpoints_that_were_cut_off_are_not_taken_for_whole(engine, initial, tmp_path):
    kept = SavedProgress(tmp_path / "1.partial", task_of(1).key(initial), 0.0)
    kept.save(lambda: "tinker://model_1/weights/a", [{"loss": 1.0}])
    content = (tmp_path / "1.partial").read_bytes()
    for end in range(len(content)):
        (tmp_path / "1.partial").write_bytes(content[:end])
        assert kept.read() is None
    (tmp_path / "1.partial.draft").write_bytes(content[:20])
    assert len(taught(engine, initial, tmp_path / "1")) == 1
    whole = (initial / PLACE).read_bytes()
    for end in range(len(whole)):
        (initial / PLACE).write_bytes(whole[:end])
        with pytest.raises(errors.CheckpointError):
            engine.fits(initial)
    for content in (b"{}", b"[1]", b"null", b"\xff", json.dumps({"model": "tiny", "rank": "x"}).encode()):
        with open_draft(tmp_path / "odd") as draft:
            (draft / PLACE).write_bytes(content)
            seal(draft, tmp_path / "odd")
        with pytest.raises(errors.CheckpointError, match="damaged"):
            engine.logprobs(tmp_path / "odd", [])
        (tmp_path / "odd").rename(tmp_path / f"odd{len(content)}{content[:1].hex()}")


@pytest.mark.parametrize("url", ["http://gpu.example", "http://10.0.0.7:8000", "http://127.0.0.1.example"])
def test_a_key_is_never_sent_without_encryption(url):
    with pytest.raises(errors.InputError, match="without encryption"):
        TinkerClient(url, "tml-secret", "tiny", 8)


@pytest.mark.parametrize("url", ["gpu.example:8000", "127.0.0.1:6379"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(errors.InputError, match="is not the address of a Tinker server"):
        TinkerClient(url, None, "tiny", 8)


def test_a_key_goes_to_no_other_host(policy):
    with serving(Server(policy, "tiny")) as other, serving(Server(policy, "tiny")) as server:
        client = TinkerClient(server.url, "tml-secret", "tiny", 8, timeout=PATIENCE)
        model = client.create()
        server.redirect = other.url
        with pytest.raises(errors.ServiceError) as caught:
            client.logprobs(model, [[1, 2, 3]])
        server.redirect = None
        client.close()
    assert server.keys == {"tml-secret"}
    assert other.keys == set()
    assert "secret" not in caught.value.with_hint


def test_an_sdk_that_would_take_the_key_along_a_redirect_is_refused(monkeypatch):
    def newer(base_url=None, api_key=None, **options):
        raise AssertionError("it is not made")

    monkeypatch.setattr("tinker.ServiceClient", newer)
    with pytest.raises(errors.PolicyError, match="follows redirects with the API key") as caught:
        TinkerClient("https://gpu.example", "tml-secret", "tiny", 8)
    assert caught.value.hint == "pip install 'tinker<0.31'"


def test_a_key_of_another_form_is_refused_before_the_server_is_asked():
    with pytest.raises(errors.InputError, match="does not begin with tml-") as caught:
        TinkerClient("https://gpu.example", "sk-secret", "tiny", 8)
    assert "secret" not in caught.value.with_hint


def test_the_settings_open_an_engine_with_the_key_of_the_environment(policy, tiny_policy, monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-from-environment")
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:1")
    with serving(Server(policy, str(tiny_policy.resolve()))) as server:
        engine = open_engine(str(tiny_policy), ModelSettings(engine="tinker", engine_url=server.url))
        assert isinstance(engine, TinkerEngine)
        assert (engine.name, engine.base.name) == ("tinker", tiny_policy.name)
        assert engine.status() == {"device": f"of the server at {server.url}", "model": str(tiny_policy.resolve())}
        engine.close()
        engine.close()
        with pytest.raises(errors.InputError, match=r"the engine tinker does not honour --lora-alpha: .* the scale"):
            open_engine(str(tiny_policy), ModelSettings(engine="tinker", engine_url=server.url, lora_alpha=8))
    assert server.keys == {"tml-from-environment"}
    assert server.models == {}


def test_a_server_of_ones_own_needs_no_key(policy, tiny_policy, monkeypatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with serving(Server(policy, str(tiny_policy.resolve()))) as server:
        open_engine(str(tiny_policy), ModelSettings(engine="tinker", engine_url=server.url)).close()
    assert server.keys == {"tml-none"}


def test_without_a_url_no_server_is_asked(capsys, monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret")
    monkeypatch.setenv("TINKER_BASE_URL", "https://gpu.example")
    assert main(["engine", "check", "--engine", "tinker"]) == 2
    printed = capsys.readouterr().err
    assert "the engine tinker needs the URL of a server" in printed
    assert "--engine-url http://127.0.0.1:8000" in printed


@pytest.mark.parametrize(
    ("status", "message"),
    [(500, "answered 500 something is wrong"), (503, "answered 503"), (404, "has no Tinker API")],
)
def test_a_server_that_cannot_be_used_ends_the_start_by_its_address_and_status(policy, tiny_policy, status, message):
    with serving(Server(policy, "tiny", status=status)) as server:
        with pytest.raises(errors.ServiceError, match=message) as caught:
            open_engine(str(tiny_policy), ModelSettings(engine="tinker", engine_url=server.url))
        assert server.url in caught.value.message
        assert "--engine-url" in caught.value.hint
        assert "ROLLOUTLAB_ENGINE_URL" in caught.value.hint  # a notebook has no options
        assert server.bodies == []


def test_a_server_that_does_not_run_ends_the_start_in_words(tiny_policy):
    with pytest.raises(errors.UnreachableError, match=r"127\.0\.0\.1:1") as caught:
        open_engine(str(tiny_policy), ModelSettings(engine="tinker", engine_url="http://127.0.0.1:1"))
    assert "start the server" in caught.value.hint
