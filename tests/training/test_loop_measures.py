"""A loop that goes on with another reward, other rows or another prompt: only means of one measure are compared."""

import functools

import pytest

from rolloutlab import Step
from rolloutlab.integrations.trl import reward as trl_reward
from rolloutlab.session import Session

ROWS = [{"letter": letter} for letter in "ab"]
OTHER_ROWS = [{"letter": letter} for letter in "cd"]
PROMPT = "user: {{letter}}?"
NOT_COMPARED = "in a column of its own and not compared for the best"


@pytest.fixture
def service(start):
    return start()


def hundreds(answer, trajectory):
    return 600.0 + 100 * trajectory.step + len(answer) % 2


def ones(answer, trajectory):
    return 1.0 - 0.1 * trajectory.step + 0.01 * (len(answer) % 2)


def loop(session: Session, reward=hundreds, lines=None, **options):
    given = {"over": ROWS, "n": 2, "jobs": 2, "max_tokens": 4, "seed": 1, "prompt": PROMPT, "every": 1}
    say = ([] if lines is None else lines).append
    given |= options
    return session.loop("letters", given.pop("prompt"), reward, say=say, **given)


def test_means_of_another_reward_are_in_a_column_of_their_own_and_not_the_best(session):
    loop(session, held_out=ROWS)
    lines: list[str] = []
    made = loop(session, ones, lines, held_out=ROWS)
    history = made.history
    assert history["reward"].max() < 2 < history["earlier_reward"].min()
    assert history["held_out"].max() < 2 < history["earlier_held_out"].min()
    assert history["held_out"].notna().tolist() == [False, False, True, True, True]
    assert made.best == "lab/practice@2"  # the least of them by `hundreds`, of which the checkpoint 2 is measured anew
    assert made.best_mean < 2
    changes = [
        f"mean reward of rounds 1 to 2: measured with another reward, {NOT_COMPARED}",
        f"held-out mean of steps 0 to 2: measured with another reward, {NOT_COMPARED}",
        "another run of lab/practice begins, as the reward was changed -> %runs lab/practice",
    ]
    assert lines[:3] == made.remarks == changes
    assert made.changes == changes[:2]
    assert all(change in repr(made) and change.partition(" -> ")[0] in made._repr_html_() for change in changes)
    assert [y for _, y in made.plot().series[0].points()] == history["reward"].dropna().tolist()


def test_another_reward_is_another_run_of_the_model(session):
    loop(session, held_out=ROWS)
    made = loop(session, ones, held_out=ROWS)
    newest, first = session.runs()
    assert (newest.name, newest.because) == ("lab/practice", ("reward", "held-out reward"))
    assert (newest.best, newest.best_mean) == (made.best, made.best_mean)
    assert newest.history["held_out"].tolist() == made.history["held_out"].dropna().tolist()
    assert first.name == "lab/practice:1"
    assert first.history["held_out"].tolist() == made.history["earlier_held_out"].dropna().tolist()


def test_that_another_run_begins_is_said_once_by_the_call_whose_jobs_begin_it(session):
    def begins(**given):
        made = loop(session, ones, **{"jobs": 1, **given})
        return [line.partition(" as ")[2] for line in made.remarks if line.startswith("another run of")]

    assert begins() == []
    assert loop(session, jobs=1).because == ("reward",)
    assert begins() == ["the reward was changed -> %runs lab/practice"]
    assert begins() == begins(jobs=0) == begins(over=OTHER_ROWS) == []
    assert len(session.runs()) == 3
    assert loop(session, jobs=1, over=lambda number: ROWS).because == ("reward",)
    assert loop(session, ones, jobs=1, over=lambda number: ROWS).because == ()
    session.model("lab/second")
    assert loop(session, jobs=1).because == ()


def test_a_loop_of_another_name_says_that_its_job_begins_another_run(session):
    def other(reward, held_out):
        given = {"over": ROWS, "n": 2, "jobs": 1, "max_tokens": 4, "seed": 1, "held_out": held_out}
        return session.loop("other", PROMPT, reward, say=lambda _: None, **given)

    loop(session, jobs=1, held_out=ROWS)
    assert other(hundreds, ROWS).because == ()
    made = other(ones, OTHER_ROWS)
    assert made.because == ("reward", "held-out reward", "held-out rows")
    assert made.remarks[-1].endswith("reward and held-out rows were changed -> %runs lab/practice")
    assert [run.because for run in session.runs()] == [made.because, ()]


def test_held_out_rows_that_are_added_later_begin_no_run(session):
    loop(session, jobs=1, held_out=ROWS)
    given = {"over": ROWS, "n": 2, "jobs": 1, "max_tokens": 4, "seed": 1, "say": lambda _: None}
    other = functools.partial(session.loop, "other", "user: Say {{letter}}!", hundreds, **given)
    assert other().because == ("prompt",)
    assert other(held_out=ROWS).because == ()
    assert [run.because for run in session.runs()] == [("prompt",), ()]


