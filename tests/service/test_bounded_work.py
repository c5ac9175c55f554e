"""Work on hostile jobs is bounded, can be cancelled inside of each piece, and holds up no end of the service."""

import json
import signal
import subprocess
import sys
import threading
import tracemalloc

import pytest

from rolloutlab.api import embedded
from rolloutlab.api.embedded import Embedded
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.api.wire.trajectories import History
from rolloutlab.errors import Cancelled, ServiceError
from rolloutlab.policy.rendering import Renderer
from rolloutlab.service.endpoints import json_stream
from rolloutlab.service.endpoints.body import InvalidBodyError, parse
from rolloutlab.settings import Settings
from tests.forked import forkserver

FEW_PER_TURN = 3
"""Renderings of a conversation up to each of its turns: its text, its turns in place, and what may be tried."""


def history(policy, turns, text="another text"):
    """A conversation of answers such as `answer 7`, whose sampled tokens are all of one text instead."""
    items, ids = [], policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    tokens = [{"token": "", "token_id": token_id, "logprob": -1.0, "top_logprobs": []} for token_id in ids]
    for i in range(turns):
        message = {"role": "assistant", "content": f"answer {i}"}
        choice = {"finish_reason": "length", "index": 0, "message": message, "logprobs": {"content": tokens}}
        items += [{"role": "user", "content": f"question {i}"}, choice]
    return {"messages_and_choices": items}


@pytest.fixture
def renderings(policy, monkeypatch):
    """The number of messages of each rendering of the policy's template."""
    counts, render = [], policy.tokenizer.apply_chat_template

    def counted(messages, **options):
        counts.append(len(messages))
        return render(messages, **options)

    monkeypatch.setattr(policy.tokenizer, "apply_chat_template", counted)
    return counts


def test_turns_whose_text_is_not_that_of_their_tokens_cost_no_rendering_each(policy, renderings):
    turns = 80
    sequences = Renderer(policy.tokenizer, policy.end_ids).sequences(History.model_validate(history(policy, turns)))
    assert len(sequences) == turns  # each begins a new one, as its prompt has the texts of the earlier ones
    assert len(renderings) < FEW_PER_TURN * turns


@pytest.mark.long
def test_turns_whose_text_is_elsewhere_in_the_conversation_are_tried_within_a_bound(policy, renderings):
    turns = 80
    Renderer(policy.tokenizer, policy.end_ids).sequences(History.model_validate(history(policy, turns, "question 1")))
    assert sum(renderings) < turns * 6_000  # of the messages that are tried, 4,000 for each prompt
    assert len(renderings) > FEW_PER_TURN * turns


def test_what_is_read_of_a_conversation_ends_at_the_next_piece_of_work(policy, renderings):
    pieces = iter(range(20))

    def check():
        if next(pieces, None) is None:
            raise Cancelled

    with pytest.raises(Cancelled):
        Renderer(policy.tokenizer, policy.end_ids, check=check).sequences(History.model_validate(history(policy, 40)))
    assert len(renderings) <= 20


@pytest.fixture
def in_the_middle(start, body, policy, monkeypatch):
    """Starts a job, and returns inside of a rendering of its only trajectory that trains, with what lets it go on."""
    entered, go_on, render = threading.Event(), threading.Event(), policy.tokenizer.apply_chat_template

    def held(messages, **options):
        if len(messages) > 40:
            entered.set()
            assert go_on.wait(240)
        return render(messages, **options)

    def begin():
        service = start()
        monkeypatch.setattr(policy.tokenizer, "apply_chat_template", held)
        group = {"trajectories": [{**history(policy, 40), "reward": 1.0}]}
        wanted = body(service.register().id, trajectory_groups=[group])
        job_id = service.call("POST", "/v1/preview/training-jobs", json=wanted)["id"]
        assert entered.wait(240)
        return service, job_id, go_on

    yield begin
    go_on.set()


def test_a_job_is_cancelled_inside_of_a_trajectory(in_the_middle):
    service, job_id, go_on = in_the_middle()
    service.call("POST", f"/v1/preview/training-jobs/{job_id}/cancel")
    go_on.set()
    assert [event.type for event in service.ended(job_id)] == ["training_cancelled"]


