"""Losses of the user's own over the wire: who may name one, and what file it must lie in; and `kl_ref_step`."""

import hashlib
import json
import os
import stat
import threading
from types import SimpleNamespace

import httpx
import pytest

from rolloutlab.engines import local
from rolloutlab.errors import InputError, JobFailedError
from rolloutlab.service import job_queue
from rolloutlab.session import Session
from rolloutlab.settings import Settings
from rolloutlab.training.custom_loss import source_of

SOURCE = b"def loss(new, old, advantage, weight, history):\n    return -(weight * advantage * new).sum() / len(new)\n"
DIGEST = hashlib.sha256(SOURCE).hexdigest()
SCALE = 0.5


def mine(new, old, advantage, weight, history):
    import torch

    ratio = torch.exp(new - old)
    return -SCALE * (weight * advantage * ratio).sum() / len(new)


@pytest.fixture
def post(service, trajectory):
    """Posts a job with these options; the status, the text. client: the address that the request comes from."""

    def send(options, token=service.address.token, client=("127.0.0.1", 1)):
        group = {"trajectories": [trajectory(0.0), trajectory(1.0)]}
        model = str(service.register("losses").id)
        body = {"model_id": model, "trajectory_groups": [group], "experimental_config": options}

        async def answer():
            app = service.http._transport.app
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app, client=client)) as http:
                head = {"Authorization": f"Bearer {token}"}
                url = f"{service.address.base_url}/v1/preview/training-jobs"
                return await http.post(url, content=json.dumps(body), headers=head)

        found = service.http.run(answer())
        return found.status_code, found.text

    return send


@pytest.fixture
def file(service):
    path = service.folder / "losses" / f"{DIGEST}.py"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(SOURCE)
    path.chmod(0o600)
    yield path
    path.unlink(missing_ok=True)


def test_the_owner_of_the_lab_trains_with_a_loss_of_the_lab_folder(service, post, file):
    status, text = post({"custom_loss": DIGEST})
    assert status == 200
    events = service.ended(json.loads(text)["id"])
    assert events[-1].type == "training_ended"
    assert any(event.type == "gradient_step" for event in events)


def test_a_loss_is_refused_from_another_machine_even_with_the_labs_own_token(post, file):
    status, text = post({"custom_loss": DIGEST}, client=("192.168.0.7", 1))
    assert status == 403
    assert "custom_loss" in text
    assert post({}, client=("192.168.0.7", 1))[0] == 200


def test_a_loss_is_refused_with_a_token_of_oauth(post, file, monkeypatch):
    from rolloutlab.service.oauth.grants import Grants, TokenInfo

    granted = TokenInfo("a client", "a client", ("service",))
    monkeypatch.setattr(Grants, "access", lambda self, token, uri: granted if token == "of-oauth" else None)
    assert post({}, token="of-oauth")[0] == 200
    status, text = post({"custom_loss": DIGEST}, token="of-oauth")
    assert status == 403
    assert "custom_loss" in text


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_can_read_is_not_run(post, file, mode):
    file.chmod(mode)
    status, text = post({"custom_loss": DIGEST})
    assert status == 422
    assert "other users" in text


def test_a_file_that_is_missing_or_changed_or_a_link_is_not_run(post, file, tmp_path):
    file.write_bytes(SOURCE + b"# changed\n")
    assert post({"custom_loss": DIGEST})[0] == 422
    file.unlink()
    assert post({"custom_loss": DIGEST})[0] == 422
    elsewhere = tmp_path / "elsewhere.py"
    elsewhere.write_bytes(SOURCE)
    elsewhere.chmod(0o600)
    file.symlink_to(elsewhere)
    assert post({"custom_loss": DIGEST})[0] == 422


@pytest.mark.parametrize("name", ["../key", "A" * 64, "0" * 63, 1])
def test_a_loss_is_named_by_a_hash(post, name):
    assert post({"custom_loss": name})[0] == 422


def test_options_that_a_loss_replaces_are_refused(post, file):
    status, text = post({"custom_loss": DIGEST, "ppo": True})
    assert status == 422
    assert json.loads(text)["detail"][0]["loc"] == ["body", "experimental_config", "ppo"]


def test_truncated_importance_sampling_without_recomputed_logprobs_is_refused_with_the_reason(post):
    status, text = post({"truncated_importance_sampling": 2.0})
    assert status == 422
    [problem] = json.loads(text)["detail"]
    assert problem["loc"] == ["body", "experimental_config", "truncated_importance_sampling"]
    assert "a second time" in problem["msg"]
    assert post({"truncated_importance_sampling": 2.0, "precalculate_logprobs": True})[0] == 200


