"""Conversations turn by turn: what is asked, what becomes of each answer, and what happens to those that fail."""

import asyncio
import contextlib
import dataclasses
import gc
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from rolloutlab.api.http.retries import Retries
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.errors import (
    BrokenOffError,
    ConflictError,
    InputError,
    LabError,
    RefusedError,
    SamplingError,
    ServiceError,
    SignInError,
    UnreachableError,
)
from rolloutlab.sampling.chat_player import make_record
from rolloutlab.sampling.plan import SamplingRun, plan_again, plan_continuation, plan_new, plan_resume
from rolloutlab.sampling.preview import Preview
from rolloutlab.sampling.rollout import RolloutRunner
from rolloutlab.sampling.run import open_writer
from rolloutlab.sampling.tools import Tools
from rolloutlab.sampling.writer import TrajectoryWriter
from rolloutlab.store.lab import Lab

Answer = Callable[[ChatRequest], list[dict[str, Any]]]


def say(content: str | None = "Paris", finish: str = "stop", **message: Any) -> dict[str, Any]:
    """One choice."""
    return {"finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}


def call(name: str, _id: str = "c", **arguments: Any) -> dict[str, Any]:
    """One choice that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return say(None, "tool_calls", tool_calls=[{"id": _id, "type": "function", "function": function}])


def completion(choices: list[dict[str, Any]], **overrides: Any) -> ChatCompletion:
    numbered = [{"index": i, **choice} for i, choice in enumerate(choices)]
    record = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": numbered}
    return ChatCompletion.model_validate(record | overrides)


class Scripted:
    """Answers requests; remembers them in the order in which they came."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.requests: list[ChatRequest] = []

    async def complete(self, request: ChatRequest) -> ChatCompletion:
        self.requests.append(request)
        await asyncio.sleep(0)
        return completion(self._answer(request))

    def said(self, i: int = -1) -> list[str]:
        """The texts of the messages of a request."""
        return [str(message.to_wire().get("content")) for message in self.requests[i].messages]


def echo(request: ChatRequest) -> list[dict[str, Any]]:
    return [say(f"{request.messages[-1].content}!") for _ in range(request.n)]


@pytest.fixture
def lab(tmp_path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.close()


@pytest.fixture
def play(lab):
    """Plays work against answers, and gives the service and the arrivals."""

    def run(work: SamplingRun, answer: Answer = echo, concurrency: int = 4) -> tuple[Scripted, TrajectoryWriter]:
        service, arrivals = Scripted(answer), open_writer(lab, work)
        player = RolloutRunner(
            work.plan,
            work.groups,
            service.complete,
            work.tools,
            partial(make_record, work),
            arrivals.take,
            arrivals.fail,
        )
        with closing(arrivals):
            asyncio.run(player.play(work.rollouts, concurrency))
        return service, arrivals

    return run


ROWS = [{"c": "France"}, {"c": "Peru"}]
SETTINGS = {"model": "lab/practice", "n": 3, "seed": 7}


def new(prompt="user: {{c}}?", over=ROWS, tools=(), system=None, name="capitals", **settings):
    return plan_new(name, prompt, over, system, {}, SETTINGS | settings, Tools(tools))


def trajectories(lab, label="capitals", **options):
    return [t for group in lab.groups(lab.collection(label), **options) for t in group.trajectories]


def answers(lab, label="capitals"):
    return [t.answer for t in trajectories(lab, label)]


def test_a_group_is_sampled_by_one_request_for_n_completions(play, lab):
    service, _ = play(new())
    assert [(r.n, r.seed, r.logprobs) for r in service.requests] == [(3, 7, True), (3, 8, True)]
    assert answers(lab) == ["France?!"] * 3 + ["Peru?!"] * 3


def test_settings_that_are_not_given_are_not_sent(play):
    service, _ = play(new())
    assert {"max_tokens", "stop", "tools"}.isdisjoint(service.requests[0].to_wire())
    service, _ = play(new(max_tokens=5, stop="\n", system="Be brief."))
    assert (service.requests[0].max_tokens, service.requests[0].stop) == (5, ["\n"])
    assert service.said(0) == ["Be brief.", "France?"]


def test_more_than_128_completions_of_a_prompt_take_several_requests_with_seeds_of_their_own(play, lab):
    service, _ = play(new(over=None, prompt="x", n=300))
    assert [r.n for r in service.requests] == [128, 128, 44]
    assert len({r.seed for r in service.requests}) == 3
    assert len(answers(lab)) == 300


def test_a_service_that_gives_fewer_completions_than_asked_is_asked_for_the_rest(play, lab):
    service, _ = play(new(over=None, prompt="x"), lambda request: [say()])
    assert [r.n for r in service.requests] == [3, 1, 1]
    assert [t.name for t in trajectories(lab)] == ["capitals/0/0", "capitals/0/1", "capitals/0/2"]


def test_a_service_that_gives_more_completions_than_asked_is_taken_at_its_word_no_further(play, lab):
    play(new(over=None, prompt="x", n=1), lambda request: [say("a"), say("b")])
    assert answers(lab) == ["a"]


def test_the_policy_answers_at_each_empty_assistant_message_and_at_the_end(play, lab):
    service, _ = play(new("user: {{c}}?\nassistant:\nuser: why {{c}}?", n=2))
    assert Counter(r.n for r in service.requests) == {2: 2, 1: 4}
    assert service.said(-1) == ["Peru?", "Peru?!", "why Peru?"]
    first = trajectories(lab)[0]
    assert [m["content"] for m in first.messages] == ["France?", "France?!", "why France?", "why France?!"]
    assert len(first.choices) == 2


def test_later_turns_of_a_group_have_seeds_of_their_own(play):
    service, _ = play(new("user: a\nassistant:\nuser: b", over=None))
    assert len({r.seed for r in service.requests}) == len(service.requests)


def test_a_conversation_that_has_begun_comes_before_one_that_has_not(play):
    service, _ = play(new("user: {{c}}?\nassistant:\nuser: why?", n=1), concurrency=1)
    assert [service.said(i)[0] for i in range(4)] == ["France?", "France?", "Peru?", "Peru?"]


def test_an_answer_cut_off_by_the_token_limit_ends_its_conversation_and_says_so(play, lab):
    play(new("user: a\nassistant:\nuser: b", over=None, n=1), lambda request: [say("long", "length")])
    (found,) = trajectories(lab)
    assert (found.answer, found.finish_reason) == ("long", "length")
    assert "1 turn early" in found.extra["logs"][0]


def weather(city: str, days: int = 1) -> dict:
    """Forecast for a city.

    Args:
        city: where
    """
    if city == "Atlantis":
        raise KeyError("no such place")
    return {"city": city, "days": days}


def with_weather(city="Paris", times=1):
    def answer(request):
        calls = sum(message.role == "tool" for message in request.messages)
        return [call("weather", city=city)] * request.n if calls < times else [say("sunny")] * request.n

    return answer


def test_tools_are_offered_called_and_their_results_recorded(play, lab):
    service, _ = play(new(over=None, prompt="x", n=2, tools=[weather]), with_weather())
    assert service.requests[0].tools[0].function.name == "weather"
    first, second = trajectories(lab)
    assert [m["role"] for m in first.messages] == ["user", "assistant", "tool", "assistant"]
    assert first.messages[2]["content"] == '{"city":"Paris","days":1}'
    assert (first.answer, len(first.choices), "logs" in first.extra) == ("sunny", 2, False)
    assert first.extra["tools"][0]["function"]["parameters"]["properties"]["city"]["description"] == "where"
    assert second.answer == "sunny"


def test_an_error_in_a_tool_is_what_the_policy_reads_and_is_recorded(play, lab):
    play(new(over=None, prompt="x", n=1, tools=[weather]), with_weather("Atlantis"))
    (found,) = trajectories(lab)
    assert found.messages[2]["content"] == "error: KeyError: 'no such place'"
    assert found.extra["logs"] == ["weather failed: KeyError: 'no such place'"]
    assert found.answer == "sunny"


def test_a_policy_that_calls_tools_for_ever_is_ended_after_so_many_answers_in_a_row(play, lab):
    service, _ = play(new(over=None, prompt="x", n=1, tools=[weather], max_turns=3), with_weather(times=99))
    assert len(service.requests) == 3
    (found,) = trajectories(lab)
    assert found.extra["logs"] == ["ended after 3 answers in a row that called tools"]


def test_calls_without_tools_of_ours_are_an_answer_like_any_other(play, lab):
    play(new(over=None, prompt="x", n=1), lambda request: [call("weather", city="Paris")])
    assert [t.finish_reason for t in trajectories(lab)] == ["tool_calls"]


def test_a_request_that_fails_leaves_the_others_and_resume_samples_only_what_is_missing(play, lab):
    def refuse_peru(request):
        if "Peru" in str(request.messages[0].content):
            raise RefusedError("too long")
        return echo(request)

    _, arrivals = play(new(), refuse_peru)
    with pytest.raises(SamplingError, match=r"3 of 6 completions of capitals:1 failed.*too long") as failed:
        arrivals.check()
    assert failed.value.hint == "%%chat capitals:1 --resume"
    assert answers(lab) == ["France?!"] * 3
    assert lab.collection("capitals").missing == 3
    service, _ = play(plan_resume(lab, "capitals", Tools()))
    assert [(r.n, r.seed) for r in service.requests] == [(3, 8)]
    assert answers(lab) == ["France?!"] * 3 + ["Peru?!"] * 3
    assert lab.collection("capitals").missing == 0
    service, _ = play(plan_resume(lab, "capitals", Tools()))
    assert service.requests == []


def test_a_conversation_cut_short_goes_on_where_it_was(play, lab):
    def fail_second(request):
        if len(request.messages) > 1:
            raise ServiceError("busy")
        return echo(request)

    play(new("user: a\nassistant:\nuser: b", over=None, n=2), fail_second)
    assert trajectories(lab) == []
    assert [(t.answer, t.pending) for t in trajectories(lab, unfinished=True)] == [("a!", 1)] * 2
    service, _ = play(plan_resume(lab, "capitals", Tools()))
    assert [service.said(i) for i in range(2)] == [["a", "a!", "b"]] * 2
    assert answers(lab) == ["b!", "b!"]


def test_a_tool_call_left_open_is_answered_when_it_is_resumed(play, lab):
    def fail_after_tool(request):
        if len(request.messages) > 1:
            raise ServiceError("busy")
        return with_weather()(request)

    play(new(over=None, prompt="x", n=1, tools=[weather]), fail_after_tool)
    with pytest.raises(InputError, match="capitals was sampled with the tools weather") as wrong:
        plan_resume(lab, "capitals", Tools())
    assert wrong.value.hint == "--tools weather"
    play(plan_resume(lab, "capitals", Tools([weather])), with_weather())
    assert answers(lab) == ["sunny"]


def test_when_all_fail_their_services_own_error_is_told_and_no_collection_is_left(play, lab):
    def refuse(request):
        raise RefusedError("no such option")

    _, arrivals = play(new(), refuse)
    with pytest.raises(RefusedError, match="no such option"):
        arrivals.check()
    assert lab.collections() == []


def test_when_nothing_but_errors_comes_it_gives_up_early(play, lab):
    asked = []

    def refuse(request):
        asked.append(request)
        raise RefusedError("no such option")

    with pytest.raises(RefusedError):
        play(new(over=[{"c": i} for i in range(100)]), refuse, concurrency=2)
    assert len(asked) < 12


def test_a_service_that_is_gone_ends_it_at_once_and_what_had_arrived_stays(play, lab):
    def die(request):
        if "Peru" in str(request.messages[0].content):
            raise UnreachableError("gone")
        return echo(request)

    with pytest.raises(UnreachableError):
        play(new(), die, concurrency=1)
    assert answers(lab) == ["France?!"] * 3


class Unsteady:
    """A service that answers the first request, has the next three under way, and then is away for some tries.

    refusals: how many tries fail with the error; after so many as `released`, what is under way is answered.
    """

    def __init__(self, error: ServiceError, refusals: int, released: int) -> None:
        self._error = error
        self._refusals = refusals
        self._released_after = released
        self._released = asyncio.Event()
        self.sent: list[int] = []

    async def complete(self, request: ChatRequest) -> ChatCompletion:
        number = int(str(request.messages[0].content))
        self.sent.append(number)
        if number in {1, 2, 3}:
            await self._released.wait()
        elif number and self.refused < self._refusals:
            if self.refused + 1 == self._released_after:
                asyncio.get_running_loop().call_soon(self._released.set)
            self.refused += 1
            raise self._error
        await asyncio.sleep(0)
        return completion(echo(request))

    refused = 0


@pytest.fixture
def play_unsteady(lab):
    """Plays twelve prompts, four at once, against an unsteady service."""

    def run(service: Unsteady, retries: Retries | None) -> TrajectoryWriter:
        work = new("user: {{c}}", over=[{"c": i} for i in range(12)], n=1)
        arrivals = open_writer(lab, work)
        player = RolloutRunner(
            work.plan,
            work.groups,
            service.complete,
            work.tools,
            partial(make_record, work),
            arrivals.take,
            arrivals.fail,
            retries,
        )
        with closing(arrivals):
            asyncio.run(player.play(work.rollouts, concurrency=4))
        return arrivals

    return run


def test_a_service_that_is_away_for_a_while_costs_nothing_and_is_sent_nothing_new_meanwhile(play_unsteady, lab):
    service = Unsteady(UnreachableError("refused"), refusals=6, released=3)
    play_unsteady(service, Retries(4, 0.0)).check()
    assert service.sent[:11] == [0, 1, 2, 3, *[4] * 7]
    assert sorted(answers(lab)) == sorted(f"{i}!" for i in range(12))


@pytest.mark.parametrize(("error", "tries"), [(UnreachableError("refused"), 16), (SignInError("401"), 1)])
def test_when_a_service_stays_away_what_was_under_way_is_taken_before_it_ends(play_unsteady, lab, error, tries):
    service = Unsteady(error, refusals=99, released=tries)
    with pytest.raises(type(error)):
        play_unsteady(service, Retries(4, 0.0))
    assert sorted(answers(lab)) == ["0!", "1!", "2!", "3!"]
    assert service.sent == [0, 1, 2, 3, *[4] * tries]


def test_an_answer_that_breaks_off_costs_only_its_own_conversations(play, lab):
    def break_off(request):
        if "Peru" in str(request.messages[0].content):
            raise BrokenOffError("gone")
        return echo(request)

    _, arrivals = play(new(), break_off, concurrency=1)
    with pytest.raises(SamplingError, match=r"3 of 6 completions of capitals:1 failed.*gone"):
        arrivals.check()
    assert answers(lab) == ["France?!"] * 3


def test_answers_that_come_together_are_stored_together_and_count_once_they_are(lab):
    together: list[int] = []

    async def answer(request):
        return completion(echo(request))

    def take(answered):
        assert arrivals.done == sum(together)
        arrivals.take(answered)
        together.append(len(answered))

    work = new(over=[{"c": i} for i in range(40)], n=1)
    arrivals = open_writer(lab, work)
    player = RolloutRunner(work.plan, work.groups, answer, work.tools, partial(make_record, work), take, arrivals.fail)
    asyncio.run(player.play(work.rollouts, concurrency=8))
    assert (arrivals.done, sum(together), lab.collection("capitals").trajectories) == (40, 40, 40)
    assert len(together) < 40


def test_what_cannot_be_stored_ends_it(lab):
    async def answer(request):
        return completion(echo(request))

    def take(answered):
        raise LabError("the disk is full")

    work = new()
    writer = open_writer(lab, work)
    player = RolloutRunner(work.plan, work.groups, answer, work.tools, partial(make_record, work), take, writer.fail)
    with pytest.raises(LabError):
        asyncio.run(player.play(work.rollouts, concurrency=2))


@pytest.mark.parametrize("error", [None, UnreachableError("gone")])
def test_python_looks_for_garbage_as_before_once_it_is_over(play, error):
    seen = []

    def answer(request):
        seen.append(gc.get_threshold()[0])
        if error:
            raise error
        return echo(request)

    before = gc.get_threshold()
    with pytest.raises(UnreachableError) if error else contextlib.nullcontext():
        play(new(), answer)
    assert gc.get_threshold() == before
    assert seen[0] > before[0]


def test_python_looks_for_garbage_as_before_when_the_later_of_two_runs_is_over(lab):
    async def both() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def answer(request):  # of the earlier run, which waits for the beginning of the later one
            await begun.wait()
            return completion(echo(request))

        async def answer_later(request):
            begun.set()
            await ended.wait()
            return completion(echo(request))

        async def run(name, complete):
            work = new(name=name, over=ROWS[:1])
            with closing(open_writer(lab, work)) as writer:
                player = RolloutRunner(
                    work.plan, work.groups, complete, work.tools, partial(make_record, work), writer.take, writer.fail
                )
                await player.play(work.rollouts, 1)

        earlier, later = (asyncio.create_task(run(*each)) for each in (("a", answer), ("b", answer_later)))
        await earlier
        ended.set()
        await later

    before = gc.get_threshold()
    asyncio.run(both())
    assert gc.get_threshold() == before


def test_every_conversation_of_a_collection_goes_on_in_a_new_generation(play, lab):
    play(new())
    service, _ = play(plan_continuation(lab, "capitals", "user: and {{c}}?", {}, {"model": "m", "seed": 1}, Tools()))
    assert len(service.requests) == 6
    assert service.said(0) == ["France?", "France?!", "and France?"]
    assert answers(lab, "capitals:1") == ["France?!"] * 3 + ["Peru?!"] * 3
    assert answers(lab, "capitals:2") == ["and France?!"] * 3 + ["and Peru?!"] * 3
    assert lab.collection("capitals").plan["continues"] == "capitals:1"


def test_a_continuation_that_was_interrupted_is_resumed(play, lab):
    play(new())

    def only_france(request):
        if "Peru" in str(request.messages[0].content):
            raise ServiceError("busy")
        return echo(request)

    play(plan_continuation(lab, "capitals", "user: why?", {}, {"model": "m"}, Tools()), only_france)
    assert (answers(lab), lab.collection("capitals").missing) == (["why?!"] * 3, 3)
    play(plan_resume(lab, "capitals", Tools()))
    assert (answers(lab), lab.collection("capitals").missing) == (["why?!"] * 6, 0)


def test_a_dry_run_shows_the_first_request_and_how_many_there_are():
    shown = Preview(new(system="Be brief."))
    assert (shown.requests, shown.trajectories) == (2, 6)
    assert "6 trajectories, beginning with 2 requests" in repr(shown)
    assert '"content": "France?"' in repr(shown)
    one = Preview(new(over=ROWS[:1], n=1))
    assert "1 trajectory, beginning with 1 request; the first:" in repr(one)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n": 0}, "n: 0 is below 1"),
        ({"temperature": 3.0}, "temperature: 3.0 is outside 0 to 2"),
        ({"top_p": 0.0}, r"top_p: 0.0 is outside 0 \(exclusive\) to 1"),
        ({"max_tokens": -1}, "max_tokens: -1 is below 1"),
        ({"n": 1.5}, "n: 1.5 is not an integer"),
        ({"stop": ["a"] * 5}, "are more than 4"),
        ({"stop": ""}, "stop: '' is empty"),
        ({"seed": "x"}, "seed: 'x' is not an integer"),
    ],
)
def test_a_setting_out_of_range_is_refused_with_its_range(settings, said):
    with pytest.raises(InputError, match=said):
        new(**settings)


