"""Fine-tuning data and jobs, as a client sees them."""

import json
import os
from uuid import uuid4

import httpx
import pytest

from rolloutlab.errors import RefusedError
from rolloutlab.policy.model import load_policy
from rolloutlab.service.endpoints import sft_upload
from rolloutlab.service.uploaded_files import KEPT_SECONDS, UploadedFiles
from rolloutlab.settings import ModelSettings
from tests.conftest import TOKEN

FILES, JOBS = "/v1/preview/files", "/v1/preview/sft-training-jobs"
ASKED, TOLD = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "fox"}
LINE = {"messages": [ASKED, TOLD]}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}, "strict": None}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}

ODD = {
    "extra fields": {**LINE, "parallel_tool_calls": False, "id": 7, "response_format": None},
    "nulls": {**LINE, "tools": None, "functions": None, "name": None},
    "a developer": {"messages": [{"role": "developer", "content": "Be brief."}, ASKED, TOLD]},
    "content in parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}, {**TOLD, "name": "ada"}]
    },
    "a weight as a float": {"messages": [ASKED, {**TOLD, "weight": 1.0}]},
    "an end that is no answer": {"messages": [ASKED, TOLD, ASKED]},
    "a refusal": {"messages": [ASKED, {"role": "assistant", "refusal": "No.", "content": None}]},
    "sampled items": {"messages_and_choices": [ASKED, {"message": TOLD, "finish_reason": "stop", "index": 0}]},
}
WRONG = {
    "preferences": {"input": {"messages": [ASKED]}, "preferred_output": [TOLD], "non_preferred_output": [TOLD]},
    "a prompt and its completion": {"prompt": "hello", "completion": "fox"},
    "no messages": {"messages": []},
    "half a weight": {"messages": [ASKED, {**TOLD, "weight": 0.5}]},
    "an unknown role": {"messages": [{"role": "robot", "content": "hello"}, TOLD]},
    "no object": ["hello", "fox"],
}


@pytest.fixture
def post(service):
    """Sends bytes to an endpoint; the status of the answer, and its JSON."""

    def send(path, content):
        async def answer():
            head = {"Authorization": f"Bearer {TOKEN}"}
            async with httpx.AsyncClient(transport=service.http._transport, headers=head) as client:
                return await client.post(f"{service.address.base_url}{path}", content=content)

        answered = service.http.run(answer())
        return answered.status_code, answered.json()

    return send


@pytest.fixture
def upload(post):
    def send(*lines):
        status, file = post(FILES, "\n".join(map(json.dumps, lines)).encode())
        assert status == 200, file
        return file

    return send


@pytest.fixture
def create(service):
    """Creates a job of a model on uploaded data: its id."""
    model = str(service.register(uuid4().hex).id)

    def make(url, key="", **config):
        body = {"model_id": model, "training_data_url": url, "config": config or None}
        headers = {"Idempotency-Key": key} if key else {}
        return service.call("POST", JOBS, json=body, headers=headers)["id"]

    return make


def data(events, kind):
    return [event.data for event in events if event.type == kind]


def test_a_job_reports_as_one_of_reinforcement_learning_does(service, upload, create):
    file = upload(LINE, LINE)
    assert (file["conversations"], file["trainable"], file["rows"]) == (2, 2, 1)
    job_id = create(file["url"])
    events = service.ended(job_id)
    assert [event.type for event in events] == [
        "training_started",
        "preflight",
        "gradient_step",
        "checkpoint_saved",
        "training_ended",
    ]
    [step] = data(events, "gradient_step")
    assert step["num_trainable_tokens"] == file["tokens"]
    job = service.call("GET", f"/v1/preview/training-jobs/{job_id}")
    assert (job["status"], job["step"], job["final_step"]) == ("succeeded", 0, 1)
    [before, after] = service.call("GET", f"/v1/preview/models/{job['model_id']}/checkpoints")["data"]
    assert before["step"] == 0
    assert after["metrics"]["loss"] == step["loss"]