def test_a_loop_is_shown_without_its_reward_and_after_its_held_out_rows_were_deleted(session):
    made = loop(session, held_out=ROWS)
    assert repr(session.loop("letters", jobs=0)) == repr(made)
    session.delete("held_out.letters")
    shown = session.loop("letters", jobs=0)
    assert shown.measured == {}
    assert shown.history["reward"].tolist() == made.history["reward"].dropna().tolist()
    loop(session, jobs=1)


def test_a_loop_that_is_only_shown_compares_as_it_did(session):
    loop(session, held_out=ROWS)
    made = loop(session, ones, held_out=ROWS)
    again = loop(session, jobs=0)
    columns = [column for column in made.history if column != "seconds"]
    assert again.history[columns].equals(made.history[columns])
    assert (again.best, again.best_mean, again.changes) == (made.best, made.best_mean, made.changes)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"prompt": "user: Say {{letter}}!"}, "another prompt"),
        ({"held_out": OTHER_ROWS}, "other rows"),
        ({"temperature": 0.5}, "another temperature"),
        ({"max_tokens": 6}, "another max_tokens"),
        ({"held_out": OTHER_ROWS, "prompt": "user: Say {{letter}}!"}, "another prompt and rows"),
    ],
)
def test_held_out_means_of_another_measure_are_not_compared_and_are_measured_anew(session, options, what):
    loop(session, jobs=1, held_out=ROWS)
    made = loop(session, jobs=1, **{"held_out": ROWS, **options})
    said = f"held-out mean of steps 0 to 1: measured with {what}, {NOT_COMPARED}"
    assert [line for line in made.changes if line.startswith("held-out")] == [said]
    assert (len(session.runs()) == 2) == bool(made.because)
    assert 1 in made.measured
    assert session.store.collection("held_out.letters").generation == 4  # two of them new, of checkpoint 1 another one


def test_a_reward_whose_constant_changed_is_another_one(session):
    def scaled(scale):
        return lambda answer: scale * len(answer)

    loop(session, scaled(100), jobs=1, held_out=ROWS)
    made = loop(session, scaled(1), jobs=1, held_out=ROWS)
    assert [line.partition(",")[0] for line in made.changes] == [
        "mean reward of round 1: measured with another reward",
        "held-out mean of steps 0 to 1: measured with another reward",
    ]


def test_the_same_reward_written_again_is_the_same_one(session):
    def written():
        return lambda answer: float(len(answer) % 7)

    loop(session, written(), jobs=1, held_out=ROWS)
    assert loop(session, written(), jobs=1, held_out=ROWS).changes == []


def test_a_change_of_the_reward_shows_also_without_held_out_rows(session):
    loop(session)
    made = loop(session, ones, jobs=1)
    assert made.best == "lab/practice@2"
    assert made.history["earlier_reward"].notna().tolist() == [True, True, False]


def test_rounds_of_other_rows_are_not_compared_and_rounds_of_a_function_are(session):
    loop(session, jobs=1)
    made = loop(session, jobs=1, over=OTHER_ROWS)
    assert made.changes == [f"mean reward of round 1: measured with other rows, {NOT_COMPARED}"]
    made = loop(session, jobs=1, over=lambda number: ROWS[:1])
    assert made.changes == []


def test_rounds_of_a_function_are_told_with_the_first_that_differs(session):
    loop(session, jobs=1, over=lambda number: ROWS[:1])
    lines: list[str] = []
    made = loop(session, ones, lines, jobs=1, over=lambda number: ROWS[:1])
    assert made.changes == [f"mean reward of round 1: measured with another reward, {NOT_COMPARED}"]
    assert made.changes[0] in lines


def test_a_held_out_mean_of_another_reward_is_no_best_of_a_call_that_holds_out_nothing(session):
    loop(session, jobs=1, held_out=ROWS)
    made = loop(session, ones, jobs=1)
    assert made.measured == {}
    assert made.best == "lab/practice@1"


class Scale:
    """A reward with settings of its own, which also keeps what it has seen."""

    def __init__(self, k):
        self.k, self.calls, self.known = k, 0, {}

    def __call__(self, answer):
        self.calls += 1
        self.known[answer] = self.known.get(answer, 0) + 1
        return self.k + len(answer) % 2 * 0.01

    def score(self, answer):
        return self(answer)


def listed(k):
    log = []

    def of_each(completions, **_):
        log.append(len(completions))
        return [k + len(str(each)) % 2 * 0.01 for each in completions]

    return of_each