@pytest.mark.parametrize("prompt", ["assistant:\nuser: a", "user: a\nassistant:\nassistant:\nuser: b"])
def test_a_policy_is_not_asked_to_answer_nothing(prompt):
    with pytest.raises(InputError, match="a completion has no message before it"):
        new(prompt)


def test_a_system_message_is_given_once():
    with pytest.raises(InputError, match="a system message of its own"):
        new("system: a\nuser: b", system="c")


def stepped(step):
    return lambda request: [{**choice, "policy_version": step} for choice in echo(request)]


def test_what_is_resumed_is_answered_by_the_checkpoint_that_began(play, lab):
    def only_france(request):
        if "Peru" in str(request.messages[0].content):
            raise ServiceError("busy")
        return stepped(2)(request)

    play(new(), only_france)
    service, _ = play(plan_resume(lab, "capitals", Tools()), stepped(2))
    assert [request.model for request in service.requests] == ["lab/practice@2"]
    assert {t.step for t in trajectories(lab)} == {2}
    assert {t.model for t in trajectories(lab)} == {"lab/practice"}


@pytest.mark.parametrize("model", ["practice", "lab/practice@1", "wandb-artifact:///a/b/c:step1"])
def test_a_model_that_names_its_checkpoint_or_has_none_is_asked_as_it_is(play, lab, model):
    def fail(request):
        raise ServiceError("busy")

    play(new(model=model, n=1), lambda request: stepped(1)(request) if "France" in service_text(request) else fail(0))
    service, _ = play(plan_resume(lab, "capitals", Tools()))
    assert [request.model for request in service.requests] == [model]


