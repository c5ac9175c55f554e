"""Services that only sample: what they refuse is left out, their models are selected by any name, nothing trains."""

import json

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import RefusedError, ServiceError
from rolloutlab.magics import register
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings
from tests import sampling_services as services
from tests.magics.conftest import Notebook

CHAT = "%%chat answers -n 4 --over countries --max-tokens 8 --seed 1\nCapital of {{country}}?"
REWARD = "%%reward answers\nreturn float(len(answer))"


@pytest.fixture
def at(bare, tmp_path):
    """A notebook that is connected to a stand-in, with its first model selected."""
    sessions = []

    def make(service, select=True):
        http = HttpClient(httpx.MockTransport(service), backoff=0)
        sessions.append(Session(Settings(home=tmp_path), http=http))
        register(bare, sessions[-1])
        bare.user_ns["countries"] = [{"country": "France"}, {"country": "Peru"}, {"country": "Mali"}]
        notebook = Notebook(bare)
        notebook.run(f"%connect {services.URL}")
        if select:
            notebook.run(f"%model {service.models[0]}")
        return notebook

    yield make
    for session in sessions:
        session.close()


@pytest.mark.parametrize("kind", services.EVERY, ids=lambda kind: kind.__name__)
def test_each_completion_is_sampled_once_whatever_is_refused(at, kind):
    service = kind()
    notebook = at(service)
    collection = notebook.run(CHAT)
    assert [len(group.trajectories) for group in collection.groups] == [4, 4, 4]
    assert len({t.answer for t in collection.trajectories}) == 12
    sampled = [body for body in service.taken if body.get("max_tokens") != 1]  # others try which field is refused
    assert sum(body.get("n", 1) if service.gives_n else 1 for body in sampled) == 12
    assert len(service.taken) - len(sampled) <= 2
    assert collection.missing == 0


class Ending(services.SamplingService):
    """Its answers end with these reasons, in turn; for the last one for ever."""

    def __init__(self, *reasons, **message):
        super().__init__()
        self.reasons, self.message = list(reasons), message

    def _choice(self, body, i):
        reason = self.reasons.pop(0) if len(self.reasons) > 1 else self.reasons[0]
        choice = super()._choice(body, i)
        return {**choice, "finish_reason": reason, "message": {**choice["message"], **self.message}}


TALK = "%%chat answers -n 2\nuser: a\nassistant:\nuser: b"


def test_an_answer_that_the_service_broke_off_is_cut_off_and_ends_its_conversation(at):
    notebook = at(Ending("abort", "stop"))
    collection = notebook.run(TALK)
    broken, whole = collection.trajectories
    assert (broken.finish_reason, len(broken.choices), len(whole.choices)) == ("length", 1, 2)
    why = "ended 1 turn early: the last answer is incomplete"
    assert broken.extra["logs"] == ["the service broke off this answer (abort)", why]
    assert "logs" not in whole.extra
    assert "[the service broke off this answer (abort)]" in repr(collection)
    assert "broken off by the service" in collection._repr_html_()


def test_an_answer_that_a_content_filter_ended_is_called_that(at):
    notebook = at(Ending("SAFETY", "stop", content=None))
    filtered, whole = notebook.run(TALK).trajectories
    assert (filtered.finish_reason, len(filtered.choices), len(whole.choices)) == ("content_filter", 1, 2)
    assert filtered.extra["logs"][0] == "the service's content filter ended this answer (SAFETY)"


@pytest.mark.parametrize("reason", ["error", "network_error"])
def test_an_answer_that_ended_in_an_error_is_a_failed_request_and_sampled_again(at, reason):
    service = Ending("stop", reason, "stop")
    notebook = at(service)
    collection = notebook.run("%%chat answers -n 2\nx")
    assert [t.finish_reason for t in collection.trajectories] == ["stop", "stop"]
    assert [body.get("n", 1) for body in service.taken] == [2, 1]
    service.reasons = [reason]
    with pytest.raises(ServiceError, match=f"the service broke off the answer: it gives '{reason}' as its reason"):
        notebook.run("%%chat others -n 2\nx")


