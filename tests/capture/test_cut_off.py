"""Programs at services that stream in forms of their own, refuse calls, or cost more than a budget has."""

import asyncio
import json
import threading
from contextlib import suppress

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import BudgetError, ConflictError, LabError, RolloutlabError, SamplingError
from rolloutlab.session import Session
from rolloutlab.settings import Address, Price, Settings
from tests.paid import Paid
from tests.sampling_services import URL, SamplingService

ROWS = [{"x": i} for i in range(8)]
HEAD = {"object": "chat.completion.chunk", "created": 1, "model": "team/small"}
AZURE = {
    "id": "", "object": "", "created": 0, "model": "", "choices": [],
    "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}],
}  # fmt: skip


@pytest.fixture
def at(tmp_path):
    """Makes sessions at a service, each over the same lab."""
    made = []

    def connect(service) -> Session:
        address = Address(URL, f"{URL}/v1", None, prices={"team/small": Price(100.0, 200.0)}, kind="openai")
        http = HttpClient(httpx.MockTransport(service), backoff=0)
        made.append(Session(Settings(home=tmp_path, service=address), http=http))
        made[-1].model("team/small")
        return made[-1]

    yield connect
    for session in made:
        session.close()


def asking(text, **body):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 100, **body}


def trajectories(collection):
    return [trajectory for group in collection.groups for trajectory in group.trajectories]


class Service(SamplingService):
    """It refuses prompts that begin with "refuse", and streams chunks with these ids; None is no id."""

    models = ("team/small",)

    def __init__(self, *ids, before=()):
        super().__init__()
        self.ids, self.before = ids, before

    def refuses(self, body):
        text = body["messages"][-1]["content"]
        return (400, {"error": {"message": "the context is too long"}}) if text.startswith("refuse") else None

    def _stream(self, body):
        deltas = [{"role": "assistant", "content": "he"}, {"content": "llo"}, {}]
        choices = [{"index": 0, "delta": delta, "finish_reason": None if delta else "stop"} for delta in deltas]
        heads = [HEAD if name is None else {**HEAD, "id": name} for name in self.ids]
        chunks = [*self.before, *({**head, "choices": [each]} for head, each in zip(heads, choices, strict=True))]
        events = "".join(f"data: {json.dumps(each)}\n\n" for each in [*chunks]).encode()
        return (
            events[: events.index(b"\n\n") + 2]
            if body["messages"][-1]["content"] == "cut"
            else events + b"data: [DONE]\n\n"
        )


@pytest.mark.parametrize("through", ["the client", "http"])
@pytest.mark.parametrize(
    "service",
    [
        Service("c", "c", "c", before=[AZURE]),
        Service("c1", "c2", "c3"),
        Service("c1", None, None),
        Service("c1", "c1", ""),
        Service(None, None, None),
    ],
    ids=["an empty one first", "new ones", "the first only", "an empty one last", "none"],
)
def test_a_stream_is_whole_whatever_ids_its_chunks_have(at, service, through):
    seen = []

    async def solve(row, client):
        if through == "http":
            async with httpx.AsyncClient() as http:
                url = f"{client.base_url}/chat/completions"
                lines = (await http.post(url, json=asking("hi", stream=True))).text.split("\n\n")[:-2]
            chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
        else:
            stream = await client.chat.completions.create(**asking("hi", stream=True))
            chunks = [chunk.to_wire() async for chunk in stream]
        seen.append({chunk["id"] for chunk in chunks})
        return float("".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "hello")

    [made] = trajectories(at(service).rollouts("p", solve))
    assert (made.reward, made.answer) == (1.0, "hello")
    assert [len(ids) for ids in seen] == [1]


def test_a_program_that_hides_every_refusal_is_told_the_refusal(at):
    async def solve(row, client):
        with suppress(RolloutlabError):
            await client.chat.completions.create(**asking("refuse"))
        return 0.0

    with pytest.raises(SamplingError, match=r"no call .* was answered; its last call failed: .* context is too long"):
        at(Service()).rollouts("p", solve)


def test_a_program_whose_requests_are_invalid_is_told_why_and_not_of_the_address(at):
    async def solve(row, client):
        with suppress(RolloutlabError):
            await client.chat.completions.create(**asking("x", n=0))

    with pytest.raises(SamplingError, match="its last call failed: n: Input should be greater") as caught:
        at(Service()).rollouts("p", solve)
    assert caught.value.hint is None


@pytest.mark.parametrize("reward", [1.0, None])
def test_a_rollout_whose_last_call_failed_is_not_stored_as_whole(at, reward):
    async def solve(row, client):
        await client.chat.completions.create(**asking("one"))
        with suppress(RolloutlabError):
            async for _ in await client.chat.completions.create(**asking("cut", stream=True)):
                pass
        return reward

    [made] = trajectories(at(Service("c", "c", "c")).rollouts("p", solve))
    assert (made.extra["metadata"]["episode_end"], made.reward) == ("error", None)
    failed, *dropped = made.extra["logs"]
    assert failed == "its last call failed: ServiceError: the response broke off before its end"
    assert dropped == ([] if reward is None else ["the reward 1 that the program returned after that is not kept"])