def test_the_reference_of_a_penalty_is_a_checkpoint_of_the_model(service, post):
    status, text = post({"kl_penalty_coef": 0.1, "kl_ref_step": 999})
    assert status == 422
    assert "no checkpoint 999" in text
    status, text = post({"kl_penalty_coef": 0.1})
    assert status == 200
    data = [event.data for event in service.ended(json.loads(text)["id"]) if event.type == "gradient_step"]
    assert data
    assert all("kl_reference" in each and each["kl_base"] >= 0 for each in data)
    status, text = post({"kl_penalty_coef": 0.1, "kl_ref_step": 1})
    assert status == 200
    assert service.ended(json.loads(text)["id"])[-1].type == "training_ended"


@pytest.fixture
def embedded(service):
    """A session whose embedded service is the one of this process."""
    session = Session(Settings(home=service.folder.parent), http=service.http)
    stub = SimpleNamespace(
        address=lambda *_, **__: service.address, running=lambda: service.address, close=lambda: None
    )
    session._connector.__dict__["embedded"] = stub
    yield session
    session.close()


def scored(session, name):
    values = iter([0.0, 1.0])
    session.chat(name, "yes?", n=2, max_tokens=4)
    session.reward(name, lambda trajectory, answer, messages, row: next(values))


def test_a_notebook_trains_with_a_function_of_its_own(embedded, capsys):
    scored(embedded, "own")
    job = embedded.train("own", {"learning_rate": 1e-3}, loss=mine)
    assert job.status == "succeeded"
    assert "custom_loss: honoured by the embedded service" in capsys.readouterr().out
    digest = embedded.store.jobs.newest_first()[0].options["custom_loss"]
    path = embedded._connector.settings.service_folder / "losses" / f"{digest}.py"
    assert path.read_text().startswith("SCALE = 0.5\ndef mine(")
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_loss_whose_gradient_is_wrong_fails_before_it_trains(embedded):
    def wrong(new, old, advantage, weight, history):
        return (new * new.exp().mean().item()).sum()

    scored(embedded, "wrong")
    with pytest.raises(JobFailedError, match="finite difference"):
        embedded.train("wrong", loss=wrong, say=lambda _: None)


def test_what_a_loss_replaces_is_an_error_before_anything_is_sent(embedded):
    scored(embedded, "replaced")
    before = len(embedded.store.jobs.newest_first())
    with pytest.raises(InputError, match="epsilon: has no effect"):
        embedded.train("replaced", {"epsilon": 0.2}, loss=mine, say=lambda _: None)
    assert len(embedded.store.jobs.newest_first()) == before


def test_a_service_elsewhere_gets_no_loss(session):
    scored(session, "elsewhere")
    with pytest.raises(InputError, match="embedded service of this machine alone") as refused:
        session.train("elsewhere", loss=mine, say=lambda _: None)
    assert refused.value.hint == "%connect embedded"


def test_a_loss_may_have_annotations_and_defaults_of_its_notebook(embedded):
    def noted(new: Settings, old, advantage, weight, history, scale=SCALE) -> "Settings":
        return -(weight * advantage * new).sum() * scale

    scored(embedded, "noted")
    assert source_of(noted).startswith("SCALE = 0.5\ndef noted(new: Settings")
    assert embedded.train("noted", loss=noted, say=lambda _: None).status == "succeeded"


def test_a_loss_is_a_plain_function_of_five_arguments_that_needs_nothing_else():
    helper = [1, 2]

    def uses(new, old, advantage, weight, history):
        return helper

    async def waits(new, old, advantage, weight, history): ...

    for wrong in (len, lambda *_: 0, lambda new: new, waits, uses, object()):
        with pytest.raises(InputError) as refused:
            source_of(wrong)
        assert refused.value.hint


@pytest.fixture
def held(monkeypatch):
    """Holds jobs after they are queued, until it is set."""
    go_on, read = threading.Event(), job_queue.job_upload.read

    def held_up(body):
        assert go_on.wait(240)
        return read(body)

    monkeypatch.setattr(job_queue.job_upload, "read", held_up)
    yield go_on
    go_on.set()


def remove(path):
    path.unlink()


def change(path):
    path.write_bytes(SOURCE.replace(b"return", b"raise SystemExit; return"))


def open_to_others(path):
    path.chmod(0o644)


def link(path):
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (remove, "was removed from the lab folder"),
        (change, "was changed after it was hashed"),
        (open_to_others, "is in a file that other users can read or write"),
        (link, "cannot be read from the lab folder"),
    ],
)
def test_a_loss_that_changed_after_queueing_ends_the_job_in_words(service, post, file, held, spoil, why):
    status, text = post({"custom_loss": DIGEST})
    assert status == 200
    spoil(file)
    held.set()
    job_id = json.loads(text)["id"]
    events = service.ended(job_id)
    assert {event.type for event in events}.isdisjoint({"gradient_step", "checkpoint_saved"})
    message = events[-1].data["error_message"]
    assert message.startswith(f"the loss {DIGEST[:8]} {why}")
    assert str(file) in message
    assert ("chmod 600" if spoil is open_to_others else "lab.train(..., loss=fn)") in message
    assert service.call("GET", f"/v1/preview/training-jobs/{job_id}")["error"] == message


