"""Token ids of earlier turns: what was sampled is read and trained as it was sampled, on every turn."""

import json
from contextlib import closing

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.chat import (
    AssistantMessage,
    Choice,
    ChoiceLogprobs,
    CompletionMessage,
    TokenLogprob,
    UserMessage,
)
from rolloutlab.errors import RefusedError
from rolloutlab.service.endpoints import earlier_turns
from rolloutlab.service.endpoints.earlier_turns import EarlierTurns
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
        chats = lab.chat("five", FIVE_TURNS, over=[{"n": n} for n in range(2)], n=4, temperature=1.5, seed=1)
        assert sum(len(trajectory.choices) == 5 for trajectory in chats.trajectories) > 6
        values = iter(range(len(chats.trajectories)))
        lab.reward("five", lambda answer: float(next(values) % 4), cache=False)
        first = lab.train("five", say=lambda _: None).wait().metrics().iloc[0]
    assert first.ratio_mean == pytest.approx(1, abs=1e-3)
    assert first.ratio_max == pytest.approx(1, abs=1e-3)


def test_the_first_ratio_is_one_on_every_turn_also_where_a_stop_string_left_a_turn_empty(practice_service, tmp_path):
    with closing(Session(Settings(home=tmp_path, service=practice_service.address), http=practice_service.http)) as lab:
        over = [{"n": n} for n in range(3)]
        chats = lab.chat("five", FIVE_TURNS, over=over, n=4, temperature=1.5, seed=1, stop=["a", "\n"], max_tokens=12)
        empty = [t for t in chats.trajectories if any(not choice.message.content for choice in t.choices[:-1])]
        assert empty
        later = [choice for trajectory in chats.trajectories for choice in trajectory.choices[1:]]
        assert all(isinstance(choice.model_extra["continues"], bool) for choice in later)
        values, number = iter(range(12)), len(chats.trajectories)
        lab.reward("five", lambda answer: float(next(values) % 4), cache=False)
        check = lab.check("five").to_frame()
        job = lab.train("five", {"learning_rate": 0.0}, say=lambda _: None).wait()
        [report] = [event.data for event in job.events() if event.type == "preflight"]
        steps = [event.data for event in job.events() if event.type == "gradient_step"]
    assert report["sequences"] == check["sequences"].sum()
    assert report["trainable_trajectories"] == number == 12
    ratios = [step[name] for step in steps for name in ("ratio_mean", "ratio_max")]
    assert ratios == pytest.approx([1] * len(ratios), abs=1e-3)


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


NOT_OF_MESSAGE = "token_ids: these are not the tokens of the message"


def refusing(*names):
    """Answers that refuse the token ids of these messages, all in one error."""

    def answer(body):
        wrong = [name for name in names if len(ids_of(body)) > name and ids_of(body)[name]]
        if wrong:
            message = "; ".join(f"messages.{name}.{NOT_OF_MESSAGE}" for name in wrong)
            return httpx.Response(400, json={"error": {"message": message}})
        return httpx.Response(200, json=completion())

    return answer


def test_a_service_with_another_vocabulary_gets_the_texts_alone(remote):
    session, bodies = remote([card(reads=["token_ids"])], refusing(1))
    chats = session.chat("c", "user: a\nassistant:\nuser: b")
    assert [ids_of(body) for body in bodies] == [[None], [None, [5], None], [None, None, None]]
    assert [message["role"] for message in chats.trajectories[0].messages] == ["user", "assistant"] * 2


def test_refused_token_ids_are_left_out_and_the_others_are_sent(remote):
    session, bodies = remote([card(reads=["token_ids"])], refusing(1, 3))
    chats = session.chat("c", "\nassistant:\n".join(f"user: {each}" for each in "abcd"))
    assert [ids_of(body) for body in bodies[-2:]] == [
        [None, [5], None, [5], None, [5], None],
        [None, None, None, None, None, [5], None],
    ]
    assert len(bodies) == 1 + 2 + 2 + 2
    marks = [(choice.model_extra or {}).get("continues") for choice in chats.trajectories[0].choices]
    assert marks == [None, False, False, None]  # the last one as the service has marked it
    assert len(chats.trajectories[0].choices) == 4


def test_a_service_that_names_no_message_gets_no_token_ids(remote):
    def answer(body):
        if any(ids_of(body)):
            return httpx.Response(400, json={"error": {"message": "token_ids: wrong"}})
        return httpx.Response(200, json=completion())

    session, bodies = remote([card(reads=["token_ids"])], answer)
    session.chat("c", "user: a\nassistant:\nuser: b\nassistant:\nuser: c")
    assert [ids_of(body) for body in bodies][-2:] == [[None, [5], None, [5], None], [None] * 5]
    assert len(bodies) == 5


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