def service_text(request) -> str:
    return str(request.messages[0].content)


def test_a_continuation_has_the_tools_and_the_settings_of_its_beginning(play, lab):
    play(new(over=None, prompt="x", n=1, tools=[weather], temperature=0.5, max_tokens=7), with_weather())
    for wrong in (Tools(), Tools([weather, service_text])):
        with pytest.raises(InputError, match="capitals was sampled with the tools weather") as refused:
            plan_continuation(lab, "capitals", "user: more", {}, {"model": "m"}, wrong)
        assert refused.value.hint == "--tools weather"
    work = plan_continuation(lab, "capitals", "user: more", {}, {"model": "m", "max_tokens": 9}, Tools([weather]))
    service, _ = play(work, with_weather(times=1))
    assert (service.requests[0].temperature, service.requests[0].max_tokens) == (0.5, 9)
    assert trajectories(lab)[0].extra["tools"][0]["function"]["name"] == "weather"


def test_a_collection_without_tools_does_not_go_on_with_some(play, lab):
    play(new())
    with pytest.raises(InputError, match="capitals was sampled without tools"):
        plan_continuation(lab, "capitals", "user: more", {}, {"model": "m"}, Tools([weather]))


def test_the_same_prompts_are_sampled_again_with_the_same_tools(play, lab):
    play(new(over=None, prompt="x", n=1, tools=[weather]), with_weather())
    with pytest.raises(InputError, match="with the tools weather"):
        plan_again(lab, "capitals", "again", "m", None, {}, None, Tools())
    again = plan_again(lab, "capitals", "again", "m@3", None, {}, None, Tools([weather]))
    service, _ = play(again, with_weather())
    assert (service.requests[0].model, service.requests[0].seed) == ("m@3", 7)