def test_the_source_that_trains_is_the_one_that_was_hashed(service, post, file, held, monkeypatch):
    """Changed after it was read: the file is not read a second time."""
    trained, take_steps = [], local.take_steps

    def changed_first(*values):
        change(file)
        trained.append(values[3].loss_source)
        return take_steps(*values)

    monkeypatch.setattr(local, "take_steps", changed_first)
    status, text = post({"custom_loss": DIGEST})
    assert status == 200
    held.set()
    assert service.ended(json.loads(text)["id"])[-1].type == "training_ended"
    assert [hashlib.sha256(source.encode()).hexdigest() for source in trained] == [DIGEST]


def test_a_source_of_odd_bytes_or_of_any_length_is_an_answer_in_words(service, post):
    for source, why in ((b"# \xff\n" + SOURCE, "is not UTF-8"), (SOURCE + b"#" * 1_000_001, "is longer than")):
        digest = hashlib.sha256(source).hexdigest()
        path = service.folder / "losses" / f"{digest}.py"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(source)
        path.chmod(0o600)
        status, text = post({"custom_loss": digest})
        assert status == 422
        assert why in text


@pytest.fixture
def file_of(service):
    """Writes a loss with this body into a service's folder: its hash."""

    def write(body, service=service):
        source = f"import torch\ndef loss(new, old, advantage, weight, history):\n    {body}\n".encode()
        digest = hashlib.sha256(source).hexdigest()
        path = service.folder / "losses" / f"{digest}.py"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(source)
        path.chmod(0o600)
        return digest

    return write


def job_of(posted):
    status, text = posted
    assert status == 200, text
    return json.loads(text)["id"]


@pytest.mark.parametrize("wrong", ["raise SystemExit", "raise KeyboardInterrupt", "import sys; sys.exit('no')"])
def test_a_loss_that_would_end_the_process_ends_its_job_and_the_next_one_trains(service, post, file_of, wrong):
    first, second = job_of(post({"custom_loss": file_of(wrong)})), job_of(post({}))
    assert service.ended(first)[-1].data["error_message"].startswith("the loss failed: ")
    assert service.ended(second)[-1].type == "training_ended"


def test_whatever_a_job_raises_the_queue_goes_on(service, post, monkeypatch):
    def exits(_body):
        raise SystemExit("no")

    with monkeypatch.context() as patched:
        patched.setattr(job_queue.job_upload, "read", exits)
        assert service.ended(job_of(post({})))[-1].data["error_message"] == "SystemExit: no"
    assert service.ended(job_of(post({})))[-1].type == "training_ended"


def test_a_job_whose_loss_never_returns_can_be_cancelled_and_the_next_one_trains(service, post, file_of):
    first, second = job_of(post({"custom_loss": file_of("while True: pass")})), job_of(post({}))
    while service.call("GET", f"/v1/preview/training-jobs/{first}")["status"] == "queued":
        pass
    service.call("POST", f"/v1/preview/training-jobs/{first}/cancel")
    assert service.ended(first)[-1].type == "training_cancelled"
    assert service.ended(second)[-1].type == "training_ended"


def test_a_service_stops_while_a_loss_never_returns_and_its_job_starts_over_with_the_next(start, body, file_of):
    service = start()
    digest = file_of("while True: pass", service)
    wanted = body(service.register().id, experimental_config={"custom_loss": digest})
    with service.jobs.bodies.draft() as draft:
        draft.write_text(json.dumps(wanted))
        job_id = service.jobs.create(draft, "digest", by_owner=True)
    while service.jobs.job(job_id).status == "queued":
        pass
    again = start()  # stops the one before
    while not again.jobs.events(job_id, 0, 9):
        pass
    assert again.jobs.events(job_id, 0, 9)[0].type == "restarted"
    again.call("POST", f"/v1/preview/training-jobs/{job_id}/cancel")
    assert again.ended(job_id)[-1].type == "training_cancelled"


def test_what_a_loss_changes_in_torch_does_not_reach_the_next_job(service, post, file_of):
    refused = file_of("torch.set_grad_enabled(False); torch.set_default_dtype(torch.float64); return new.sum()")
    service.ended(job_of(post({"custom_loss": refused})))
    assert service.ended(job_of(post({"kl_penalty_coef": 0.1})))[-1].type == "training_ended"