@pytest.mark.parametrize("content", [None, ""])
def test_an_answer_that_was_broken_off_before_its_first_token_is_a_failed_request(at, content):
    notebook = at(Ending("abort", content=content, reasoning_content=None))
    with pytest.raises(ServiceError, match="it gives 'abort' as its reason, and no text"):
        notebook.run("%%chat answers -n 2\nx")


def test_the_error_that_openrouter_puts_into_a_choice_is_shown(at):
    class OpenRouter(Ending):
        def _choice(self, body, i):
            return {**super()._choice(body, i), "error": {"code": 502, "message": "upstream went away"}}

    notebook = at(OpenRouter("error"))
    with pytest.raises(ServiceError, match="the service broke off the answer: upstream went away"):
        notebook.run("%%chat answers\nx")


ERRORS = {
    "openai": {"error": {"message": "upstream is busy", "code": "busy"}},
    "text": {"error": "upstream is busy"},
    "vllm": {"object": "error", "message": "upstream is busy", "type": "Internal", "code": 1},
    "msg": {"code": 1113, "msg": "upstream is busy", "success": False},
    "errors": {"errors": [{"message": "upstream is busy"}], "choices": None},
    "google": [{"error": {"message": "upstream is busy", "status": "UNAVAILABLE"}}],
}


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_that_comes_with_200_keeps_its_message(at, error, streamed):
    service = services.SamplingService()
    notebook = at(service)
    service.chat = lambda body: httpx.Response(200, json=ERRORS[error])
    with pytest.raises(ServiceError, match="upstream is busy"):
        notebook.run("%%chat answers -n 1\nx" if streamed else "%%chat answers -n 2\nx")


def test_the_status_of_an_error_that_comes_with_200_counts(at):
    service = services.SamplingService()
    notebook = at(service)
    service.chat = lambda body: httpx.Response(200, json={"error": {"message": "too long", "code": 413}})
    with pytest.raises(RefusedError, match="too long"):
        notebook.run("%%chat answers -n 2\nx")


TEMPORARY = {
    "429": {"error": {"message": "Rate limit exceeded", "code": 429}},
    "text": {"error": {"message": "Rate limit exceeded", "code": "429"}},
    "502": {"error": {"message": "upstream went away", "code": 502}},
    "google": [{"error": {"message": "overloaded", "code": 503, "status": "UNAVAILABLE"}}],
}


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("error", TEMPORARY)
def test_an_error_that_comes_with_200_is_retried_as_its_own_status_is(at, error, streamed):
    service = services.SamplingService()
    notebook, chat, left = at(service), service.chat, [TEMPORARY[error]] * 2
    service.chat = lambda body: httpx.Response(200, json=left.pop()) if left else chat(body)
    collection = notebook.run("%%chat answers -n 1\nx" if streamed else "%%chat answers -n 2\nx")
    assert collection.missing == 0
    assert len(service.taken) == 1


def test_an_error_that_comes_with_200_for_ever_is_told_in_the_end(at):
    service, asked = services.SamplingService(), []
    notebook = at(service)
    service.chat = lambda body: asked.append(body) or httpx.Response(200, json=TEMPORARY["502"])
    with pytest.raises(ServiceError, match="502 upstream went away"):
        notebook.run("%%chat answers -n 2\nx")
    assert len(asked) == 4


class Calling(services.SamplingService):
    """Calls `look` with these calls, and answers what it was told; `seen` are the messages of its requests."""

    def __init__(self, *calls):
        super().__init__()
        self.calls = list(calls)
        self.seen = []

    def _choice(self, body, i):
        self.seen.append(body["messages"])
        choice = super()._choice(body, i)
        if body["messages"][-1]["role"] == "tool":
            return {**choice, "message": {**choice["message"], "tool_calls": []}}
        return {**choice, "finish_reason": "tool_calls", "message": {"role": "assistant", "tool_calls": self.calls}}


def look(place="", **more):
    return {"type": "function", "function": {"name": "look", "arguments": json.dumps({"at": place})}, **more}


