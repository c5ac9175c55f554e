"""Budgets of judges, graders and loops, against what a service that counts has charged."""

import json
import re
import threading
from fractions import Fraction

import pytest

from rolloutlab.errors import BudgetError, InputError
from rolloutlab.scoring.judge import Judge
from rolloutlab.session import Session
from rolloutlab.settings import Address, Price, Settings
from rolloutlab.widgets.progress import Progress
from tests.paid import MODEL, URL, Paid, spent

BOTH = json.dumps({label: {"why": "It is so.", "score": score} for label, score in (("A", 0.25), ("B", 0.75))})
GRADER = {
    "type": "score_model",
    "name": "close",
    "model": "team/judge",
    "input": [{"role": "user", "content": "Is it right? {{sample.output_text}}"}],
    "sampling_params": {"max_completion_tokens": 100},
}
ROWS = [{"word": f"w{i}"} for i in range(20)]
PRICES = {"team/small": Price(100.0, 200.0, 1000.0), "team/judge": Price(100.0, 200.0)}


@pytest.fixture
def paid() -> Paid:
    paid = Paid()
    paid.answer = lambda body: BOTH if body["model"] == "team/judge" else "word"
    paid.sampled = lambda body: 20
    return paid


@pytest.fixture
def opened(tmp_path, at_paid):
    def make(budget: float | None = None, prices: dict[str, Price] = PRICES) -> Session:
        address = Address(URL, f"{URL}/v1", prices=prices, budget=budget)
        return at_paid(Settings(home=tmp_path, service=address))

    return make


@pytest.fixture
def session(opened):
    return opened()


@pytest.fixture
def sampled(notebook):
    notebook.shell.user_ns["rows"] = ROWS
    notebook.run("%%chat words -m team/small -n 2 --max-tokens 100 --over rows\nuser: Say {{word}}")
    return notebook


def test_the_tokens_of_a_judge_cost_as_much_as_the_judge(opened, paid, capsys):
    session = opened(prices={"team/small": Price(1.0, 2.0), "team/judge": Price(100.0, 200.0)})
    session.chat("words", "Say {{word}}", model="team/small", n=2, over=ROWS, max_tokens=100)
    sampling = Fraction(20 * (2 * 1 + 40 * 2), 10**6)
    assert session.collections()["cost ($)"].iloc[0] == pytest.approx(float(sampling))
    before = paid.charged
    session.judge("words", model="team/judge", samples=1)
    judging = paid.charged - before
    assert session.collections()["cost ($)"].iloc[0] == pytest.approx(float(sampling + judging))
    assert spent(session) == sampling + judging
    assert re.search(r"cost: \$\d+\.\d+ for [\d,]+ \+ 400 tokens of team/judge", capsys.readouterr().out)


def test_without_the_price_of_the_judge_the_cost_of_a_collection_is_not_known(opened):
    session = opened(prices={"team/small": Price(1.0, 2.0)})
    session.chat("words", "Say so", model="team/small", n=2, max_tokens=100)
    session.judge("words", model="team/judge", samples=1)
    assert "cost ($)" not in session.collections().columns


def test_a_dry_run_after_judging_estimates_the_sampling_alone(sampled, paid):
    charged = paid.charged
    sampled.lab.judge("words", model="team/judge", samples=1)
    preview = repr(
        sampled.run("%%chat words -m team/small -n 2 --max-tokens 100 --over rows --dry-run\nuser: {{word}}")
    )
    about = Fraction(re.search(r"about \$([\d.]+) as words", preview)[1])
    assert abs(about - charged) <= charged / 100


def test_a_judge_ends_before_its_budget_is_exceeded_and_no_reward_is_changed(sampled, paid, capsys):
    before = paid.charged
    capsys.readouterr()
    shown = sampled.error("%%reward words --judge team/judge --samples 1 --max-tokens 100 --budget 0.6\n")
    assert 0 < paid.charged - before <= Fraction(6, 10)
    assert re.search(
        r"BudgetError: the next request may cost \$0\.\d+, and \$0\.\d+ of a budget of \$0\.600 is spent; "
        r"\d+ of 20 answers are kept; no reward of words was changed\n"
        r"  -> the cell again --budget 0\.6",
        shown,
    )
    cost = Fraction(re.search(r"^cost: \$([\d.]+) for .* of team/judge", capsys.readouterr().out, re.MULTILINE)[1])
    assert abs(cost - (paid.charged - before)) <= cost / 100
    assert all(body["max_tokens"] == 100 for body in paid.bodies if body["model"] == "team/judge")
    assert not any(t.reward is not None for t in sampled.lab.collection("words").trajectories)
    assert spent(sampled.lab) == paid.charged
    sampled.run("%%reward words --judge team/judge --samples 1 --max-tokens 100 --budget 10\n")
    assert len([body for body in paid.bodies if body["model"] == "team/judge"]) == 20
    assert spent(sampled.lab) == paid.charged
    assert all(t.reward is not None for t in sampled.lab.collection("words").trajectories)


def test_a_budget_that_pays_for_no_answer_of_a_judge_wants_a_larger_one(sampled):
    shown = sampled.error("%%reward words --judge team/judge --samples 1 --max-tokens 100 --budget 0.0001\n")
    assert "0 of 20 answers are kept; no reward of words was changed" in shown
    assert "-> a larger --budget, or a smaller --samples or --max-tokens" in shown


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--judge team/judge --budget 1", "a budget needs the most tokens of a completion"),
        ("--judge team/other --max-tokens 9 --budget 1", "a budget needs the price of team/other"),
        ("--judge team/judge --max-tokens 9 --budget -1", "a budget is a number of dollars from 0 to 100,000"),
        ("--max-tokens 9", "--max-tokens is for a judge"),
    ],
)
def test_a_budget_of_a_judge_needs_a_price_and_a_bound(sampled, paid, line, error):
    before = len(paid.bodies)
    assert error in sampled.error(f"%%reward words {line}\n")
    assert len(paid.bodies) == before