def test_an_agent_that_ends_where_its_context_is_full_keeps_its_reward(at):
    async def solve(row, client):
        await client.chat.completions.create(**asking("one"))
        with suppress(RolloutlabError):
            await client.chat.completions.create(**asking("refuse"))
        return 1.0

    [made] = trajectories(at(Service()).rollouts("p", solve))
    assert (made.extra["metadata"]["episode_end"], made.reward) == ("done", 1.0)
    assert made.extra["logs"][0].startswith("its last call failed: RefusedError: ")


def test_a_rollout_that_went_on_after_a_refusal_is_whole(at):
    async def solve(row, client):
        with suppress(RolloutlabError):
            await client.chat.completions.create(**asking("refuse"))
        await client.chat.completions.create(**asking("shorter"))
        return 1.0

    [made] = trajectories(at(Service()).rollouts("p", solve))
    assert (made.extra["metadata"]["episode_end"], made.reward) == ("done", 1.0)


# of 100 tokens, a request to `Paid` may cost $0.13, and costs $0.02


async def hides(row, client):
    """Asks four times, whatever happens."""
    for i in range(4):
        with suppress(RolloutlabError):
            await client.chat.completions.create(**asking(f"{row['x']} {i}"))
    return 1.0


async def ends_small(row, client):
    """Asks with a long prompt, and with a short one if that may cost too much."""
    for text in ("long" * 1000, "short"):
        with suppress(RolloutlabError):
            await client.chat.completions.create(**asking(text))
    return 1.0


def test_a_budget_that_a_program_hides_ends_the_run_and_no_rollout_is_stored_as_whole(at):
    session = at(service := Paid())
    with pytest.raises(BudgetError, match="2 of 8 rollouts had ended and are kept, 6 are not sampled yet") as caught:
        session.rollouts("p", hides, over=ROWS, budget=0.34, max_tokens=100, concurrency=1)
    assert caught.value.hint == "lab.resume('p:1', program=hides, budget=0.34)"
    assert {made.extra["metadata"]["episode_end"] for made in trajectories(session.collection("p"))} == {"done"}
    assert {body["messages"][0]["content"][0] for body in service.bodies} == {"0", "1", "2"}
    made = session.resume("p", program=hides, budget=3)
    assert [len(each.history_tokens) for each in trajectories(made)] == [4] * 8


def test_a_budget_that_a_program_hides_is_told_even_if_a_smaller_call_fits_after_that(at):
    with pytest.raises(BudgetError, match="nothing was sampled"):
        at(Paid()).rollouts("p", ends_small, budget=0.15, max_tokens=100)


def sessions_of(number, *, hidden):
    def run(row, client):
        for i in range(number):
            url, headers = f"{client.base_url}/chat/completions", {"X-Session-ID": f"s{i}"}
            answer = httpx.post(url, json=asking(f"q{i}"), headers=headers, timeout=240)
            if not hidden:
                answer.raise_for_status()

    return run


@pytest.mark.parametrize("hidden", [False, True])
def test_a_budget_that_ends_during_a_capture_is_told_with_what_goes_on(at, hidden):
    session = at(Paid())
    run = sessions_of(9, hidden=hidden)
    with pytest.raises(BudgetError, match="4 sessions with answers are kept") as caught:
        session.capture("e", run, budget=0.2, max_tokens=100)
    assert caught.value.hint == "lab.capture('e:1', run, resume=True, budget=0.2)"
    assert len(trajectories(session.collection("e"))) == 4
    assert eval(caught.value.hint.replace("0.2", "2"), {"lab": session, "run": run}).label == "e:1"


def test_a_bare_name_means_the_capture_that_was_interrupted(at, monkeypatch):
    session, ended = at(Service()), threading.Event()
    session.capture("e", sessions_of(1, hidden=False))
    session.capture("e", sessions_of(1, hidden=False))

    def run(row, client):
        sessions_of(2, hidden=False)(row, client)
        ended.set()
        threading.Event().wait(20)

    def tick(*_):
        if ended.is_set():
            raise KeyboardInterrupt

    monkeypatch.setattr("rolloutlab.widgets.progress.Progress.update", tick)
    with pytest.raises(KeyboardInterrupt):
        session.capture("e", run)
    assert session.collection("e").label == "e:3"


def test_after_an_interrupt_the_hint_has_the_budget_of_the_call(at, monkeypatch):
    session = at(Paid())

    async def solve(row, client):
        await client.chat.completions.create(**asking("so"))
        if row["x"]:
            await asyncio.Event().wait()

    def tick(*_):
        if session.store.collections():
            raise KeyboardInterrupt

    monkeypatch.setattr("rolloutlab.widgets.progress.Progress.update", tick)
    with pytest.raises(KeyboardInterrupt) as caught:
        session.rollouts("p", solve, over=ROWS, budget=5, max_tokens=100, concurrency=1)
    assert caught.value.__notes__[1] == "  -> lab.resume('p:1', program=solve, budget=5) samples the other 7"


