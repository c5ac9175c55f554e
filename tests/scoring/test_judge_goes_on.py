"""A judging that was ended: what was paid for is on disk as it comes, and is not asked for again."""

import json
from collections.abc import Callable
from contextlib import closing
from fractions import Fraction
from typing import Any

import httpx
import pytest

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.chat import Choice, UserMessage
from rolloutlab.errors import RewardError, ServiceError
from rolloutlab.session import Session
from rolloutlab.settings import Address, Price, Settings
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import NewGroup
from rolloutlab.widgets.progress import Progress
from tests.labs import lab_with
from tests.paid import spent

URL = "https://paid.example"
GROUPS = 12
SAID = {"A": {"why": "Short.", "score": 0.25}, "B": {"why": "Long.", "score": 0.75}}
COST = Fraction(100 * 100 + 7 * 200, 10**6)
"""Dollars of an answer."""


class Judge:
    """A service that counts. fails: a response in the place of the answer of a number. by: what it calls its model."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answered = 0
        self.fails: Callable[[int], httpx.Response | None] = lambda _: None
        self.said: Callable[[int], Any] = lambda _: SAID
        self.by, self.newest = "judge", 0

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            card = {"id": "judge", "object": "model", "created": 0, "owned_by": "lab", "newest_step": self.newest}
            return httpx.Response(200, json={"object": "list", "data": [card]})
        self.asked.append(json.loads(request.content)["messages"][1]["content"])
        number = len(self.asked)
        if failure := self.fails(number):
            return failure
        self.answered += 1
        message = {"role": "assistant", "content": json.dumps(self.said(number))}
        choice = {"finish_reason": "stop", "index": 0, "message": message}
        usage = {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}
        head = {"id": "1", "object": "chat.completion", "created": 0, "model": self.by}
        return httpx.Response(200, json={**head, "choices": [choice], "usage": usage})


@pytest.fixture
def judge() -> Judge:
    return Judge()


@pytest.fixture
def opened(tmp_path, judge):
    """Opens the lab as another kernel would."""
    made: list[tuple[Session, HttpClient]] = []

    def make() -> Session:
        http = HttpClient(httpx.MockTransport(judge), backoff=0)
        address = Address(URL, f"{URL}/v1", prices=dict.fromkeys(("judge", "other"), Price(100.0, 200.0)))
        made.append((Session(Settings(home=tmp_path, service=address), http=http), http))
        return made[-1][0]

    yield make
    for session, http in made:
        session.close()
        http.close()


def said(answer: str) -> Choice:
    message = {"role": "assistant", "content": answer}
    return Choice.model_validate({"finish_reason": "stop", "index": 0, "message": message})


@pytest.fixture
def session(opened):
    session = opened()
    sample(session)
    return session


def sample(session: Session, name: str = "words", last: str = "yes") -> None:
    asked = [NewGroup([UserMessage(role="user", content=f"Question {i}?")], {"i": i}) for i in range(GROUPS)]
    answers = [["no", f"{last} {i}"] for i in range(GROUPS)]
    lab_with(session.store, *answers, name=name, prompts=asked, make=said)


def rewards(session: Session, name: str = "words") -> list[float | None]:
    return [each.reward for each in session.collection(name).trajectories]


def failing_from(number: int) -> Callable[[int], httpx.Response | None]:
    return lambda n: httpx.Response(500, json={"error": {"message": "away"}}) if n >= number else None


def end_early(session: Session, judge: Judge, after: int = 9, **options: Any) -> int:
    """Judge until the service fails; how many answers it has given."""
    judge.fails = failing_from(after + 1)
    with pytest.raises(ServiceError):
        session.judge("words", model="judge", **options)
    judge.fails = lambda _: None
    return judge.answered


@pytest.mark.parametrize("samples", [1, 2])
def test_the_same_judge_goes_on_where_it_was_ended_and_says_how_much_there_is(session, opened, judge, samples):
    answered = end_early(session, judge, samples=samples)
    assert answered == 9
    assert rewards(session) == [None] * 2 * GROUPS
    assert spent(session) == 9 * COST
    lines: list[str] = []
    again = opened()
    before = len(judge.asked)
    again.judge("words", model="judge", samples=samples, say=lines.append)
    assert judge.answered == samples * GROUPS
    assert len(judge.asked) - before == samples * GROUPS - 9
    if samples == 1:
        told = "9 of 12 groups were judged before; judging 3 -> --no-cache judges all again (cache=False)"
        assert lines[0] == told
    assert spent(again) == samples * GROUPS * COST
    (row,) = again.collections().to_dict("records")
    assert row["prompt_tokens"] == 100 * samples * GROUPS
    assert None not in rewards(again)


def test_what_the_progress_counts_is_on_disk_with_what_it_cost(session, judge, tmp_path, monkeypatch):
    counted: list[int] = []

    def update(self: Progress, done: int, total: int | None, *_: Any) -> None:
        if total != 2 * GROUPS:
            return
        counted.append(done)
        with closing(Lab(tmp_path / "lab.db")) as other:
            [[on_disk]] = other._database.read(
                "SELECT count(*) FROM (SELECT DISTINCT g.id, s.key FROM reward_results r, json_each(r.result) s"
                " JOIN trajectories t ON t.id = r.trajectory_id JOIN groups g ON g.id = t.group_id)"
            )
            assert on_disk >= done
            assert Fraction(other.spending.at(URL), 10**12) >= done * COST
            assert other.collection("words").prompt_tokens >= 100 * done

    monkeypatch.setattr(Progress, "update", update)
    monkeypatch.setattr("rolloutlab.scoring.judge.CONCURRENT", 2)
    whole = HttpClient.run

    def often(self: HttpClient, work: Any, tick: Any = None, every: float = 0.1, **options: Any) -> Any:
        return whole(self, work, tick, 0.001, **options)

    monkeypatch.setattr(HttpClient, "run", often)
    session.judge("words", model="judge")
    assert counted


def test_an_interrupt_keeps_what_was_judged(session, opened, judge, monkeypatch):
    def interrupt(self: Progress, done: int, *_: Any) -> None:
        if done:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Progress, "update", interrupt)
        judge.fails = lambda n: httpx.Response(429, headers={"Retry-After": "3600"}) if n > 5 else None
        with pytest.raises(KeyboardInterrupt) as stopped:
            session.judge("words", model="judge")
    judge.fails = lambda _: None
    shown = stopped.value._render_traceback_()
    assert "5 of 24 answers are kept; no reward of words was changed" in shown[0]
    assert "run the cell again: it asks for the other 19" in shown[1]
    opened().judge("words", model="judge")
    assert judge.answered == 24


def test_an_interrupt_after_an_error_keeps_what_was_judged(session, opened, judge, monkeypatch, interrupt_at_end):
    judge.fails = lambda n: httpx.Response(401, json={"error": {"message": "no key"}}) if n == 8 else None
    interrupt_at_end(session)
    with pytest.raises(KeyboardInterrupt):
        session.judge("words", model="judge")
    answered = judge.answered
    monkeypatch.undo()
    judge.fails = lambda _: None
    opened().judge("words", model="judge")
    assert answered >= 7
    assert judge.answered == 24


def test_after_a_group_without_usable_scores_only_that_one_is_asked_again(session, judge):
    useless = iter(range(100))
    judge.said = lambda _: "no" if "Question 7?" in judge.asked[-1] and next(useless) < 3 else SAID
    with pytest.raises(RewardError, match="no usable scores for words/7"):
        session.judge("words", model="judge", samples=1)
    assert spent(session) == judge.answered * COST
    before = judge.answered
    kept = sum(f"Question {i}?" in "".join(judge.asked) for i in range(GROUPS)) - 1
    session.judge("words", model="judge", samples=1)
    assert judge.answered - before == GROUPS - kept
    assert spent(session) == judge.answered * COST


@pytest.mark.parametrize(
    "other",
    [{"rubric": "Short is best."}, {"model": "other"}, {"samples": 3}, {"seed": 1}, {"max_tokens": 90}],
)
def test_another_judge_judges_all_afresh(session, judge, other):
    end_early(session, judge)
    lines: list[str] = []
    session.judge("words", **{"model": "judge", **other}, say=lines.append)
    assert judge.answered == 9 + other.get("samples", 2) * GROUPS
    assert not any("before" in line for line in lines)


def test_another_value_of_a_variable_in_the_rubric_judges_afresh(session, judge):
    session.judge("words", "Like {{best}}", model="judge", variables={"best": "a"})
    session.judge("words", "Like {{best}}", model="judge", variables={"best": "b"})
    assert judge.answered == 4 * GROUPS
    session.judge("words", "Like {{best}}", model="judge", variables={"best": "b"})
    assert judge.answered == 4 * GROUPS


def test_other_completions_are_judged_afresh(session, judge):
    end_early(session, judge)
    sample(session, "words", last="maybe")
    lines: list[str] = []
    session.judge("words", model="judge", say=lines.append)
    assert judge.answered == 9 + 2 * GROUPS
    assert not any("before" in line for line in lines)


def test_a_group_that_has_grown_is_judged_afresh(session, judge):
    from rolloutlab.store.models import Arrival

    session.judge("words", model="judge")
    group = session.store.groups(session.store.collection("words"))[3]
    session.store.put(group, [Arrival(2, [said("perhaps")])], model="m", step=0, sampling={})
    judge.said = lambda _: {**SAID, "C": {"score": 0.5}}
    session.judge("words", model="judge")
    assert judge.answered == 2 * GROUPS + 2
    assert "perhaps" in judge.asked[-1]
    assert "perhaps" in judge.asked[-2]


def test_a_judging_is_undone_as_a_whole_and_costs_nothing_the_second_time(session, judge):
    end_early(session, judge)
    session.judge("words", model="judge")
    judged = rewards(session)
    session.collection("words").undo_rewards(say=lambda _: None)
    assert rewards(session) == [None] * 2 * GROUPS
    lines: list[str] = []
    session.judge("words", model="judge", say=lines.append)
    assert judge.answered == 2 * GROUPS
    assert rewards(session) == judged
    assert lines[0] == (
        "12 of 12 groups were judged before; none is judged again -> --no-cache judges all again (cache=False)"
    )
    assert not any(line.startswith("cost") for line in lines)


def test_without_cache_all_is_judged_again(session, judge):
    end_early(session, judge)
    session.judge("words", model="judge", cache=False)
    assert judge.answered == 9 + 2 * GROUPS


def test_what_an_older_checkpoint_has_said_is_not_used_and_named(session, judge):
    judge.by, judge.newest = "judge@3", 3
    end_early(session, judge)
    judge.by, judge.newest = "judge@4", 4
    lines: list[str] = []
    session.judge("words", model="judge", say=lines.append)
    assert judge.answered == 9 + 2 * GROUPS
    assert lines[0] == "judge@3 has judged here before and is not the newest checkpoint: judging afresh"
    session.judge("words", model="judge", say=lines.append)
    assert judge.answered == 9 + 2 * GROUPS


def test_rewards_of_two_models_of_one_name_are_told(session, judge):
    end_early(session, judge)
    judge.by = "judge-2026"
    lines: list[str] = []
    session.judge("words", model="judge", say=lines.append)
    told = "what was judged before is of another model of this name: judge, judge-2026 -> --no-cache judges all again"
    assert told in lines


def test_results_of_functions_do_not_replace_what_was_paid_for(session, judge):
    end_early(session, judge)
    for number in range(40):
        session.reward("words", lambda answer, number=number: float(number), say=lambda _: None)
    lines: list[str] = []
    session.judge("words", model="judge", say=lines.append)
    assert judge.answered == 2 * GROUPS