def test_a_grader_ends_before_its_budget_is_exceeded_and_resume_scores_the_rest(sampled, paid, capsys):
    paid.answer = lambda _: '{"result": 1}'
    before, requests = paid.charged, len(paid.bodies)
    sampled.shell.user_ns["graded"] = sampled.lab.grader(GRADER)
    capsys.readouterr()
    shown = sampled.error("%%reward words --with graded --budget 0.25 --concurrency 4\n")
    assert re.search(r"^cost: (at most )?\$0\.\d+ for .* of team/judge", capsys.readouterr().out, re.MULTILINE)
    assert 0 < paid.charged - before <= Fraction(1, 4)
    assert requests < len(paid.bodies) < requests + 40
    assert re.search(
        r"of a budget of \$0\.250 is spent; \d+ of 40 trajectories are done and stored\n"
        r"  -> %%reward words --resume, with a new budget",
        shown,
    )
    sampled.run("%%reward words --resume --budget 10\n")
    assert all(t.reward == 1.0 for t in sampled.lab.collection("words").trajectories)
    assert spent(sampled.lab) == paid.charged
    assert len(paid.bodies) <= requests + 44  # up to four answers came too late to be scored


@pytest.mark.parametrize("options", [{}, {"budget": 10}])
def test_what_a_grader_costs_is_recorded_as_it_comes(opened, paid, options):
    session = opened()
    session.chat("words", "Say {{word}}", model="team/small", n=2, over=ROWS, max_tokens=100)
    recorded: list[tuple[Fraction, Fraction, int]] = []
    charged = paid.charged

    def answer(_: object) -> str:
        nonlocal charged
        tokens = session.store.collection("words").prompt_tokens
        recorded.append((spent(session), charged, tokens))
        charged = paid.charged
        return '{"result": 1}'

    paid.answer = answer
    session.reward("words", session.grader(GRADER), concurrency=1, **options)
    assert len(recorded) == 40
    assert all(there >= charged for there, charged, _ in recorded)
    assert len({tokens for *_, tokens in recorded}) == 40
    assert spent(session) == paid.charged


def test_what_the_progress_of_a_scoring_counts_is_on_disk(opened, paid, monkeypatch):
    session, counted = opened(), []
    session.chat("words", "Say {{word}}", model="team/small", n=2, over=ROWS, max_tokens=100)
    asked, shown = iter(range(100)), threading.Event()

    def update(self: Progress, done: int, *_: object) -> None:
        counted.append((done, sum(t.reward is not None for t in session.collection("words").trajectories)))
        if len(counted) > 2:
            shown.set()

    def answer(_: object) -> str:
        if next(asked) == 30:  # the progress is shown while 30 are done
            shown.wait(240)
        return '{"result": 1}'

    monkeypatch.setattr(Progress, "update", update)
    paid.answer = answer
    session.reward("words", session.grader(GRADER), concurrency=2)
    assert counted
    assert all(stored >= done for done, stored in counted)


def test_a_grader_without_a_bound_is_refused_under_a_budget(opened, paid):
    session = opened()
    session.chat("words", "Say so", model="team/small", n=2, max_tokens=100)
    with pytest.raises(InputError, match="without max_tokens the price of a completion has no bound") as caught:
        session.reward("words", session.grader({**GRADER, "sampling_params": {}}), budget=1)
    assert "max_completion_tokens" in caught.value.hint
    assert len(paid.bodies) == 1


def test_the_budget_of_a_profile_is_for_judges_too(opened, paid):
    session = opened()
    session.chat("words", "Say {{word}}", model="team/small", n=2, over=ROWS, max_tokens=100)
    session.close()
    session = opened(budget=float(paid.charged) + 0.5)
    with pytest.raises(BudgetError, match=r"at https://paid\.example is spent") as caught:
        session.judge("words", model="team/judge", max_tokens=100)
    assert caught.value.hint == "a larger budget in the settings file, then the cell again"
    assert paid.charged <= Fraction(str(session.settings.service.budget))


@pytest.mark.parametrize("judged", [True, False])
def test_a_loop_has_one_budget_for_sampling_judging_and_training(opened, paid, judged):
    model = MODEL["id"]
    session = opened(prices={model: Price(100.0, 200.0, 1000.0), "team/judge": Price(100.0, 200.0)})
    session.model(model)
    paid.logprobs = True
    rewards = iter(range(10**6))
    reward = Judge("team/judge", samples=1, max_tokens=50) if judged else lambda trajectory, answer: next(rewards)
    lines = []
    with pytest.raises(BudgetError, match=r"of a budget of \$2\.00 is spent"):
        session.loop(
            "words", "Say {{word}}", reward, over=ROWS[:3], n=2, jobs=50, max_tokens=20, budget=2, say=lines.append
        )
    trained = Fraction(sum(row[0] for row in session.store._database.read("SELECT trained_tokens FROM spending")), 1000)
    assert 0 < paid.charged + trained == spent(session) <= 2
    assert lines[-1].startswith("stopped by BudgetError; the same call goes on, in round")
    kinds = {row[0] for row in session.store._database.read("SELECT purpose FROM spending WHERE amount > 0")}
    assert kinds == {"sampling", "training", *(["judging"] if judged else [])}


def test_a_loop_without_a_price_to_train_samples_nothing(opened, paid):
    session = opened()
    with pytest.raises(InputError, match="a budget needs the price of lab/practice"):
        session.loop("words", "Say so", lambda answer: 1.0, over=ROWS, max_tokens=9, budget=1)
    assert paid.bodies == []
