"""Rollouts of programs, from `lab.rollouts` to what the lab holds."""

import asyncio
import json
import sys
import threading
import urllib.request
from contextlib import closing
from types import ModuleType

import pytest

from rolloutlab.errors import InputError, SamplingError, UnreachableError
from rolloutlab.session import Session

ROWS = [{"task": "one"}, {"task": "two"}]
PATIENCE = 240.0


async def never():
    """Waits until it is cancelled."""
    await asyncio.wait_for(asyncio.Event().wait(), PATIENCE)


async def asks(row, client):
    answer = await client.chat.completions.create(messages=[{"role": "user", "content": row["task"]}], max_tokens=4)
    return float(len(answer.choices[0].message.content or ""))


def trajectories(collection):
    return [trajectory for group in collection.groups for trajectory in group.trajectories]


def test_a_rollout_of_each_row_is_a_trajectory_with_tokens_and_the_reward_that_was_returned(session):
    made = session.rollouts("agent", asks, over=ROWS, n=3)
    assert [len(group.trajectories) for group in made.groups] == [3, 3]
    assert [group.prompt[0].content for group in made.groups] == ["one", "two"]
    for trajectory in trajectories(made):
        assert trajectory.reward == len(trajectory.choices[0].message.content or "")
        assert trajectory.tokens == len(trajectory.choices[0].sampled_tokens()) > 0
        assert trajectory.extra["metadata"] == {"episode_end": "done"}
        assert (trajectory.source, trajectory.step) == ("function", 0)
    assert len({trajectory.answer for trajectory in trajectories(made)}) > 2


def test_components_are_summed_and_none_leaves_the_reward_open(session):
    async def solve(row, client):
        await asks(row, client)
        return {"right": True, "brief": 0.5} if row["task"] == "one" else None

    made = session.rollouts("agent", solve, over=ROWS)
    one, two = trajectories(made)
    assert (one.reward, one.components) == (1.5, {"right": 1.0, "brief": 0.5})
    assert two.reward is None


@pytest.mark.parametrize("odd", ["\ud800", object(), b"\xff"])
def test_a_request_that_is_no_json_is_an_error_of_its_own(session, odd):
    async def solve(row, client):
        with pytest.raises(InputError, match="the body is not JSON"):
            await client.chat.completions.create(messages=[{"role": "user", "content": odd}])
        return await asks(row, client)

    (played,) = trajectories(session.rollouts("agent", solve, over=ROWS[:1]))
    assert played.extra["metadata"] == {"episode_end": "done"}