CALLS = {
    "no id": [look("a"), look("b")],
    "empty id": [look("a", id=""), look("b", id="")],
    "null id": [look("a", id=None), look("b", id=None)],
    "one id": [look("a", id="call_0"), look("b", id="call_0")],
    "no type": [look("a", id="1", type=None), look("b", id="2", type="")],
    "objects": [{"function": {"name": "look", "arguments": {"at": place}}} for place in "ab"],
}


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("calls", CALLS)
def test_calls_without_an_id_or_type_of_their_own_are_called_and_answered(at, calls, n):
    service = Calling(*CALLS[calls])
    notebook = at(service)
    notebook.shell.user_ns["look"] = lambda at: f"at {at}"
    notebook.shell.user_ns["look"].__name__ = "look"
    notebook.shell.user_ns["look"].__annotations__ = {"at": str}
    collection = notebook.run(f"%%chat answers -n {n} --tools look\nx")
    for trajectory in collection.trajectories:
        asking, first, second, _ = trajectory.items[1:]
        ids = [call.id for call in asking.message.tool_calls]
        assert len(set(ids)) == 2
        assert all(ids)
        assert [(each.tool_call_id, each.content) for each in (first, second)] == [(ids[0], "at a"), (ids[1], "at b")]


def test_an_empty_list_of_calls_is_none(at):
    service = Calling(look("a", id="1"))
    notebook = at(service)
    notebook.run("def look(at: str) -> str:\n    return at")
    collection = notebook.run("%%chat answers -n 2 --tools look\nx")
    assert "tool_calls" not in collection.trajectories[0].choices[-1].message.to_wire()
    notebook.run("%%chat answers --continue --tools look\nuser: and?")
    assert [message.get("tool_calls") for message in service.seen[-1] if message["role"] == "assistant"][1] is None


def test_a_call_without_arguments_has_none(at):
    service = Calling({"id": "1", "type": "function", "function": {"name": "look"}})
    notebook = at(service)
    notebook.run("def look() -> str:\n    return 'dark'")
    collection = notebook.run("%%chat answers -n 2 --tools look\nx")
    assert collection.trajectories[0].items[2].content == "dark"


@pytest.mark.parametrize("kind", services.EVERY, ids=lambda kind: kind.__name__)
def test_what_was_refused_once_is_not_sent_again(at, kind):
    service = kind()
    notebook = at(service)
    notebook.run(CHAT)
    service.chats.clear()
    service.taken.clear()
    notebook.run(CHAT)
    assert service.chats == service.taken


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        (services.VLLM, "gives no logprobs: its completions can be judged and compared, but not trained on"),
        (services.Ollama, "gives no logprobs: its completions can be judged and compared, but not trained on"),
        (services.LlamaCpp, "does not take n\n"),
        (services.Reasoning, "gives no logprobs and does not take max_tokens: its completions can be judged"),
        (services.Groq, "gives no logprobs and does not take n: its completions can be judged"),
        (services.Wordless, "gives no logprobs and does not take seed: its completions can be judged"),
        (services.LMStudio, ""),
    ],
)
def test_what_is_lacking_is_said_once(at, kind, note, capsys):
    notebook = at(kind())
    capsys.readouterr()
    notebook.run(CHAT)
    shown = capsys.readouterr().out
    assert note in shown
    assert shown.count(services.URL) == bool(note)
    notebook.run(CHAT)
    assert services.URL not in capsys.readouterr().out


def test_a_temperature_that_a_person_chose_is_not_left_out(at):
    service = services.Reasoning()
    notebook = at(service)
    error = notebook.error("%%chat answers -n 2 --temperature 0.5\nhello")
    assert "'temperature' does not support 0.5 with this model" in error
    assert service.taken == []


def test_a_single_streamed_completion_is_sampled_too(at):
    service = services.Groq()
    notebook = at(service)
    [only] = notebook.run("%%chat answers\nhello").trajectories
    assert only.answer == "yes 1.0"
    assert service.taken[-1]["stream"]


@pytest.mark.parametrize("kind", [services.Groq, services.Mistral, services.LlamaCpp])
def test_a_conversation_goes_on_without_the_reasoning_that_is_refused(at, kind):
    service = kind()
    notebook = at(service)
    talk = notebook.run("%%chat talk -n 3\nuser: hello\nassistant:\nuser: and then?")
    assert [len(t.items) for t in talk.trajectories] == [4, 4, 4]
    assert [[m["role"] for m in t.messages] for t in talk.trajectories] == [["user", "assistant"] * 2] * 3


