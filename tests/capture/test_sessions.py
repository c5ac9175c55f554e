"""Programs that run many samples: each session is a trajectory, and their results are its reward."""

import asyncio
import json
import sys
import threading
from concurrent.futures import wait
from functools import partial

import httpx
import pytest

from rolloutlab.cli.commands import main
from rolloutlab.errors import ConflictError, InputError, LabError, SamplingError
from rolloutlab.sampling import sending
from rolloutlab.sampling.writer import WHAT_IS_STORED
from rolloutlab.store.models import Score


def ask_once(client, session, text):
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4}
    url, headers = f"{client.base_url}/chat/completions", {"X-Session-ID": session}
    return httpx.post(url, json=body, headers=headers, timeout=240)


def evaluator(names, fail=False):
    """An evaluator of two prompts, which asks two questions in each session."""

    def run(row, client):
        assert row == {}
        for name in names:
            messages = [{"role": "user", "content": f"question {name[0]}"}]
            for _ in range(2):
                answer = httpx.post(
                    f"{client.base_url}/chat/completions",
                    json={"messages": messages, "max_tokens": 4},
                    headers={"X-Session-ID": name},
                    timeout=240,
                ).json()
                messages += [answer["choices"][0]["message"], {"role": "user", "content": "sure?"}]
        if fail:
            raise RuntimeError("out of luck")

    return run


def sessions(collection):
    return {t.extra["metadata"]["session"]: t for group in collection.groups for t in group.trajectories}


def test_each_session_is_a_trajectory_and_those_that_begin_alike_are_a_group(session):
    made = session.capture("eval", evaluator(["a1", "b1", "a2"]))
    assert [group.prompt[0].content for group in made.groups] == ["question a", "question b"]
    assert [len(group.trajectories) for group in made.groups] == [2, 1]
    for trajectory in sessions(made).values():
        assert [getattr(item, "role", "sampled") for item in trajectory.items] == ["user", "sampled"] * 2
        assert (trajectory.step, trajectory.reward) == (0, None)
    assert sessions(made)["a1"].answer != sessions(made)["a2"].answer


def test_results_are_joined_by_the_id_of_the_session(session, tmp_path):
    folder = tmp_path / "outputs" / "run"
    folder.mkdir(parents=True)
    lines = [
        {"id": "a1", "reward": 1, "rewards": {"right": 1.0}},
        {"trace_id": "a2", "rewards": {"right": 0, "brief": 0.5}},
        {"session_id": "b1", "reward": None},
        {"id": "of another run", "reward": 3.0},
    ]
    (folder / "traces.jsonl").write_text("\n".join(map(json.dumps, lines)))
    results = str(tmp_path / "**" / "traces.jsonl")
    found = sessions(session.capture("eval", evaluator(["a1", "b1", "a2"]), results=results))
    assert (found["a1"].reward, found["a2"].reward, found["b1"].reward) == (1.0, 0.5, None)
    assert (found["a2"].components, found["a2"].source) == ({"right": 0.0, "brief": 0.5}, "tool")


def test_results_of_no_session_and_sessions_without_a_result_are_named(session, tmp_path, capsys):
    lines = [{"id": "a1", "reward": 1}, {"id": 7, "session_id": "elsewhere", "reward": 2}]
    path = tmp_path / "traces.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    session.capture("eval", evaluator(["a1", "b1", "b2"]), results=str(path))
    told = capsys.readouterr().out
    assert "1 result of no session of eval:1: elsewhere\n" in told
    assert "2 sessions of eval:1 without a result or a reward: b1, b2\n" in told
    said = []
    path.write_text("\n".join(json.dumps({"id": name, "reward": 1}) for name in ("a1", "b1", "b2")))
    session.files.join_results("eval", str(path), say=said.append)
    assert said == []


