"""Token ids of earlier turns: what was sampled is read and trained as it was sampled, on every turn."""

import json
from contextlib import closing

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import RefusedError
from rolloutlab.session import Session
from rolloutlab.settings import Settings

MODEL = "6a3c2f8e-5f1f-4d0e-9a6b-0c1d2e3f4a5b"
FIVE_TURNS = "\nassistant:\n".join(f"user: {question}" for question in ("a {{n}}", "b", "c", "d", "e"))


def card(**more):
    return {"id": MODEL, "object": "model", "created": 0, "owned_by": "o"} | more


def completion(name="yes", token_id=5):
    tokens = [{"token": name, "token_id": token_id, "logprob": -0.5, "top_logprobs": []}]
    message = {"role": "assistant", "content": name}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": {"content": tokens}}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice]}


@pytest.fixture
def remote(tmp_path):
    """A session on a service that lists some models, and the bodies of the requests for chat completions."""
    sessions = []

    def connect(cards, answer=lambda body: httpx.Response(200, json=completion())):
        bodies = []

        def respond(request):
            if request.url.path.endswith("/models"):
                return httpx.Response(200, json={"object": "list", "data": cards})
            if not request.url.path.endswith("/chat/completions"):
                return httpx.Response(404)
            bodies.append(json.loads(request.content))
            return answer(bodies[-1])

        session = Session(Settings(home=tmp_path), http=HttpClient(httpx.MockTransport(respond), backoff=0))
        sessions.append(session)
        session.connect("http://gpu.example")
        session.model(MODEL)
        return session, bodies

    yield connect
    for session in sessions:
        session.close()


def ids_of(body):
    return [message.get("token_ids") for message in body["messages"]]


def test_the_first_ratio_is_one_on_every_turn_of_a_conversation(practice_service, tmp_path):
    with closing(Session(Settings(home=tmp_path, service=practice_service.address), http=practice_service.http)) as lab:
        # at a high temperature, a text is often tokenized otherwise than it was sampled
        chats = lab.chat("five", FIVE_TURNS, over=[{"n": n} for n in range(8)], n=4, temperature=1.5, seed=1)
        assert sum(len(trajectory.choices) == 5 for trajectory in chats.trajectories) > 24
        values = iter(range(len(chats.trajectories)))
        lab.reward("five", lambda answer: float(next(values) % 4), cache=False)
        first = lab.train("five", say=lambda _: None).wait().metrics().iloc[0]
    assert first.ratio_mean == pytest.approx(1, abs=1e-3)
    assert first.ratio_max == pytest.approx(1, abs=1e-3)


def test_token_ids_go_to_a_service_that_lists_that_it_reads_them(remote):
    session, bodies = remote([card(reads=["token_ids"])])
    session.chat("c", "user: a\nassistant:\nuser: b")
    assert [ids_of(body) for body in bodies] == [[None], [None, [5], None]]


@pytest.mark.parametrize(
    "cards", [[card()], [card(reads=["images"])], [card(reads=["token_ids"]), card(id="n")], [card(reads=None)]]
)
def test_no_token_ids_go_to_other_services(remote, cards):
    session, bodies = remote(cards)
    session.chat("c", "user: a\nassistant:\nuser: b")
    assert [ids_of(body) for body in bodies] == [[None], [None, None, None]]


def test_a_service_with_another_vocabulary_gets_the_texts_alone(remote):
    def answer(body):
        if any(ids_of(body)):
            message = "messages.1.token_ids: these are not the tokens of the message"
            return httpx.Response(400, json={"error": {"message": message}})
        return httpx.Response(200, json=completion())

    session, bodies = remote([card(reads=["token_ids"])], answer)
    chats = session.chat("c", "user: a\nassistant:\nuser: b")
    assert [ids_of(body) for body in bodies] == [[None], [None, [5], None], [None, None, None]]
    assert [message["role"] for message in chats.trajectories[0].messages] == ["user", "assistant"] * 2


def test_the_service_reads_the_token_ids_of_a_message(service):
    [choice] = service.chat(seed=1, max_tokens=4).choices
    ids = [token.token_id for token in choice.sampled_tokens()]
    asked = {"role": "user", "content": "hello"}
    answered = {"role": "assistant", "content": choice.message.content, "token_ids": ids}
    assert service.chat(messages=[asked, answered, asked], max_tokens=4).choices
    with pytest.raises(RefusedError, match=r"messages\.1\.token_ids: these are not the tokens of the message"):
        service.chat(messages=[asked, answered | {"content": "another text"}, asked])
    with pytest.raises(RefusedError, match=r"messages\.1\.token_ids: not all of them are in the policy's vocabulary"):
        service.chat(messages=[asked, answered | {"token_ids": [10**9]}, asked])