def test_a_plain_function_with_a_blocking_client_of_any_kind_is_captured(session):
    def solve(row, client):
        body = {"model": "any", "messages": [{"role": "user", "content": row["task"]}], "max_tokens": 3}
        headers = {"Authorization": f"Bearer {client.api_key}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{client.base_url}/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=240) as answer:
            assert "token_id" not in answer.read().decode()
        return 1

    made = session.rollouts("agent", solve, over=ROWS[:1], n=2)
    assert all(trajectory.tokens > 0 for trajectory in trajectories(made))


def test_conversations_continue_and_sub_agents_are_additional_histories(session):
    async def solve(row, client):
        messages = [{"role": "user", "content": "hello"}]
        first = await client.chat.completions.create(messages=messages, max_tokens=3)
        await asyncio.gather(*(asks({"task": name}, client) for name in ("left", "right")))
        messages += [first.choices[0].message, {"role": "user", "content": "so?"}]
        await client.chat.completions.create(messages=messages, max_tokens=3)

    [trajectory] = trajectories(session.rollouts("agent", solve))
    assert [getattr(item, "role", "sampled") for item in trajectory.items] == ["user", "sampled", "user", "sampled"]
    assert sorted(each.messages_and_choices[0].content for each in trajectory.additional) == ["left", "right"]
    assert trajectory.tokens == sum(trajectory.history_tokens) > 4


def test_a_stream_is_captured(session):
    async def solve(row, client):
        messages = [{"role": "user", "content": "hello"}]
        parts = [
            chunk.choices[0].delta.content or ""
            async for chunk in await client.chat.completions.create(messages=messages, max_tokens=5, stream=True)
        ]
        texts.append("".join(parts))

    texts = []
    [trajectory] = trajectories(session.rollouts("agent", solve))
    assert trajectory.choices[0].message.content == texts[0]
    assert trajectory.tokens > 0


def test_prompts_that_differ_within_a_group_leave_it_what_they_share(session):
    lock, seen = threading.Lock(), []

    async def solve(row, client):
        with lock:
            seen.append(None)
            text = f"number {len(seen)}"
        messages = [{"role": "system", "content": "same"}, {"role": "user", "content": text}]
        await client.chat.completions.create(messages=messages, max_tokens=3)

    [group] = session.rollouts("agent", solve, n=3).groups
    assert [message.content for message in group.prompt] == ["same"]
    texts = [trajectory.items[1].content for trajectory in group.trajectories]
    assert sorted(texts) == ["number 1", "number 2", "number 3"]
    assert [len(trajectory.items) for trajectory in group.trajectories] == [3, 3, 3]


def test_an_exception_ends_its_own_rollout_and_keeps_what_was_sampled(session):
    async def solve(row, client):
        await asks(row, client)
        if row["task"] == "one":
            raise ValueError("no such city")
        return 1.0

    one, two = trajectories(session.rollouts("agent", solve, over=ROWS))
    assert (one.reward, one.extra["metadata"]["episode_end"]) == (None, "error")
    [log] = one.extra["logs"]
    assert log.startswith("ended by ValueError: no such city (line ")
    assert two.reward == 1.0


@pytest.mark.parametrize("returned", ["yes", float("nan"), {"right": None}, [1]])
def test_what_is_no_reward_is_in_the_logs(session, returned):
    async def solve(row, client):
        await asks({"task": "x"}, client)
        return returned

    [trajectory] = trajectories(session.rollouts("agent", solve))
    assert (trajectory.reward, trajectory.extra["metadata"]["episode_end"]) == (None, "error")
    assert "no finite number" in trajectory.extra["logs"][0]


@pytest.mark.parametrize("returned", [{"a": 1e308, "b": 1e308}, {"a": -1e308, "b": -1e308}])
def test_components_whose_sum_is_no_number_are_no_reward(session, returned):
    async def solve(row, client):
        await asks({"task": "x"}, client)
        return returned

    [trajectory] = trajectories(session.rollouts("agent", solve))
    assert (trajectory.reward, trajectory.components) == (None, {})
    assert "more than a float can hold" in trajectory.extra["logs"][0]


@pytest.mark.parametrize("returned", [{"x" * 100 + "a": 1, "x" * 100 + "b": 2}, {chr(0xD800): 1, chr(0xD801): 2}])
def test_components_that_cannot_be_stored_under_names_of_their_own_are_no_reward(session, returned):
    async def solve(row, client):
        await asks({"task": "x"}, client)
        return returned

    [trajectory] = trajectories(session.rollouts("agent", solve))
    assert trajectory.reward is None
    assert "two components have the same name" in trajectory.extra["logs"][0]


class UnreadableError(Exception):
    def __str__(self):
        raise ValueError("no text")


class UnreadableMapping(dict):
    def items(self):
        raise UnreadableError


@pytest.mark.parametrize("fails", [True, False])
def test_an_exception_without_a_text_ends_its_own_rollout(session, fails):
    async def solve(row, client):
        await asks(row, client)
        if row["task"] == "one" and fails:
            raise UnreadableError
        return UnreadableMapping(a=1) if row["task"] == "one" else 1.0

    one, two = trajectories(session.rollouts("agent", solve, over=ROWS))
    assert (one.reward, one.extra["metadata"]["episode_end"]) == (None, "error")
    assert "UnreadableError" in one.extra["logs"][0]
    assert two.reward == 1.0


class EmptyError(Exception):
    def __len__(self):
        return 0


def test_an_exception_that_is_false_as_a_truth_value_ends_its_rollout_in_an_error(session):
    async def solve(row, client):
        await asks({"task": "x"}, client)
        raise EmptyError

    [trajectory] = trajectories(session.rollouts("agent", solve))
    assert trajectory.extra["metadata"]["episode_end"] == "error"
    assert "EmptyError" in trajectory.extra["logs"][0]


def test_what_a_program_writes_can_be_stored_and_exported(session, tmp_path):
    async def solve(row, client):
        await asks(row, client)
        if row["task"] == "one":
            raise ValueError("half \ud83d" + "x" * 5000)
        return {"half \ud83d": 1, "long" * 100: 1}

    made = session.rollouts("agent", solve, over=ROWS)
    one, two = trajectories(made)
    assert one.extra["logs"][0].startswith("ended by ValueError: half ?xx")
    assert len(one.extra["logs"][0]) < 1200
    assert [len(name) for name in two.components] == [6, 100]
    session.files.export("agent", tmp_path / "agent.jsonl")
    session.files.export("agent", tmp_path / "agent.parquet")
    made.to_frame().to_json(tmp_path / "frame.json")


@pytest.mark.parametrize("blocks", [True, False])
def test_a_rollout_that_hangs_or_blocks_is_ended_alone_and_its_key_with_it(session, blocks):
    clients, waited, over = [], [], threading.Event()

    async def solve(row, client):
        await asks(row, client)
        if row["task"] == "one":
            clients.append(client)
            if blocks:
                waited.append(over.wait(PATIENCE))
            await never()
        return 1.0

    try:
        one, two = trajectories(session.rollouts("agent", solve, over=ROWS, timeout=3.0))
        assert waited == []  # it was not waited for
    finally:
        over.set()
    assert (one.reward, one.extra["metadata"]["episode_end"]) == (None, "timeout")
    assert two.reward == 1.0
    with pytest.raises(Exception, match="has ended"):
        asyncio.run(asks({"task": "late"}, clients[0]))


def test_sys_exit_of_a_program_ends_its_rollout_alone(session):
    def solve(row, client):
        asyncio.run(asks(row, client))
        raise SystemExit(3)

    [trajectory] = trajectories(session.rollouts("agent", solve, over=ROWS[:1]))
    assert trajectory.extra["logs"][0].startswith("ended by SystemExit: 3")


def test_a_program_that_calls_nothing_is_an_error_that_says_what_to_use(session):
    with pytest.raises(SamplingError, match="no call of the program was answered") as caught:
        session.rollouts("agent", lambda row, client: 1.0)
    assert "client.base_url" in caught.value.hint
    assert session.collections().empty


def test_a_program_of_dspy_that_calls_nothing_is_told_of_the_cache(session, monkeypatch):
    monkeypatch.setitem(sys.modules, "dspy", ModuleType("dspy"))
    with pytest.raises(SamplingError, match="no call of the program was answered") as caught:
        session.rollouts("agent", lambda row, client: 1.0)
    assert caught.value.hint == "dspy.LM(..., cache=False): DSPy may have taken answers from its cache"


def test_rollouts_without_a_call_leave_the_others_and_resume_plays_them(session):
    fails = True

    async def solve(row, client):
        if fails and row["task"] == "two":
            raise RuntimeError("not today")
        return await asks(row, client)

    with pytest.raises(SamplingError, match=r"1 of 2 rollouts of agent:1 failed, the others are kept.*not today"):
        session.rollouts("agent", solve, over=ROWS)
    before = trajectories(session.collection("agent"))
    assert "1 trajectory of agent not sampled yet -> %%rollout agent --resume" in repr(session.check("agent"))
    fails = False
    after = trajectories(session.resume("agent", program=solve))
    assert [trajectory.name for trajectory in after] == ["agent/0/0", "agent/1/0"]
    assert after[0].items == before[0].items
    with pytest.raises(InputError, match="captured from solve, not asks"):
        session.resume("agent", program=asks)


def test_nothing_is_left_of_a_whole_collection_and_a_chat_is_not_resumed_by_a_program(session):
    session.rollouts("agent", asks, over=ROWS[:1])
    assert len(trajectories(session.resume("agent"))) == 1
    session.chat("talk", "Hi", max_tokens=2)
    with pytest.raises(InputError, match="talk was not captured from a program") as caught:
        session.resume("talk", program=asks)
    assert caught.value.hint == "%%chat talk --resume"


def test_the_time_out_of_a_collection_is_that_of_its_comparison_and_of_what_is_resumed(session):
    waits = False

    async def solve(row, client):
        if row["task"] == "two" and not waits:
            raise RuntimeError("not today")
        await asks(row, client)
        if row["task"] == "two":
            await never()
        return 1.0

    with pytest.raises(SamplingError):
        session.rollouts("agent", solve, over=ROWS, timeout=2)
    waits = True
    resumed = trajectories(session.resume("agent"))
    assert [trajectory.extra["metadata"]["episode_end"] for trajectory in resumed] == ["done", "timeout"]
    session.compare("agent", before=0, after=0)
    _, played = trajectories(session.collection("compare.agent.lab.practice.step0"))
    assert played.extra["logs"] == ["ended after 2 s, the time-out of a rollout"]


def test_what_scored_a_collection_of_a_program_scores_its_comparison(session):
    async def without_reward(row, client):
        await asks(row, client)

    session.rollouts("agent", without_reward, over=ROWS[:1])
    session.reward("agent", lambda answer: 0.25)
    session.compare("agent", before=0, after=0)
    assert [played.reward for played in trajectories(session.collection("compare.agent.lab.practice.step0"))] == [0.25]


def look_up(word: str) -> str:
    return word


@pytest.mark.parametrize("given", [{"prompt": "Say {task}"}, {"tools": [look_up]}])
def test_a_program_is_not_compared_over_another_prompt_or_with_tools(session, given):
    session.rollouts("agent", asks, over=ROWS[:1])
    with pytest.raises(InputError, match=f"takes no {next(iter(given))}"):
        session.compare("agent", before=0, after=0, **given)
    assert [each.name for each in session.store.collections()] == ["agent"]


def test_a_renamed_collection_keeps_its_program(session):
    session.rollouts("agent", asks, over=ROWS[:1])
    session.rename("agent", "renamed", say=lambda _: None)
    session.compare("renamed", before=0, after=0)
    assert len(trajectories(session.collection("compare.renamed.lab.practice.step0"))) == 1


@pytest.mark.parametrize("command", [True, False])
def test_a_program_that_a_notebook_has_not_run_is_typed_in_python(session, service, command):
    code = "import os, urllib.request; urllib.request.urlopen(urllib.request.Request(os.environ['OPENAI_BASE_URL'] + "
    code += """'/chat/completions', b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}')); print(1)"""
    program = [sys.executable, "-c", code] if command else asks
    made = session.rollouts("agent", program, over=ROWS[:1])
    with closing(Session(session.settings, http=service.http)) as lab:
        with pytest.raises(InputError, match="which this notebook has not run") as caught:
            lab.compare("agent", before=0, after=0)
        again = eval(caught.value.hint)
        assert again.label == made.label
        lab.compare("agent", before=0, after=0)


def test_an_interrupt_keeps_what_had_ended_and_resume_plays_the_rest(session, monkeypatch):
    stored, begun, played = threading.Event(), threading.Event(), []

    async def solve(row, client):
        await asks(row, client)
        played.append(row["task"])
        if row["task"] == "two" and not begun.is_set():
            begun.set()
            await asyncio.to_thread(stored.wait, 20)
            await never()
        return 1.0

    def tick(_progress, done, *_):
        if done == 1 and begun.is_set() and not stored.is_set():
            stored.set()
            raise KeyboardInterrupt

    monkeypatch.setattr("rolloutlab.widgets.progress.Progress.update", tick)
    with pytest.raises(KeyboardInterrupt) as caught:
        session.rollouts("agent", solve, over=ROWS)
    assert caught.value.__notes__[0] == "1 of 2 rollouts had ended and are kept"
    assert len(trajectories(session.collection("agent"))) == 1
    played.append("interrupted")
    assert len(trajectories(session.resume("agent", program=solve))) == 2
    assert played == ["one", "two", "interrupted", "two"] or played == ["two", "one", "interrupted", "two"]


def test_a_service_that_is_gone_ends_it_with_its_own_error(session, monkeypatch):
    from rolloutlab.sampling import sending

    async def away(*_):
        raise UnreachableError("nothing answers at http://127.0.0.1")

    monkeypatch.setattr(sending, "complete", away)
    with pytest.raises(UnreachableError, match="nothing answers"):
        session.rollouts("agent", asks, over=ROWS)
    assert session.collections().empty


def test_tokens_are_counted_where_the_service_reports_no_usage(session, monkeypatch):
    from rolloutlab.sampling import sending

    complete = sending.complete

    async def without_usage(*given):
        return (await complete(*given)).model_copy(update={"usage": None})

    monkeypatch.setattr(sending, "complete", without_usage)
    made = session.rollouts("agent", asks, over=ROWS)
    assert made.stored.completion_tokens == sum(t.tokens for t in trajectories(made)) > 0


def test_settings_replace_those_of_the_program_and_are_stored(session):
    made = session.rollouts("agent", asks, over=ROWS, max_tokens=2, temperature=0.5, seed=7)
    for trajectory in trajectories(made):
        assert trajectory.tokens <= 2
        assert trajectory.sampling == {"temperature": 0.5, "top_p": 1.0, "seed": 7}
    again = session.rollouts("agent", asks, over=ROWS, max_tokens=2, temperature=0.5, seed=7)
    assert [t.answer for t in trajectories(made)] == [t.answer for t in trajectories(again)]


def test_a_seed_of_the_program_is_the_same_within_a_rollout_and_not_in_all_of_them(session):
    async def solve(row, client):
        for _ in range(2):
            await client.chat.completions.create(messages=[{"role": "user", "content": "x"}], max_tokens=12, seed=3)

    [group] = session.rollouts("agent", solve, n=4).groups
    answers = [
        [history.messages_and_choices[1].message.content for history in t.histories()] for t in group.trajectories
    ]
    assert all(len(set(each)) == 1 for each in answers)
    assert len({each[0] for each in answers}) > 1


@pytest.mark.parametrize("call", [
    lambda session: session.resume("agent", tools=[asks]),
    lambda session: session.continue_chat("agent", "user: more"),
])  # fmt: skip
def test_what_samples_prompts_says_that_a_program_is_needed(session, call):
    session.rollouts("agent", asks, over=ROWS)
    with pytest.raises(InputError, match="captured from the program asks"):
        call(session)


@pytest.mark.parametrize("solve", [3, lambda: 1, lambda row: 1])
def test_what_is_no_function_of_row_and_client_is_refused(session, solve):
    with pytest.raises(InputError) as caught:
        session.rollouts("agent", solve)
    assert caught.value.hint == "async def solve(row, client): ..."


def test_the_service_key_is_not_what_a_program_gets(session):
    seen = []

    async def solve(row, client):
        seen.extend([client.api_key, client.base_url, repr(vars(client)), repr(client)])
        return await asks({"task": "x"}, client)

    session.rollouts("agent", solve)
    assert session.settings.service.token not in " ".join(seen)