def test_a_line_with_ids_of_its_own_is_joined_by_that_of_the_session(session, tmp_path):
    lines = [{"id": 0, "session_id": "a1", "reward": 0.25}, {"id": "a1", "session_id": "b1", "reward": 0.75}]
    (tmp_path / "traces.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = sessions(session.capture("eval", evaluator(["a1", "b1"]), results=str(tmp_path / "traces.jsonl")))
    assert (found["a1"].reward, found["b1"].reward) == (0.25, 0.75)


def test_the_lines_of_verifiers_have_traces_with_scores_and_weights(session, tmp_path):
    scored = {"right": {"score": 1.0, "weight": 2.0}, "brief": {"score": 0.5}}
    traces = [{"id": "a1", "rewards": scored}, {"id": "b1", "rewards": {"right": None, "brief": {"score": 1.0}}}]
    (tmp_path / "traces.jsonl").write_text(json.dumps({"id": "an episode", "traces": traces}))
    found = sessions(session.capture("eval", evaluator(["a1", "b1"]), results=str(tmp_path / "traces.jsonl")))
    assert (found["a1"].reward, found["a1"].components) == (2.5, {"right": 2.0, "brief": 0.5})
    assert found["b1"].reward is None


def test_results_of_verifiers_0_3_are_joined_by_their_trajectory(session, tmp_path):
    metrics = {"right": 1.0, "num_turns": 2.0}
    lines = [
        {"example_id": 0, "reward": 0.5, "metrics": metrics, **metrics, "trajectory_id": "a1"},
        {"example_id": 0, "reward": 0.25, "metrics": {}, "trajectory": [{"trajectory_id": "a2", "reward": None}]},
        {"example_id": 1, "reward": float("nan"), "metrics": {"right": None}, "trajectory_id": "b1"},
    ]
    path = tmp_path / "results.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    found = sessions(session.capture("eval", evaluator(["a1", "b1", "a2"]), results=str(path)))
    assert (found["a1"].reward, found["a1"].components) == (0.5, metrics)
    assert (found["a2"].reward, found["b1"].reward) == (0.25, None)
    path.write_text(json.dumps({"example_id": 0, "reward": 1.0}))
    with pytest.raises(InputError, match="line 1 has no id of a session") as refused:
        session.files.join_results("eval", str(path))
    assert refused.value.hint == "vf-eval ... --state-columns trajectory_id"


@pytest.mark.parametrize("content", [b"\xff\xfe{\x00", b"\xff", b"\x1f\x8bdamaged", None])
def test_results_that_cannot_be_read_are_an_error_with_what_to_do(session, tmp_path, content):
    path = tmp_path / "results.jsonl"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    session.capture("eval", evaluator(["a1"]))
    with pytest.raises(InputError, match=r"results\.jsonl") as refused:
        session.files.join_results("eval", str(path))
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1, column 2: not JSON"),
        ("[]", "line 1 is not an object"),
        ('{"traces": [7]}', "line 1 is not an object"),
        ('{"traces": [{"id": "a1", "rewards": {"right": {"weight": 1}}}]}', "the reward of right is None"),
        ('{"reward": 1}', "line 1 has no id"),
        ('{"id": "a1", "reward": "x"}', "which is no finite number"),
        ('{"id": "zz", "reward": 1}', "has the id of a session of eval"),
        (None, "there is no file"),
    ],
)
def test_results_that_fit_nothing_say_so_and_what_was_sampled_is_there(session, tmp_path, text, message):
    path = tmp_path / "traces.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=message):
        session.capture("eval", evaluator(["a1"]), results=str(path))
    path.write_text('{"id": "a1", "reward": 1}')
    assert sessions(session.files.join_results("eval", str(path)))["a1"].reward == 1.0


def test_a_program_that_fails_leaves_what_was_sampled_and_says_why(session, capsys):
    made = session.capture("eval", evaluator(["a1"], fail=True))
    assert sessions(made)["a1"].extra["metadata"]["episode_end"] == "done"
    assert "logs" not in sessions(made)["a1"].extra
    said = capsys.readouterr().out
    assert "ended by RuntimeError: out of luck" in said
    assert "1 session with answers is kept" in said
    with pytest.raises(SamplingError, match="no call of the program was answered; ended by RuntimeError"):
        session.capture("eval", evaluator([], fail=True))


def test_a_session_whose_last_call_failed_or_was_left_has_failed_itself(session, monkeypatch):
    begun = threading.Event()

    async def waits(*_):
        begun.set()
        await asyncio.Event().wait()

    async def run(row, client):
        evaluator(["a1", "b1"])(row, client)
        assert ask_once(client, "b1", "x" * 10_000).status_code == 400
        ask = partial(client.chat.completions.create, messages=[{"role": "user", "content": "x"}], max_tokens=4)
        await ask()
        monkeypatch.setattr(sending, "complete", waits)
        left = asyncio.create_task(ask())
        await asyncio.to_thread(begun.wait, 20)
        raise RuntimeError(f"out of luck, with {left.done()} done")

    made = sessions(session.capture("eval", run))
    ends = {name: (t.extra["metadata"]["episode_end"], t.extra.get("logs")) for name, t in made.items()}
    assert ends["a1"] == ("done", None)
    assert [ends[name][0] for name in ("b1", "")] == ["error", "error"]
    assert ends["b1"][1][0].startswith("its last call failed: ")
    assert ends[""][1][0] == "its last call got no answer"


