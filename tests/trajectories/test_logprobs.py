"""Completions from elsewhere get logprobs and train."""

import json

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import InputError, NotFoundError, NothingTrainsError, ServiceError
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings

ASK = {"role": "user", "content": "the quick brown fox"}


@pytest.fixture
def service(service):
    """The module's, emptied after each test: these train."""
    yield service
    service.empty()


@pytest.fixture
def imported(session, tmp_path):
    """Imports conversations, the answers to one prompt, as the collection `foxes`."""

    def make(*answers, prompt=(ASK,), **more):
        lines = [{"messages": [*prompt, {"role": "assistant", "content": answer}], **more} for answer in answers]
        (tmp_path / "foxes.jsonl").write_text("\n".join(map(json.dumps, lines)))
        return session.files.import_(tmp_path / "foxes.jsonl", "foxes")

    return make


def test_completions_from_elsewhere_are_scored_by_a_function_and_train(session, imported):
    imported("jumps", "sleeps over", "the lazy dog", color="brown")
    session.reward("foxes", lambda trajectory, answer, messages, row: len(answer) + len(row["color"]))
    with pytest.raises(NothingTrainsError) as nothing:
        session.train("foxes")
    assert nothing.value.hint == "%logprobs foxes"
    scored = session.files.logprobs("foxes")
    job = session.train("foxes", {"learning_rate": 1e-3}, say=lambda line: None)
    assert job.status == "succeeded"
    metrics = job.metrics()
    assert metrics["ratio_max"].iloc[0] == pytest.approx(1, abs=1e-3)
    assert [t.reward for t in scored.trajectories] == [10.0, 16.0, 17.0]


def test_the_answers_become_choices_in_a_new_generation_and_the_old_one_stays(session, imported):
    old = imported("jumps", "sleeps")
    new = session.files.logprobs("foxes")
    assert (old.name, new.name) == ("foxes:1", "foxes")
    assert [t.tokens for t in old.trajectories] == [0, 0]
    for before, after in zip(old.trajectories, new.trajectories, strict=True):
        (choice,) = after.choices
        assert choice.finish_reason == "stop"
        assert all(token.token_id is not None and token.logprob < 0 for token in choice.sampled_tokens())
        assert after.messages == before.messages
        assert (after.model, after.step) == ("lab/practice", 0)


def test_what_was_given_to_the_policy_is_not_trained(session, imported):
    example = [{"role": "user", "content": "fox?"}, {"role": "assistant", "content": "dog", "weight": 0}]
    imported("jumps", prompt=(*example, ASK))
    ((result,),) = (group.trajectories for group in session.files.logprobs("foxes").groups)
    assert [type(item).__name__ for item in result.items] == [
        "UserMessage",
        "AssistantMessage",
        "UserMessage",
        "Choice",
    ]


def test_further_conversations_of_a_trajectory_get_logprobs_too(session, tmp_path):
    answer = {"role": "assistant", "content": [{"type": "text", "text": "ju"}, {"type": "text", "text": "mps"}]}
    sent = {"messages_and_choices": [ASK, answer], "additional_histories": [{"messages_and_choices": [ASK, answer]}]}
    (tmp_path / "a.jsonl").write_text(json.dumps({**sent, "reward": 1.0, "final_policy_version": 7, "logs": ["x"]}))
    session.files.import_(tmp_path / "a.jsonl", "foxes")
    (result,) = session.files.logprobs("foxes").trajectories
    assert result.answer == "jumps"
    main, further = result.history_tokens
    assert main == further > 0
    assert result.tokens == main + further
    assert result.extra.keys() == {"additional_histories", "logs"}


def test_a_conversation_that_the_policy_cannot_read_is_left_as_it_was_and_named(session, imported):
    message = []
    imported("jumps", "the lazy dog " * 99, "sleeps")
    result = session.files.logprobs("foxes", say=message.append)
    assert [t.tokens > 0 for t in result.trajectories] == [True, False, True]
    (line,) = message
    assert line.startswith("1 trajectory left without logprobs, the first foxes/0/1: ")