def test_conversations_keep_their_places_when_they_go_on_and_what_was_missing_is_still(play, lab):
    def not_the_first(request):
        if "France" in service_text(request):
            raise ServiceError("busy")
        return echo(request)

    play(new(), not_the_first)
    play(plan_continuation(lab, "capitals", "user: why?", {}, {"model": "m"}, Tools()))
    assert [t.name for t in trajectories(lab)] == [f"capitals/1/{i}" for i in range(3)]
    assert lab.collection("capitals").missing == 3


def test_a_conversation_that_the_service_refuses_to_go_on_with_ends_there(play, lab):
    def too_long(request):
        if len(request.messages) > 1:
            raise RefusedError("the prompt is longer than the context")
        return echo(request)

    _, arrivals = play(new("user: a\nassistant:\nuser: b", over=None, n=2), too_long)
    arrivals.check()
    assert [(t.answer, t.extra["logs"]) for t in trajectories(lab)] == [
        ("a!", ["ended: the prompt is longer than the context"])
    ] * 2
    assert lab.collection("capitals").missing == 0


def test_a_collection_is_sampled_by_one_at_a_time(play, lab, tmp_path):
    def fail(request):
        if "Peru" in service_text(request):
            raise ServiceError("busy")
        return echo(request)

    play(new(), fail)
    first = open_writer(lab, plan_resume(lab, "capitals", Tools()))
    with pytest.raises(ConflictError, match="capitals is being sampled by another kernel"):
        open_writer(lab, plan_resume(lab, "capitals", Tools()))
    first.close()
    play(plan_resume(lab, "capitals", Tools()))
    assert lab.collection("capitals").missing == 0
    assert [path.name for path in (tmp_path / "sampling").iterdir()] == ["lock"]