def test_an_interrupted_collection_is_resumed_to_its_number(at):
    class Breaks(services.LlamaCpp):
        broken = True

        def refuses(self, body):
            if self.broken and len(self.taken) >= 5:
                return 400, services.openai_error("the prompt is flagged")
            return super().refuses(body)

    service = Breaks()
    notebook = at(service)
    assert "of 12 completions of answers:1 failed" in notebook.error(CHAT)
    assert 0 < sum(len(g.trajectories) for g in notebook.lab.collection("answers").groups) < 12
    service.broken = False
    resumed = notebook.run("%%chat answers --resume\n")
    assert [len(group.trajectories) for group in resumed.groups] == [4, 4, 4]
    assert len({t.answer for t in resumed.trajectories}) == 12


def test_training_is_refused_with_the_reason(at):
    notebook = at(services.Groq())
    notebook.run(CHAT)
    notebook.run(REWARD)
    for cell in ("%%train answers", "%%train answers --budget 1", "%%train answers --sft --budget 1"):
        assert notebook.error(cell) == (
            f"NotOfferedError: {services.URL} samples only: it trains no models\n"
            "  -> %connect embedded, or another service that trains"
        )
    assert "no sampled tokens with logprobs" in repr(notebook.run("%%train answers --dry-run"))


def test_completions_without_logprobs_do_not_train_elsewhere(at, session, bare):
    notebook = at(services.Groq())
    notebook.run(CHAT)
    notebook.run(REWARD)
    lab = notebook.lab
    lab.settings = session.settings.__class__(home=lab.settings.home, service=session.settings.service)
    lab._connector.http = session._connector.http
    lab._models._chosen = "lab/practice"
    error = notebook.error("%%train answers")
    assert "NothingTrainsError: nothing in answers would train: 12 left out: no sampled tokens with logprobs" in error


def test_no_model_is_made_from_a_checkpoint_there(at):
    notebook = at(services.Groq())
    assert notebook.error("%model lab/second --from lab/practice@2") == (
        f"NotOfferedError: {services.URL} makes no models from checkpoints\n  -> %connect embedded"
    )


@pytest.mark.parametrize("name", services.Ollama.models)
def test_a_model_has_any_name_that_its_service_lists(at, name):
    notebook = at(services.Ollama(), select=False)
    assert repr(notebook.run(f"%model {name}")) == f"model {name}: sampled only: its service trains no models"
    notebook.run(CHAT)
    notebook.run(REWARD)
    assert {t.model for t in notebook.lab.collection("answers").trajectories} == {name}
    assert len(notebook.lab.search(where=f"model == {name!r}", k=0).hits) == 12
    assert name in notebook.run("%models").index


def test_views_and_files_have_such_a_name(at, tmp_path):
    notebook = at(services.Ollama())
    notebook.run(CHAT)
    notebook.run(REWARD)
    for view in ("%group answers/0", "%rewards answers", "%collections"):
        assert notebook.run(view) is not None
    path = tmp_path / "answers.jsonl"
    notebook.run(f"%export answers {path}")
    assert "qwen3:4b" in path.read_text()
    again = notebook.lab.files.import_(path, "again")
    assert {t.model for t in again.trajectories} == {"qwen3:4b"}


def test_a_name_that_is_not_listed_is_refused_with_the_closest(at):
    notebook = at(services.Ollama(), select=False)
    assert notebook.error("%model qwen3:4") == (
        f"NotFoundError: {services.URL} has no model 'qwen3:4'\n  -> %model qwen3:4b"
    )
    assert "has no model 'lab/practice'\n  -> %model qwen3:4b" in notebook.error(CHAT)
    assert notebook.lab.models.selected == "lab/practice"


@pytest.mark.parametrize("kind", [services.VLLM, services.LlamaCpp, services.Ollama, services.Reasoning])
def test_without_connect_the_service_is_known_to_sample_only_once_it_registers_nothing(kind, tmp_path, bare):
    service = kind()
    settings = Settings(home=tmp_path, service=Address(services.URL, f"{services.URL}/v1"))
    session = Session(settings, http=HttpClient(httpx.MockTransport(service), backoff=0))
    model = session.model(service.models[0])
    assert (model.name, model.steps, model.trains) == (service.models[0], (), False)
    assert len(session.chat("answers", "hello", n=3).trajectories) == 3
    session.close()