def test_what_the_disk_refuses_once_is_stored_by_a_second_try(session, monkeypatch):
    at_once, tries = session.store.at_once, []

    def refuses(times):
        def fails(work):
            tries.append(None)
            if len(tries) <= times:
                raise LabError("database is locked")
            return at_once(work)

        tries.clear()
        monkeypatch.setattr(session.store, "at_once", fails)

    refuses(1)
    assert list(sessions(session.capture("eval", evaluator(["a1"])))) == ["a1"]
    refuses(9)
    with pytest.raises(LabError, match="1 session of eval could not be stored") as caught:
        session.capture("eval", evaluator(["a1"]))
    assert caught.value.hint == "end what holds the file, and run it again"
    assert len(session.collections()) == 1


def test_a_command_is_captured_by_session(session, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("rolloutlab.session.Session", lambda: session)
    results = tmp_path / "traces.jsonl"
    code = f"""
import json, os, urllib.request
for name in ("a", "b"):
    body = {{"messages": [{{"role": "user", "content": "x"}}], "max_tokens": 2}}
    headers = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "X-Session-ID": name}}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
    print(json.dumps({{"id": name, "reward": 0.5}}), file=open({str(results)!r}, "a"))
"""
    command = ["--sessions", "--results", str(results), "--", sys.executable, "-c", code]
    assert main(["capture", "eval", *command]) == 0
    assert capsys.readouterr().out == "eval:1 has 2 trajectories, mean reward 0.5\n"
    assert main(["capture", "eval", "-n", "2", *command]) == 2
    assert "cannot take n" in capsys.readouterr().err


def test_an_interrupt_keeps_the_sessions_that_had_answers(session, monkeypatch):
    begun = threading.Event()

    def run(row, client):
        evaluator(["a1"])(row, client)
        begun.set()
        threading.Event().wait(20)

    def tick(*_):
        if begun.is_set():
            raise KeyboardInterrupt

    monkeypatch.setattr("rolloutlab.widgets.progress.Progress.update", tick)
    with pytest.raises(KeyboardInterrupt) as caught:
        session.capture("eval", run)
    assert caught.value.__notes__[0] == "1 session had begun and is kept"
    assert list(sessions(session.collection("eval"))) == ["a1"]


def test_an_interrupt_as_late_as_the_end_keeps_every_answer(session, interrupt_at_end):
    interrupt_at_end(session)
    with pytest.raises(KeyboardInterrupt) as caught:
        session.capture("eval", evaluator(["a1", "a2", "a3"]))
    assert caught.value.__notes__[0] == "3 sessions had begun and are kept"
    made = sessions(session.collection("eval"))
    assert {name: len(made[name].choices) for name in made} == {"a1": 2, "a2": 2, "a3": 2}


def test_a_collection_that_comes_to_be_after_a_second_interrupt_is_let_go(session, monkeypatch):
    writing, go_on = threading.Event(), threading.Event()
    at_once, runs = session.store.at_once, []

    def slow(work):
        writing.set()
        assert go_on.wait(240)
        return at_once(work)

    def tick(*_):
        if writing.is_set():
            raise KeyboardInterrupt

    def interrupted_again(_loop, outcome, _to_its_end):
        runs.append(outcome)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(session.store, "at_once", slow)
        patched.setattr("rolloutlab.widgets.progress.Progress.update", tick)
        patched.setattr("rolloutlab.runtime.LoopThread._let_end", interrupted_again)
        with pytest.raises(KeyboardInterrupt) as caught:
            session.capture("eval", evaluator(["a1"]))
        told = ["0 sessions had begun and are kept; others are still being stored", f"  -> {WHAT_IS_STORED}"]
        assert caught.value.__notes__ == told
        go_on.set()
        wait(runs, 240)
    assert len(sessions(session.capture("eval", evaluator(["b1"]), resume=True))) == 2


def test_calls_that_name_no_session_are_one(session):
    async def run(row, client):
        for text in ("x", "y"):
            await client.chat.completions.create(messages=[{"role": "user", "content": text}], max_tokens=2)

    made = session.capture("eval", run)
    assert [len(trajectory.additional) for trajectory in sessions(made).values()] == [1]


def stored_answers(session, name):
    """How many answers the lab has of a session just now."""
    found = sessions(session.collection("eval")) if session.store.collections() else {}
    return len(found[name].choices) if name in found else 0


def wait_until_stored(session, name, answers):
    while stored_answers(session, name) < answers:
        threading.Event().wait(0.02)


def test_sessions_are_in_the_lab_while_their_program_runs(session):
    seen = {}

    def run(row, client):
        evaluator(["a1", "b1"])(row, client)
        wait_until_stored(session, "b1", 2)
        seen.update(sessions(session.collection("eval")))
        seen["cost"] = session.store.find("eval").completion_tokens
        ask_once(client, "a1", "and another thing")

    made = sessions(session.capture("eval", run))
    assert {name: seen[name].answer for name in ("a1", "b1")} == {name: made[name].answer for name in ("a1", "b1")}
    assert seen["cost"] == sum(seen[name].tokens for name in ("a1", "b1"))
    assert session.store.find("eval").completion_tokens == sum(t.tokens for t in made.values()) > seen["cost"]
    assert [len(made[name].additional) for name in ("a1", "b1")] == [1, 0]
    assert (seen["b1"].id, len(session.collection("eval").trajectories)) == (made["b1"].id, 2)


def test_a_session_that_goes_on_is_searched_as_it_is_in_the_end(session):
    def run(row, client):
        messages = [{"role": "user", "content": "first words"}]
        for turn, text in enumerate(["later words", "last words"], 1):
            headers = {"X-Session-ID": "a1"}
            body = {"messages": messages, "max_tokens": 4}
            answer = httpx.post(f"{client.base_url}/chat/completions", json=body, headers=headers, timeout=240).json()
            messages += [answer["choices"][0]["message"], {"role": "user", "content": text}]
            wait_until_stored(session, "a1", turn)
            session.search("words")

    session.capture("eval", run)
    (hit,) = session.search("words", select=["turns", "#document"])
    assert hit.id == "eval:1/0/0"
    assert hit.metadata["turns"] == 2
    assert "later words" in hit.document


def test_a_session_that_went_on_after_it_was_scored_is_kept_in_both_states(session, capsys):
    def run(row, client):
        evaluator(["a1"])(row, client)
        wait_until_stored(session, "a1", 2)
        session.reward("eval", lambda answer: 0.25, say=lambda _: None)
        ask_once(client, "a1", "and another thing")

    made = session.capture("eval", run)
    assert [(t.reward, len(t.additional)) for t in made.trajectories] == [(0.25, 0), (None, 1)]
    assert "1 session went on after being scored, the first a1" in capsys.readouterr().out


def test_a_session_that_goes_on_while_it_is_scored_has_no_reward_and_the_others_have_theirs(session):
    before = {}

    def run(row, client):
        evaluator(["a1", "b1"])(row, client)
        for name in ("a1", "b1"):
            wait_until_stored(session, name, 2)
        before.update(sessions(session.collection("eval")))

        def score(answer):
            ask_once(client, "a1", "and another thing")
            while sessions(session.collection("eval"))["a1"].id == before["a1"].id:
                threading.Event().wait(0.02)
            return 0.25

        session.reward("eval", score, say=lambda _: None)

    made = sessions(session.capture("eval", run))
    assert (made["a1"].reward, made["b1"].reward) == (None, 0.25)
    with pytest.raises(ConflictError, match=f"{before['a1'].name} has gone on since it was read"):
        session.store.rewards.give([Score(before["a1"], 1.0)], "hand")


def test_further_sessions_join_a_collection_with_other_answers(session, tmp_path):
    first = sessions(session.capture("eval", evaluator(["a1", "b1"]), seed=3))
    made = session.capture("eval", evaluator(["a2", "b1"]), resume=True)
    assert [len(group.trajectories) for group in made.groups] == [2, 2]
    assert made.label == "eval:1"
    assert {t.id: t.answer for t in first.values()}.items() <= {t.id: t.answer for t in made.trajectories}.items()
    assert len({t.answer for t in made.trajectories}) == 4
    (tmp_path / "traces.jsonl").write_text('{"id": "b1", "reward": 1}')
    joined = session.files.join_results("eval", str(tmp_path / "traces.jsonl"))
    assert [t.reward for t in joined.groups[1].trajectories] == [None, 1.0]  # the results are of the last run
    with pytest.raises(InputError, match="cannot take seed"):
        session.capture("eval", evaluator(["a3"]), resume=True, seed=4)


def test_a_collection_of_sessions_says_how_it_goes_on(session):
    session.capture("eval", evaluator(["a1"]))
    for given in ({}, {"program": evaluator(["a1"])}, {"env": lambda: None}):
        with pytest.raises(InputError, match="eval holds sessions of a program") as caught:
            session.resume("eval", **given)
        assert caught.value.hint == "lab.capture('eval', PROGRAM, resume=True)"
    session.rollouts("agent", lambda row, client: float(ask_once(client, "", "x").status_code))
    with pytest.raises(InputError, match="agent holds no sessions of a program"):
        session.capture("agent", evaluator(["a1"]), resume=True)