def talk(service, number, stream=False, **options):
    """Three turns of a client that keeps roles and texts alone of a conversation, and its answers for a job."""
    messages, items = [], []
    for question in (f"a {number}", "b", "c"):
        messages.append({"role": "user", "content": question})
        sent = {"messages": messages, "temperature": 1.5, "seed": number, "max_tokens": 12, **options}
        if stream:
            answer, tokens = "", []
            for chunk in service.stream(**sent):
                for each in chunk.choices:
                    answer += each.delta.content or ""
                    tokens += each.logprobs.content if each.logprobs else []
            choice = {"message": {"role": "assistant", "content": answer}, "finish_reason": "stop", "index": 0}
            choice["logprobs"] = {"content": [each.to_wire() for each in tokens]}
        else:
            sampled = service.chat(**sent).choices[0].to_wire()
            choice = {name: sampled[name] for name in ("finish_reason", "index", "message", "logprobs")}
        items += [messages[-1], choice]
        messages = [*messages, {"role": "assistant", "content": choice["message"]["content"]}]
    return {"messages_and_choices": items, "reward": float(number % 2)}


@pytest.mark.parametrize("stream", [False, True])
def test_the_first_ratio_is_one_also_for_clients_that_send_texts_alone(practice_service, stream):
    model = practice_service.register(f"texts-{stream}")
    group = {"trajectories": [talk(practice_service, number, stream) for number in range(16)]}
    wanted = {"model_id": str(model.id), "trajectory_groups": [group]}
    events = practice_service.ended(practice_service.call("POST", "/v1/preview/training-jobs", json=wanted)["id"])
    first = next(event.data for event in events if event.type == "gradient_step")
    assert not of_type(events, "drift")
    assert first["num_trainable_tokens"] > 150
    assert first["ratio_max"] == pytest.approx(1, abs=1e-3)


def train(service, name, trajectories):
    """The job of one group for a model, and its events."""
    model = service.register(name)
    wanted = {"model_id": str(model.id), "trajectory_groups": [{"trajectories": trajectories}]}
    return service.ended(service.call("POST", "/v1/preview/training-jobs", json=wanted)["id"])


def of_type(events, kind):
    return [event.data for event in events if event.type == kind]


def test_a_job_says_how_much_was_sampled_after_a_text_that_the_service_had_to_tokenize_again(
    practice_service, monkeypatch
):
    monkeypatch.setattr(earlier_turns, "_MAX_TOKENS", 0)  # it forgets at once, as at its end
    events = train(practice_service, "forgotten", [talk(practice_service, number) for number in range(16)])
    (drift,) = of_type(events, "drift")
    assert of_type(events, "gradient_step")[0]["ratio_max"] > 1.5
    assert drift["tokens"] > 10
    assert 1 < drift["conversations"] <= 16
    (warning,) = drift["warnings"]
    assert warning.startswith(f"{drift['tokens']} tokens of later turns, in {drift['conversations']} of ")
    assert "were sampled after other tokens than they train after" in warning
    assert [event.type for event in events].index("drift") < [event.type for event in events].index("gradient_step")


def test_a_job_of_turns_of_an_older_checkpoint_says_nothing_of_their_prompts(practice_service):
    talks = [talk(practice_service, number) for number in range(32)]
    for _ in range(2):
        assert not of_type(train(practice_service, "older", talks), "drift")


def test_answers_of_one_text_and_other_tokens_are_continued_in_turn():
    earlier = EarlierTurns(lambda message: True)
    question = UserMessage(role="user", content="?")
    for ids in ([1, 2], [3], [1, 2]):
        tokens = [TokenLogprob(token="", token_id=i, logprob=-1.0, top_logprobs=[]) for i in ids]
        message = CompletionMessage(role="assistant", content="yes")
        choice = Choice(finish_reason="stop", index=0, message=message, logprobs=ChoiceLogprobs(content=tokens))
        earlier.add([question], [choice])
    sent = [question, AssistantMessage(role="assistant", content=" yes"), question]
    assert [earlier.restore(sent)[1].token_ids for _ in range(3)] == [[1, 2], [3], [1, 2]]
    assert earlier.restore([question, question, *sent[1:]])[2].token_ids is None
    thought = AssistantMessage(role="assistant", content="yes", reasoning_content="of its own")
    assert earlier.restore([question, thought])[1].token_ids is None


def test_a_client_gets_the_tokens_of_no_other_text(practice_service):
    first = practice_service.chat("a", seed=1, temperature=1.5)
    other = {"role": "assistant", "content": f"{first.choices[0].message.content} changed"}
    sent = [{"role": "user", "content": "a"}, other, {"role": "user", "content": "b"}]
    assert "continues" not in practice_service.chat(messages=sent).choices[0].model_extra