def test_the_next_job_goes_on_from_the_checkpoint_of_the_one_before(service, upload, create):
    url = upload(LINE)["url"]
    first, second = (data(service.ended(create(url, learning_rate=1e-2)), "gradient_step")[0] for _ in range(2))
    assert second["loss"] < first["loss"]


@pytest.mark.parametrize("line", ODD.values(), ids=ODD)
def test_odd_but_valid_lines_are_learned(upload, line):
    file = upload(line)
    assert (file["trainable"], file["reasons"]) == (1, {})


def test_tools_of_either_form_are_rendered(start, worded_policy):
    from rolloutlab.policy.model import load_policy

    service = start(load_policy(str(worded_policy)))
    called = {"messages": [ASKED, {"role": "assistant", "content": None, "tool_calls": [CALL]}]}
    plain, new, older = (
        service.call("POST", FILES, content=json.dumps({**called, **tools}))["tokens"]
        for tools in ({}, {"tools": [TOOL]}, {"functions": [TOOL["function"]]})
    )
    assert plain == new == older > 5


@pytest.mark.parametrize("line", WRONG.values(), ids=WRONG)
def test_a_line_that_is_no_conversation_is_refused_with_its_number(post, line):
    status, answer = post(FILES, "\n".join([json.dumps(LINE), "", json.dumps(line)]).encode())
    assert status == 422
    assert answer["detail"][0]["loc"][:2] == ["body", "line 3"]


def test_blank_lines_a_byte_order_mark_and_windows_line_ends_are_read(post):
    text = f"\ufeff{json.dumps(LINE)}\r\n\r\n{json.dumps(LINE)}\r\n"
    status, file = post(FILES, text.encode())
    assert (status, file["conversations"]) == (200, 2)


@pytest.mark.parametrize("text", [b"", b"\n \n", b"{", b"\xff\xfe{}", b'{"messages": NaN}'])
def test_a_file_without_conversations_is_refused(post, text):
    assert post(FILES, text)[0] == 422


def test_what_is_left_out_is_counted_and_named(upload):
    file = upload(LINE, {"messages": [ASKED], "name": "mine"}, {"messages": [{**ASKED, "content": "x" * 900}, TOLD]})
    assert file["reasons"] == {"no_answer": 1, "too_long": 1}
    assert file["skipped"] == {"no_answer": ["mine"], "too_long": ["line 3"]}


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/train.jsonl",
        "wandb-artifact:///me/project/name:v0",
        "file:///etc/passwd",
        "rolloutlab-file:///../service.db",
        "rolloutlab-file:///00000000-0000-4000-8000-000000000000",
        "",
    ],
)
def test_a_url_that_was_not_issued_here_is_refused(service, post, url):
    body = {"model_id": str(service.register().id), "training_data_url": url}
    status, answer = post(JOBS, json.dumps(body).encode())
    assert status == 422
    assert answer["detail"][0]["loc"] == ["body", "training_data_url"]


def test_a_dry_run_keeps_nothing(service, post):
    before = set(service.folder.glob("files/*"))
    status, file = post(f"{FILES}?dry_run=true", json.dumps(LINE).encode())
    assert (status, file["trainable"]) == (200, 1)
    assert "url" not in file
    assert set(service.folder.glob("files/*")) == before
    assert not list(service.folder.glob("jobs/.*.draft"))


def test_data_expires_but_a_job_has_its_own_copy(service, upload, create, post):
    file = upload(LINE)
    job_id = create(file["url"])
    kept = service.folder / "files" / f"{file['id']}.jsonl"
    os.utime(kept, (0, kept.stat().st_mtime - KEPT_SECONDS - 60))
    assert service.ended(job_id)[-1].type == "training_ended"
    body = {"model_id": str(service.register().id), "training_data_url": file["url"]}
    assert post(JOBS, json.dumps(body).encode())[0] == 422
    upload(LINE)
    assert not kept.exists()
    assert not (service.folder / "jobs" / f"{job_id}.json").exists()


def test_a_job_that_is_sent_again_is_the_same_job(upload, create):
    url, key = upload(LINE)["url"], str(uuid4())
    assert create(url, key) == create(url, key) == key