def environment(k):
    class Say:
        def __init__(self, row): ...

        def reset(self, seed):
            return "say"

        def step(self, answer):
            return Step("ok", k + len(answer) % 2 * 0.01, done=True)

    return Say


REWARDS = {
    "an object": lambda session, k: Scale(k),
    "a bound method": lambda session, k: Scale(k).score,
    "a function for TRL": lambda session, k: trl_reward(listed(k)),
    "a cached function": lambda session, k: functools.lru_cache(lambda answer: k + len(answer) % 2 * 0.01),
    "a dictionary of both": lambda session, k: {"a": Scale(k), "b": lambda answer: 0.0},
}


@pytest.mark.parametrize("made", REWARDS.values(), ids=REWARDS)
def test_a_setting_of_what_scores_is_another_reward_and_its_state_is_not(session, made):
    loop(session, made(session, 100), jobs=1, held_out=ROWS)
    again = loop(session, made(session, 100), jobs=1, held_out=ROWS)
    assert again.changes == []
    other = loop(session, made(session, 1), jobs=1, held_out=ROWS)
    assert [line.partition(",")[0] for line in other.changes] == [
        "mean reward of rounds 1 to 2: measured with another reward",
        "held-out mean of steps 0 to 2: measured with another reward",
    ]
    assert other.best_mean < 2


def test_a_reward_that_an_environment_changed_to_is_another_one(session):
    given = {"over": ROWS, "n": 2, "jobs": 1, "max_tokens": 4, "seed": 1, "held_out": ROWS, "say": [].append}
    session.loop("letters", env=environment(100), **given)
    assert session.loop("letters", env=environment(100), **given).changes == []
    made = session.loop("letters", env=environment(1), **given)
    assert [line.partition(",")[0] for line in made.changes] == [
        "mean reward of rounds 1 to 2: measured with another reward",
        "held-out mean of steps 0 to 2: measured with another reward",
    ]


SCORED = """
import heapq
import numpy as np

WEIGHTS, CACHE, COUNTS, LOG, HEAP = {"long": 1.0}, {}, np.zeros(3), [], []

def cached(store, key, compute):
    if key not in store:
        store[key] = compute(key)
    return store[key]

def reward(answer):
    parts = {}
    parts["long"] = WEIGHTS["long"] * cached(CACHE, answer, len)
    COUNTS[len(answer) % 3] += 1
    log = LOG
    log.append(answer)
    heapq.heappush(HEAP, len(answer))
    return parts
"""


def scored_in(cell):
    names = {"__name__": "notebook"}
    exec(cell, names)
    return names


def test_what_scoring_itself_changes_is_no_other_measure_and_a_setting_on_its_line_is(session):
    names = scored_in(SCORED)
    made = loop(session, names["reward"], held_out=ROWS)
    assert made.changes == []
    assert made.history["reward"].notna().tolist() == [True, True, False]
    assert len(names["LOG"]) > len(names["CACHE"]) > 0

    session.reward("letters", names["reward"], overwrite=True)  # fills the cache further
    names["reward"]("another answer")
    assert loop(session, names["reward"], jobs=1, held_out=ROWS).changes == []
    assert loop(session, scored_in(SCORED)["reward"], jobs=1, held_out=ROWS).changes == []  # as after a restart

    names["WEIGHTS"] = {"long": 100.0}
    other = loop(session, names["reward"], jobs=1, held_out=ROWS)
    assert [line.partition(",")[0] for line in other.changes] == [
        "mean reward of rounds 1 to 4: measured with another reward",
        "held-out mean of steps 0 to 4: measured with another reward",
    ]


def test_what_an_environment_counts_is_no_other_measure(session):
    class Say:
        played = 0

        def __init__(self, row): ...

        def reset(self, seed):
            type(self).played += 1
            return "say"

        def step(self, answer):
            return Step("ok", float(len(answer)), done=True)

    given = {"over": ROWS, "n": 2, "jobs": 1, "max_tokens": 4, "seed": 1, "held_out": ROWS, "say": [].append}
    for _ in range(2):
        assert session.loop("letters", env=Say, **given).changes == []
    assert Say.played > 4


def test_rewards_of_an_earlier_version_are_compared_by_their_text_and_a_line_says_so(session):
    loop(session, jobs=1)
    earlier = """json_set(json_remove(options, '$.parts', '$.fingerprints'), '$.digests.hundreds', 'ab12')"""
    session.store._database.execute(f"UPDATE scorings SET options = {earlier}")
    lines: list[str] = []
    assert loop(session, hundreds, lines, jobs=1).changes == []
    assert lines[0] == (
        "some means were stored by an earlier version: only the source text of their reward can be compared"
    )
    assert [line.partition(",")[0] for line in loop(session, ones, jobs=1).changes] == [
        "mean reward of rounds 1 to 2: measured with another reward"
    ]