def test_it_is_connected_without_a_list_of_models(at):
    notebook = at(services.Unlisted(), select=False)
    state = repr(notebook.run("%connect"))
    assert "it samples, but does not train; it does not list its models" in state
    assert repr(notebook.run("%model any")) == "model any: sampled only: its service trains no models"


def test_a_judge_is_asked_without_what_its_model_refuses_and_its_cell_says_so(at, capsys):
    class Judge(services.Reasoning):
        models = ("qwen3:4b", "o4-mini")

        def refuses(self, body):
            return super().refuses(body) if body["model"] == "o4-mini" else None

        def _choice(self, body, i):
            choice = super()._choice(body, i)
            verdicts = '{"A": {"why": "w", "score": 1}, "B": {"why": "w", "score": 0}}'
            return choice | {"message": {"role": "assistant", "content": verdicts}}

    service = Judge()
    notebook = at(service)
    notebook.run("%%chat answers -n 2\nhello")
    capsys.readouterr()
    judged = notebook.run("%%reward answers --judge o4-mini --max-tokens 100\n")
    assert all(t.reward is not None for t in judged.trajectories)
    assert f"o4-mini at {services.URL}/v1 does not take max_tokens" in capsys.readouterr().out
    assert "temperature" not in service.taken[-1]


def test_the_rate_of_requests_and_the_length_of_a_prompt_are_no_refusals_of_a_field(at):
    class Strict(services.SamplingService):
        def refuses(self, body):
            return 400, services.openai_error("This model's maximum context length is 8192 tokens.")

    service = Strict()
    notebook = at(service)
    assert "maximum context length is 8192 tokens" in notebook.error("%%chat answers -n 2\nhello")
    assert service.taken == []
    assert len(service.chats) <= 3


def test_a_stream_that_is_refused_is_sampled_without_streaming(at):
    class NoStream(services.SamplingService):
        def refuses(self, body):
            return (400, services.openai_error("logprobs is not supported with stream")) if body.get("stream") else None

    service = NoStream()
    notebook = at(service)
    [only] = notebook.run("%%chat answers\nhello").trajectories
    assert only.tokens == 1  # its logprobs are there


def listing(body):
    """A service whose list of models is this."""

    class Listing(services.SamplingService):
        def listed(self):
            return httpx.Response(200, json=body)

    return Listing()


@pytest.mark.parametrize(
    "body",
    [{"models": [{"name": "qwen3:4b"}]}, {"object": "list", "data": None}, {"data": [{"id": None}, {"id": 5}]}, [], {}],
    ids=["names of another form", "null", "no names", "empty", "nothing"],
)
def test_a_list_that_is_none_is_treated_as_a_service_without_a_list(at, body, capsys):
    notebook = at(listing(body), select=False)
    assert "it does not list its models: %model NAME_OR_UUID selects one" in repr(notebook.run("%connect"))
    notebook.run("%model qwen3:4b")
    assert len(notebook.run(CHAT).trajectories) == 12
    shown = notebook.error("%models")
    assert shown.startswith("NotOfferedError: http://chat.example/v1 does not list its models")
    assert shown.endswith("-> %model NAME_OR_UUID, of a model that it has")
    assert "valid" not in shown


def test_one_bad_card_does_not_hide_the_other_models(at):
    cards = [{"id": "qwen3:4b", "object": None, "created": "yesterday", "owned_by": 7}, {"id": None}, {"id": 5}, 3]
    notebook = at(listing({"object": "list", "data": [*cards, {"id": "llama", "reads": "all"}]}))
    assert "; 2 models by name" in repr(notebook.run("%connect"))
    assert list(notebook.run("%models").index) == ["qwen3:4b", "llama"]
    assert len(notebook.run(CHAT).trajectories) == 12


def test_a_dry_run_where_nothing_trains_names_a_service_that_does(at):
    notebook = at(services.Ollama())
    notebook.run(CHAT)
    notebook.run(REWARD)
    first, *_, left_out = repr(notebook.run("%%train answers --dry-run")).splitlines()[1:4]
    assert first == "this service samples only and trains nothing -> %connect embedded, or another service that trains"
    assert left_out.endswith("-> %connect embedded, then %logprobs answers")