def test_a_queued_job_survives_a_restart(start):
    service = start()
    url = service.call("POST", FILES, content=json.dumps(LINE))["url"]
    body = {"model_id": str(service.register().id), "training_data_url": url}
    job_ids = [service.call("POST", JOBS, json=body)["id"] for _ in range(3)]
    again = start()
    assert [again.ended(job_id)[-1].type for job_id in job_ids] == ["training_ended"] * 3


@pytest.mark.parametrize(
    "config",
    [{"batch_size": 0}, {"batch_size": 1.5}, {"learning_rate": -1}, {"learning_rate": []}, {"learning_rate": "x"}],
)
def test_an_option_out_of_range_is_refused(service, upload, post, config):
    body = {"model_id": str(service.register().id), "training_data_url": upload(LINE)["url"], "config": config}
    assert post(JOBS, json.dumps(body).encode())[0] == 422


def test_the_job_of_an_unknown_model_is_not_found(upload, post):
    body = {"model_id": str(uuid4()), "training_data_url": upload(LINE)["url"]}
    assert post(JOBS, json.dumps(body).encode())[0] == 404


def test_too_few_learning_rates_are_refused_before_there_is_a_job(service, upload, post):
    body = {"model_id": str(service.register("rates").id), "training_data_url": upload(LINE, LINE, LINE)["url"]}
    for config, message in (
        ({"batch_size": 1, "learning_rate": [1e-3]}, "1 learning rate for 3 gradient steps: one number, or 3 of them"),
        ({"batch_size": 1, "learning_rate": [1, 0]}, "2 learning rates for 3 gradient steps: one number, or 3 of them"),
        ({"batch_size": 2, "learning_rate": [1e-3]}, "1 learning rate for 2 gradient steps: one number, or 2 of them"),
    ):
        status, answer = post(JOBS, json.dumps({**body, "config": config}).encode())
        assert status == 422
        assert answer["detail"] == [{"loc": ["body", "config", "learning_rate"], "msg": message, "type": "too_short"}]
    assert service.call("GET", "/v1/preview/models/{model_id}/checkpoints".format(**body))["data"][1:] == []


def test_as_many_learning_rates_as_steps_are_enough_whatever_is_left_out(service, upload, create):
    file = upload(LINE, {"messages": [ASKED]}, LINE, LINE)
    for batch_size, rates in ((None, [1e-3]), (2, [1e-3, 0]), (1, [0, 0, 0]), (1, [0, 0, 0, 0])):
        events = service.ended(create(file["url"], batch_size=batch_size, learning_rate=rates))
        steps = data(events, "gradient_step")
        assert [step["learning_rate"] for step in steps] == rates[: len(steps)]
        assert len(steps) == (3 if batch_size == 1 else len(rates))


def test_learning_rates_for_data_of_before_a_restart_are_counted_too(start):
    service = start()
    url = service.call("POST", FILES, content="\n".join(map(json.dumps, [LINE, LINE])))["url"]
    body = {"model_id": str(service.register().id), "training_data_url": url}
    again = start()
    with pytest.raises(RefusedError, match=r"422 .*1 learning rate for 2 gradient steps"):
        again.call("POST", JOBS, json={**body, "config": {"batch_size": 1, "learning_rate": [1e-3]}})
    job_id = again.call("POST", JOBS, json={**body, "config": {"batch_size": 1, "learning_rate": [0, 0]}})["id"]
    assert again.ended(job_id)[-1].type == "training_ended"


def test_a_job_of_a_model_with_other_adapters_is_refused_before_it_is_created(start, tiny_policy):
    service = start()
    model = str(service.register().id)
    service = start(load_policy(str(tiny_policy), ModelSettings(lora_rank=4, lora_alpha=4)))
    body = {"model_id": model, "training_data_url": service.call("POST", FILES, content=json.dumps(LINE))["url"]}
    with pytest.raises(RefusedError, match="409 lab/first was made with the default settings, and this service runs"):
        service.call("POST", JOBS, json=body)
    registered = {"project": "lab", "name": "first", "return_existing": True}
    assert "--lora-rank=4" in service.call("POST", "/v1/preview/models", json=registered)["conflict"]
    assert not service.jobs.busy()
    assert list((service.folder / "jobs").iterdir()) == []
    again = start()
    assert "conflict" not in again.call("POST", "/v1/preview/models", json=registered)
    assert again.ended(again.call("POST", JOBS, json=body)["id"])[-1].type == "training_ended"