def test_a_service_that_stops_inside_of_a_trajectory_queues_the_job_again_at_once(in_the_middle, start):
    service, job_id, go_on = in_the_middle()
    service.jobs._stop()
    go_on.set()
    service.jobs.close()
    assert service.jobs.job(job_id).status == "queued"
    assert [each.type for each in service.jobs.events(job_id, 0, 9)] == ["restarted"]
    assert start().ended(job_id)[-1].type == "training_ended"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/preview/training-jobs", "/v1/preview/files"])
def test_a_body_whose_values_would_take_gigabytes_is_refused(service, body, path):
    lists = b"[" + b"[]," * 9_000_000 + b"[]]"
    model = service.register("bounded")
    values = {
        "/v1/chat/completions": {"model": service.policy, "messages": [{"role": "user", "content": "?", "x": "LISTS"}]},
        "/v1/preview/training-jobs": body(model.id, trajectory_groups=[{"trajectories": [{"x": "LISTS"}]}]),
        "/v1/preview/files": {"messages": [{"role": "user", "content": "?", "x": "LISTS"}]},
    }
    with pytest.raises(ServiceError, match=r"its values would take .* of memory"):
        service.call("POST", path, content=json.dumps(values[path]).encode().replace(b'"LISTS"', lists))


@pytest.mark.parametrize("item", ["0", "[]", "{}", '{"role": "user"}'])
@pytest.mark.long
def test_a_body_with_many_wrong_items_is_refused_by_the_first(item):
    text = f'{{"model": "practice", "messages": [{",".join([item] * 300_000)}]}}'
    tracemalloc.start()
    with pytest.raises(InvalidBodyError) as told:
        parse(ChatRequest, text.encode())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert {tuple(error.loc[:3]) for error in told.value.errors} == {("body", "messages", 0)}
    assert peak < 300_000_000


def test_a_value_of_a_job_that_is_larger_than_any_trajectory_is_refused(service, body, monkeypatch):
    monkeypatch.setattr(json_stream, "_MAX_VALUE", 1 << 20)
    wanted = body(service.register("long").id)
    wanted["trajectory_groups"][0]["trajectories"][0]["x"] = "x" * (4 << 20)
    with pytest.raises(ServiceError, match="a value of more than 1 MiB"):
        service.call("POST", "/v1/preview/training-jobs", json=wanted)


DEAF = """
import json, os, signal, sys
from pathlib import Path
from filelock import FileLock

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as in a regular expression, which lets no other code run
folder = Path(sys.argv[1])
lock = FileLock(folder / "lock")
lock.acquire()
urls = {"base_url": "http://127.0.0.1:1", "inference_base_url": "http://127.0.0.1:1/v1"}
(folder / "token").write_text("a token")
(folder / "service.json").write_text(json.dumps({**urls, "policy": "p", "instance": "i", "pid": os.getpid()}))
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.process
def test_a_service_that_hears_no_signal_is_killed_by_the_stop(tmp_path, monkeypatch):
    settings, http = Settings(home=tmp_path), HttpClient()
    settings.service_folder.mkdir()
    monkeypatch.setattr(embedded, "_STOP_TIMEOUT", 0.1)
    process = subprocess.Popen([sys.executable, "-c", DEAF, str(settings.service_folder)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
        client = Embedded(settings, http)
        assert client.stop() is True
        assert process.wait(240) == -signal.SIGKILL
        assert client.stop() is False
    finally:
        process.kill()
        process.wait(240)
        process.stdout.close()
        http.close()


BUSY = """
import os, threading
from rolloutlab.service.serve import end_process_within

os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), 1)
end_process_within(0.1)
threading.Event().wait()  # a thread that holds up the end
"""


@pytest.mark.process
def test_a_stopping_service_ends_in_the_middle_of_its_work(tmp_path):
    busy = forkserver().Process(target=exec, args=(BUSY, {"path": str(tmp_path / "said")}), daemon=True)
    busy.start()
    busy.join(240)
    assert busy.exitcode == 128 + signal.SIGTERM
    assert "ends in the middle of its work" in (tmp_path / "said").read_text()