@pytest.mark.parametrize("name", ["nosuch:1b", "openai/gpt-5"])
def test_a_model_that_a_service_without_training_lacks_is_looked_up_in_its_list(at, name):
    notebook = at(services.SamplingService())
    shown = notebook.error(f"%%chat other -m {name}\nCapital of Peru?")
    assert shown.endswith("-> %models lists those that there are")


def test_a_cell_that_fails_says_what_was_refused_before_the_next_one_begins(at, capsys):
    class Failing(services.Groq):
        def refuses(self, body):
            return super().refuses(body) or ((400, {"detail": "no"}) if "Mali" in str(body["messages"]) else None)

    notebook = at(Failing())
    capsys.readouterr()
    notebook.error(CHAT + " Once more.")
    assert capsys.readouterr().out.count("gives no logprobs and does not take n") == 1
    notebook.run("%%chat answers\nCapital of Peru?")
    assert "gives no logprobs" not in capsys.readouterr().out


def answering(change):
    """A service whose first answer is changed so."""

    class Answering(services.SamplingService):
        def chat(self, body):
            whole = super().chat(body)
            return whole if len(self.chats) > 1 else httpx.Response(200, json=change(whole.json()))

    return Answering()


def of_message(**changes):
    """A change of the first message of an answer."""
    return lambda body: body["choices"][0]["message"].update(changes) or body


@pytest.mark.parametrize(
    "change",
    [of_message(content=7), of_message(content=[{"type": "image"}]), lambda body: {**body, "choices": []}, str],
    ids=["number", "image", "no choices", "text"],
)
def test_an_answer_that_cannot_be_read_is_not_taken_for_a_refusal_of_n(at, change):
    service = answering(change)
    notebook = at(service)
    assert "4 of 12 completions" in notebook.error(CHAT)
    notebook.run(CHAT)
    assert [body.get("n") for body in service.chats] == [4] * 6


PARTS = [{"type": "text", "text": "hello"}, {"type": "text", "text": " there"}]


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lambda body: {**body, "created": 1.5}, "yes 1.0"),
        (lambda body: {"choices": body["choices"]}, "yes 1.0"),
        (lambda body: body["choices"][0].update(finish_reason=None) or body, "yes 1.0"),
        (lambda body: body["choices"][0].pop("finish_reason") and body, "yes 1.0"),
        (of_message(content=PARTS), "hello there"),
        (lambda body: body["choices"][0]["message"].pop("role") and body, "yes 1.0"),
        (lambda body: body["choices"][0].update(index="0") or body, "yes 1.0"),
        (lambda body: (body["choices"][0].pop("index") and body) or body, "yes 1.0"),
    ],
    ids=["a fraction of a second", "choices alone", "null", "absent", "parts", "no role", "index of text", "no index"],
)
def test_an_answer_of_another_form_is_read_as_openais_clients_read_it(at, change, answer):
    first, *_ = at(answering(change)).run("%%chat answers -n 2\nhello").trajectories
    assert first.answer == answer
    assert first.tokens == 1  # with its logprobs


QUESTION = [{"type": "text", "text": "is it"}, {"type": "text", "text": " so?"}]
THOUGHTS = {
    "reasoning": {"type": "reasoning", "text": "is it so?"},
    "magistral": {"type": "thinking", "thinking": QUESTION, "closed": True},
    "anthropic": {"type": "thinking", "thinking": "is it so?", "signature": "x"},
    "summary": {"type": "reasoning", "summary": [{"type": "summary_text", "text": "is it so?"}]},
}


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("thought", THOUGHTS)
def test_reasoning_in_a_part_of_the_content_is_not_the_answer(at, thought, streamed):
    hidden = {"type": "redacted_thinking", "data": "x"}
    service = Ending("stop", content=[THOUGHTS[thought], hidden, *PARTS], reasoning_content=None)
    first, *_ = at(service).run(f"%%chat answers -n {1 if streamed else 2}\nhello").trajectories
    [choice] = first.choices
    assert first.answer == "hello there"
    assert choice.message.content == "hello there"
    assert choice.message.reasoning_content == "is it so?"