def test_a_line_that_is_too_long_is_refused_with_its_number(post, monkeypatch):
    monkeypatch.setattr(sft_upload, "MAX_LINE_BYTES", 1000)
    longer = {"messages": [{**ASKED, "content": "x" * 1000}, TOLD]}
    status, answer = post(FILES, "\n".join(map(json.dumps, [LINE, longer])).encode())
    assert status == 422
    [error] = answer["detail"]
    assert error["loc"] == ["body", "line 2"]
    assert error["msg"] == "a line is longer than 1,000 bytes: shorten or leave out its conversation"


def _remove(body):
    body.unlink()


def _replace_by_a_folder(body):
    body.unlink()
    body.mkdir()


def _cut_short(body):
    body.write_bytes(body.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_remove, "the job's data was removed: "),
        (_replace_by_a_folder, "the job's data cannot be read: "),
        (_cut_short, "the job's data is damaged: "),
    ],
)
def test_a_job_whose_data_is_gone_when_it_starts_fails_with_what_to_do(
    service, upload, create, monkeypatch, change, what
):
    read = sft_upload.read

    def changed(body):
        change(body)
        return read(body)

    url = upload(LINE)["url"]
    monkeypatch.setattr(sft_upload, "read", changed)
    [failed] = data(service.ended(create(url)), "training_failed")
    message = failed["error_message"]
    assert message.startswith(what)
    assert message.endswith(" (submit the job again)")
    assert str(service.folder / "jobs") in message
    assert "Errno" not in message
    monkeypatch.undo()
    assert service.ended(create(url))[-1].type == "training_ended"


def test_data_that_expires_while_its_job_is_created_is_refused_as_expired_data_is(service, post, upload, monkeypatch):
    url, copy = upload(LINE)["url"], sft_upload.write

    def expires_first(job, data, body):
        data.unlink()
        copy(job, data, body)

    monkeypatch.setattr(sft_upload, "write", expires_first)
    body = {"model_id": str(service.register("expiring").id), "training_data_url": url}
    status, answer = post(JOBS, json.dumps(body).encode())
    assert status == 422
    assert "expired" in answer["detail"][0]["msg"]


def expire(path):
    then = path.stat().st_mtime - KEPT_SECONDS - 60
    os.utime(path, (then, then))


def test_a_job_that_is_sent_again_is_the_same_job_also_after_its_data_expired(service, upload, create):
    file = upload(LINE)
    first = create(file["url"], key="again")
    expire(service.folder / "files" / f"{file['id']}.jsonl")
    assert create(file["url"], key="again") == first
    with pytest.raises(RefusedError, match="409 the Idempotency-Key was used for the job"):
        create(file["url"], key="again", batch_size=1)
    with pytest.raises(RefusedError, match="422"):
        create(file["url"], key="another")


def test_expired_data_is_removed_when_the_service_starts(start):
    service = start()
    kept = [UploadedFiles(service.folder / "files").keep(written(service.folder / name))[0] for name in ("a", "b")]
    expire(service.folder / "files" / f"{kept[0]}.jsonl")
    start()
    assert [path.stem for path in (service.folder / "files").iterdir()] == kept[1:]


def written(path):
    path.write_bytes(b"{}")
    return path


def test_answers_that_were_sampled_here_are_learned_as_they_were_sampled(service, post):
    for options in ({"temperature": 2.0}, {"stop": ["a", "e"]}, {"max_tokens": 1}):
        choices = service.chat(n=16, seed=3, **{"max_tokens": 24, **options}).choices
        lines = [{"messages_and_choices": [ASKED, choice.to_wire()]} for choice in choices if choice.message.content]
        status, file = post(f"{FILES}?dry_run=true", "\n".join(map(json.dumps, lines)).encode())
        assert (status, file["warnings"]) == (200, [])
        assert file["tokens"] == sum(len(choice.sampled_tokens()) for choice in choices if choice.message.content)