def test_the_hint_after_a_failure_names_the_tools(play, lab):
    def fail(request):
        if "Peru" in service_text(request):
            raise ServiceError("busy")
        return echo(request)

    _, arrivals = play(new(tools=[weather]), fail)
    with pytest.raises(SamplingError) as failed:
        arrivals.check()
    assert failed.value.hint == "%%chat capitals:1 --resume --tools weather"


def test_an_interrupt_between_two_turns_says_that_what_was_sampled_is_kept(play, lab):
    def fail_second(request):
        if len(request.messages) > 1:
            raise ServiceError("busy")
        return echo(request)

    _, arrivals = play(new("user: a\nassistant:\nuser: b", over=None, n=2), fail_second)
    assert (
        arrivals.describe_kept()
        == "0 of 2 completions had arrived; what was sampled is kept -> %%chat capitals:1 --resume"
    )


def test_a_trajectory_of_two_checkpoints_says_so_on_the_wire(play, lab):
    play(new(over=None, prompt="x", n=1), stepped(2))
    play(plan_continuation(lab, "capitals", "user: why?", {}, {"model": "m"}, Tools()), stepped(3))
    (found,) = trajectories(lab)
    sent = dataclasses.replace(found, reward=1.0).to_wire()
    assert (sent.initial_policy_version, sent.final_policy_version) == (2, 3)


def test_a_setting_that_does_not_exist_is_named():
    with pytest.raises(InputError, match="there is no setting 'temprature'") as wrong:
        new(temprature=1)
    assert wrong.value.hint == "temperature"