def test_where_it_can_read_nothing_that_is_an_error_and_nothing_is_written(session, imported):
    imported("the lazy dog " * 99)
    with pytest.raises(NothingTrainsError, match="nothing of foxes gets logprobs"):
        session.files.logprobs("foxes")
    assert list(session.collections().index) == ["foxes"]


def test_what_was_sampled_has_logprobs_already(session):
    message = []
    session.chat("foxes", "hello", n=2, max_tokens=4)
    assert session.files.logprobs("foxes", say=message.append).label == "foxes:1"
    assert message == ["every conversation has logprobs already"]


def test_an_import_can_ask_for_them_at_once(session, imported, tmp_path):
    imported("jumps")
    result = session.files.import_(tmp_path / "foxes.jsonl", "others", logprobs=True)
    assert result.label == "others:2"
    assert result.trajectories[0].tokens > 0


def test_the_logprobs_of_a_checkpoint_can_be_asked_for_by_its_name(session, imported):
    imported("jumps")
    session.model("lab/practice")
    (result,) = session.files.logprobs("foxes", "lab/practice@0").trajectories
    assert (result.model, result.step) == ("lab/practice", 0)
    with pytest.raises(NotFoundError) as missing:
        session.files.logprobs("foxes:1", "lab/nobody")
    assert missing.value.hint == "%model lab/nobody registers it"


def test_a_service_that_cannot_do_it_is_told_from_a_model_that_is_not_there(imported, tmp_path):
    imported("jumps")
    http = HttpClient(httpx.MockTransport(lambda request: httpx.Response(404, json={"detail": "Not Found"})))
    address = Address("http://127.0.0.1:9", "http://127.0.0.1:9/v1")
    session = Session(Settings(home=tmp_path, service=address), http=http)
    with pytest.raises(ServiceError, match="gives no logprobs for conversations from elsewhere"):
        session.files.logprobs("foxes", "m")
    session.close()


@pytest.fixture
def at_other(tmp_path):
    """Opens the lab at another service, which answers `/v1/preview/logprobs` with this model and this data."""
    opened: list[Session] = []

    def make(model, data):
        scored = {"object": "list", "model": model, "data": data}
        http = HttpClient(httpx.MockTransport(lambda request: httpx.Response(200, json=scored)))
        address = Address("http://127.0.0.1:9", "http://127.0.0.1:9/v1")
        opened.append(Session(Settings(home=tmp_path, service=address), http=http))
        return opened[-1]

    yield make
    for session in opened:
        session.close()


SCORED = {"turns": [{"index": 1, "logprobs": {"content": [{"token": "x", "logprob": -1.0, "top_logprobs": []}]}}]}


def test_a_service_that_scores_fewer_conversations_than_it_was_sent_is_an_error(imported, at_other):
    imported("jumps", "sleeps")
    session = at_other("lab/practice@3", [SCORED])
    with pytest.raises(ServiceError, match="sent the logprobs of 1 of 2 conversations"):
        session.files.logprobs("foxes", "m")
    assert session.collection("foxes").label == "foxes:1"


@pytest.mark.parametrize(
    ("model", "stored"), [("lab/practice@3", ("lab/practice", 3)), ("lab/practice@main", ("lab/practice@main", None))]
)
def test_what_a_service_calls_its_model_need_not_end_with_a_step(imported, at_other, model, stored):
    imported("jumps")
    (result,) = at_other(model, [SCORED]).files.logprobs("foxes", "m").trajectories
    assert (result.model, result.step) == stored


def test_a_collection_without_conversations_is_no_error_of_the_service(session, tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(InputError, match="is empty"):
        session.files.import_(tmp_path / "a.jsonl", "foxes", logprobs=True)