class OneAtATime(Service):
    """It gives one choice of each request, and refuses the request with this number."""

    gives_n = False

    def __init__(self, refused=0):
        super().__init__()
        self.refused = refused

    def refuses(self, body):
        return (400, {"error": {"message": "bad"}}) if len(self.chats) == self.refused else None


def test_choices_that_came_before_a_refusal_of_the_rest_are_named(at):
    async def solve(row, client):
        with suppress(RolloutlabError):
            await client.chat.completions.create(**asking("x", n=4))
        await client.chat.completions.create(**asking("y"))
        return 1.0

    [made] = trajectories(at(OneAtATime(refused=4)).rollouts("p", solve))
    assert made.reward == 1.0
    [note] = made.extra["logs"]
    assert note.startswith("3 of 4 choices of a call came and are not kept: ")


class Generous(Service):
    """It gives a choice more than is wanted, also in a stream."""

    def __init__(self):
        super().__init__("c", "c", "c")

    def chat(self, body):
        return super().chat({**body, "n": body.get("n", 1) + 1})

    def _stream(self, body):
        extra = {"index": 1, "delta": {"content": "B"}, "finish_reason": "stop"}
        first = {**HEAD, "id": "c", "choices": [extra]}
        return f"data: {json.dumps(first)}\n\n".encode() + super()._stream(body)


SURPLUS = "1 choice more than requested came and is not kept"


@pytest.mark.parametrize("n", [1, 3])
def test_choices_that_a_chat_did_not_request_are_named(at, capsys, n):
    made = at(Generous()).chat("c", "hi", n=n, max_tokens=9)
    assert len(trajectories(made)) == n
    assert SURPLUS in capsys.readouterr().out


@pytest.mark.parametrize("stream", [False, True])
def test_choices_that_a_program_did_not_request_are_named_and_not_passed_on(at, capsys, stream):
    async def solve(row, client):
        if not stream:
            return float(len((await client.chat.completions.create(**asking("hi"))).choices))
        chunks = [chunk async for chunk in await client.chat.completions.create(**asking("hi", stream=True))]
        return float(1 + max(choice.index for chunk in chunks for choice in chunk.choices))

    [made] = trajectories(at(Generous()).rollouts("p", solve))
    assert made.reward == 1.0
    assert SURPLUS in capsys.readouterr().out
    at(Generous()).capture("e", solve)
    assert SURPLUS in capsys.readouterr().out


@pytest.mark.parametrize("begun", [0, 1])
def test_answers_that_come_while_the_disk_is_full_are_counted_and_not_as_kept(at, capsys, monkeypatch, begun):
    service, first = OneAtATime(), threading.Event()

    async def answer(request):
        if service.taken and begun:
            await asyncio.to_thread(first.wait, 240)
        return service(request)

    session = at(answer)
    put_all = session.store.put_all

    def full(placed):
        if first.is_set() or not begun:
            raise LabError("the disk is full")
        put_all(placed)
        first.set()

    monkeypatch.setattr(session.store, "put_all", full)
    with pytest.raises(LabError, match="the disk is full"):
        session.chat("c", "user: {{x}}", over=ROWS, concurrency=1, max_tokens=9)
    kept = "1 of 8 completions had arrived; what was sampled is kept; " if begun else ""
    lost = len(service.taken) - begun
    what = "completion" if lost == 1 else "completions"
    assert f"{kept}{lost} {what} more could not be stored" in capsys.readouterr().out


def test_rollouts_that_all_end_with_an_error_are_counted_with_the_reason_of_the_first(at, capsys):
    async def solve(row, client):
        await client.chat.completions.create(**asking("x"))
        raise RuntimeError("out of luck")

    assert len(trajectories(at(Service()).rollouts("p", solve, over=ROWS[:3]))) == 3
    told = "3 of 3 rollouts ended early, without a reward; the first: ended by RuntimeError: out of luck"
    assert told in capsys.readouterr().out


def test_a_command_that_calls_nothing_is_told_the_variables_that_it_has(at):
    with pytest.raises(SamplingError, match="no call of the program was answered") as caught:
        at(Service()).rollouts("p", ["true"])
    assert caught.value.hint == "OPENAI_BASE_URL and OPENAI_API_KEY are what it has to use"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_outlives_its_rollout_is_told_that_the_rollout_has_ended(at, stream):
    asked, go_on, told = threading.Event(), threading.Event(), []
    service = Service("c", "c", "c")

    async def slow(request):
        if b"slow" in request.content:
            asked.set()
            await asyncio.to_thread(go_on.wait, 240)
        return service(request)

    async def call(client):
        answer = await client.chat.completions.create(**asking("slow", stream=stream))
        return [chunk async for chunk in answer] if stream else answer

    async def late(client):
        with pytest.raises(ConflictError) as caught:
            await call(client)
        told.append(caught.value.message)

    left = []

    def solve(row, client):
        left.append(threading.Thread(target=lambda: asyncio.run(late(client))))
        left[0].start()
        asyncio.run(client.chat.completions.create(**asking("x")))
        assert asked.wait(240)
        return 1.0

    at(slow).rollouts("p", solve)
    left[0].join(240)
    go_on.set()
    assert told == ["the rollout of this key has ended"]
