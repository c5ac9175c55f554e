"""The lab: collections and their generations, completions from any number of processes, rewards, and jobs."""

import math
import sqlite3
import subprocess
import sys
import threading

import pytest

from rolloutlab.api.wire.chat import SystemMessage, ToolMessage, UserMessage
from rolloutlab.api.wire.training import Event
from rolloutlab.errors import InputError, LabError, NotFoundError
from rolloutlab.store.lab import Lab
from rolloutlab.store.migrations import FIRST
from rolloutlab.store.models import Arrival, CollectionSummary, Group, NewGroup, Score, StoredTrajectory, SubmittedJob
from tests.labs import lab_with

SAMPLING = {"temperature": 0.7, "top_p": 0.9, "seed": 3}


@pytest.fixture
def opened(tmp_path):
    """Opens the lab of this test; all are closed at the end."""
    labs: list[Lab] = []

    def open_it() -> Lab:
        labs.append(Lab(tmp_path / "lab.db"))
        return labs[-1]

    yield open_it
    for lab in labs:
        lab.close()


@pytest.fixture
def lab(opened):
    return opened()


@pytest.fixture
def sample(lab, choice, question):
    """Samples a new generation of a collection with so many completions in each group."""

    def make(*sizes: int, name: str = "capitals") -> CollectionSummary:
        prompts = [NewGroup(question(f"Question {i}?"), {"n": i}) for i in range(len(sizes))]
        groups = [[f"Answer {i}" for i in range(size)] for size in sizes]
        return lab_with(lab, *groups, name=name, prompts=prompts, make=choice, step=2, sampling=SAMPLING)

    return make


def trajectories(lab: Lab, label: str = "capitals") -> list[StoredTrajectory]:
    return [t for group in lab.groups(lab.collection(label)) for t in group.trajectories]


def together(*works) -> None:
    """Does all of it at once, each in a thread."""
    start = threading.Barrier(len(works))
    failed: list[BaseException] = []

    def begin(work) -> None:
        start.wait()
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    threads = [threading.Thread(target=begin, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def job(**overrides) -> SubmittedJob:
    record = {
        "id": "7c1f",
        "service": "http://127.0.0.1:8000",
        "model": "lab/practice",
        "collections": ("capitals", "rivers:2"),
        "options": {"learning_rate": 2e-3, "ppo": True},
        "created_at": "2026-01-31T12:00:00+00:00",
    }
    return SubmittedJob(**record | overrides)


def test_a_new_lab_is_empty(lab):
    assert (lab.collections(), lab.jobs.newest_first()) == ([], [])


def test_the_bare_name_means_the_newest_generation_and_the_older_ones_stay(lab, sample):
    sample(1)
    sample(2)
    sample(3)
    assert {label: len(trajectories(lab, label)) for label in ("capitals", "capitals:1", "capitals:2")} == {
        "capitals": 3,
        "capitals:1": 1,
        "capitals:2": 2,
    }
    assert lab.collection("capitals") == lab.collection("capitals:3")


def test_the_sizes_of_a_lab_are_its_groups_by_label_newest_first(lab, sample):
    sample(1, 2)
    sample(1, name="rivers")
    sample(0)
    assert lab.sizes() == {"capitals": 1, "rivers": 1, "capitals:1": 2}
    assert list(lab.sizes()) == ["capitals", "rivers", "capitals:1"]


def test_a_generation_is_called_by_its_name_until_a_newer_one_takes_it(lab, sample):
    assert sample(1).label == "capitals"
    assert [t.name for t in trajectories(lab)] == ["capitals/0/0"]
    sample(1)
    assert lab.collection("capitals:1").label == "capitals:1"
    assert [t.name for t in trajectories(lab, "capitals:1")] == ["capitals:1/0/0"]
    assert [t.name for t in trajectories(lab)] == ["capitals/0/0"]


def test_collections_are_listed_newest_first_and_counted(lab, sample):
    sample(2, 1)
    sample(name="rivers")
    sample(1)
    first = trajectories(lab, "capitals:1")
    lab.rewards.give([Score(first[0], 1.0), Score(first[2], 0.5)], "function")
    listed = [(c.label, c.groups, c.trajectories, c.scored, c.mean_reward) for c in lab.collections()]
    assert listed == [("capitals", 1, 1, 0, None), ("rivers", 0, 0, 0, None), ("capitals:1", 2, 3, 2, 0.75)]


def test_two_who_open_the_same_name_at_once_get_a_generation_each(opened):
    generations: list[int] = []

    def open_ten(lab: Lab) -> None:
        generations.extend(lab.open_collection("capitals").generation for _ in range(10))

    labs = [opened() for _ in range(4)]
    together(*(lambda lab=lab: open_ten(lab) for lab in labs))
    assert sorted(generations) == list(range(1, 41))


def test_who_opens_a_generation_gets_that_one_even_when_someone_opens_a_newer_one_at_once(opened, tmp_path):
    others = opened()

    class Overtaken(Lab):
        """Someone else opens the same name between what this lab writes and what it reads back."""

        def collection(self, label: str) -> CollectionSummary:
            others.open_collection("capitals")
            return super().collection(label)

    lab = Overtaken(tmp_path / "lab.db")
    ours = lab.open_collection("capitals")
    lab.close()
    assert ours.generation == 1


@pytest.mark.parametrize("name", ["capitals", "a.b-c_d", "ÉTÉ", "7"])
def test_a_name_has_letters_digits_and_a_few_marks(lab, name):
    assert lab.open_collection(name).label == name


@pytest.mark.parametrize("name", ["", "a/b", "a:2", "a b", "a\n", "<script>", "../x"])
def test_any_other_name_is_refused(lab, name):
    with pytest.raises(InputError, match="is not a valid collection name"):
        lab.open_collection(name)
    assert lab.collections() == []


@pytest.mark.parametrize("label", ["capitls", "capitals:7", "capitals/0", "Capitals", "capital:1"])
def test_a_collection_that_is_not_there_comes_with_the_closest_name(lab, sample, label):
    sample(1)
    sample(1, name="rivers")
    with pytest.raises(NotFoundError, match=f"there is no collection '{label}'") as missing:
        lab.collection(label)
    assert missing.value.hint == "capitals"


def test_a_name_like_no_other_comes_with_how_to_list_or_to_sample(lab, sample):
    with pytest.raises(NotFoundError) as missing:
        lab.collection("zebra")
    assert missing.value.hint == "%%chat zebra"
    sample(1)
    with pytest.raises(NotFoundError) as missing:
        lab.collection("zebra")
    assert missing.value.hint == "%collections lists them"


def test_groups_come_back_in_their_order_with_prompt_and_row(lab, question):
    rows = [{"country": "France", "n": 1, "deep": {"a": [None, 1.5]}}, {}]
    added = lab.add_groups(
        lab.open_collection("capitals"), [NewGroup(question(f"{i}?"), row) for i, row in enumerate(rows)]
    )
    found = lab.groups(lab.collection("capitals"))
    assert found == added
    assert [(g.name, g.prompt[0].content, g.row) for g in found] == [
        ("capitals/0", "0?", rows[0]),
        ("capitals/1", "1?", rows[1]),
    ]


def test_one_group_can_be_asked_for(lab, sample):
    collection = sample(1, 2, 3)
    (group,) = lab.groups(collection, position=1)
    assert (group.name, len(group.trajectories)) == ("capitals/1", 2)
    assert lab.groups(collection, position=3) == []


def test_groups_that_cannot_be_added_all_are_not_added_at_all(lab, question):
    collection = lab.open_collection("capitals")
    with pytest.raises(AttributeError):
        lab.add_groups(collection, [NewGroup(question(), {}), NewGroup(["no message"], {})])
    assert lab.groups(collection) == []


def test_completions_lie_at_their_places(lab, sample, choice):
    (group,) = lab.groups(sample(2))
    lab.put(group, [Arrival(2, [choice("later")])], model="m", step=None, sampling={})
    assert [(t.name, t.answer) for t in trajectories(lab)] == [
        ("capitals/0/0", "Answer 0"),
        ("capitals/0/1", "Answer 1"),
        ("capitals/0/2", "later"),
    ]


def test_completions_that_cannot_be_added_all_are_not_added_at_all(lab, sample, choice):
    (group,) = lab.groups(sample(0))
    with pytest.raises(AttributeError):
        lab.put(group, [Arrival(0, [choice()]), Arrival(1, ["no choice"])], model="m", step=None, sampling={})
    assert trajectories(lab) == []


def test_a_trajectory_survives_reopening_to_the_last_bit(lab, opened, choice):
    prompt = [
        SystemMessage.model_validate({"role": "system", "content": "Be brief.", "x_trace": {"id": None}}),
        UserMessage.model_validate({"role": "user", "content": [{"type": "text", "text": "Où ? \u2028", "cache": 1}]}),
    ]
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}", "x": 1}}
    called = choice(None, message={"role": "assistant", "content": None, "tool_calls": [call], "x_thought": "hm"})
    items = [called, ToolMessage(role="tool", tool_call_id="c", content="map"), choice("Paris\0", x_policy=4)]
    (group,) = lab.add_groups(lab.open_collection("capitals"), [NewGroup(prompt, {"country": "Fränce"})])
    lab.put(group, [Arrival(0, items)], model="lab/practice@2", step=2, sampling=SAMPLING)
    lab.close()
    ((kept,),) = [group.trajectories for group in opened().groups(opened().collection("capitals"))]
    assert kept.items == (*prompt, *items)
    assert [item.to_wire() for item in kept.items] == [item.to_wire() for item in (*prompt, *items)]
    assert [(t.token_id, t.logprob, t.bytes) for t in kept.choices[-1].sampled_tokens()] == [
        (17, -0.1234567890123456, [80, 97, 114]),
        (4, -1e-17, None),
    ]
    assert (kept.model, kept.step, kept.sampling, kept.row) == ("lab/practice@2", 2, SAMPLING, {"country": "Fränce"})


def test_completions_of_several_threads_and_connections_are_all_there_under_names_of_their_own(
    lab, opened, sample, choice
):
    (group,) = lab.groups(sample(0))
    labs = [opened(), opened(), lab, lab]

    def add(lab: Lab, who: int) -> None:
        for i in range(10):
            lab.put(group, [Arrival(4 * i + who, [choice(f"{who} {i}")])], model="m", step=None, sampling={})

    together(*(lambda lab=lab, who=who: add(lab, who) for who, lab in enumerate(labs)))
    found = trajectories(lab)
    assert [t.name for t in found] == [f"capitals/0/{i}" for i in range(40)]
    assert sorted(t.answer for t in found) == sorted(f"{who} {i}" for who in range(4) for i in range(10))
    for who in range(4):
        assert [t.answer for t in found if t.answer.startswith(f"{who} ")] == [f"{who} {i}" for i in range(10)]


KILLED = """
import os, signal, sys
from pathlib import Path
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival
from rolloutlab.api.wire.chat import Choice

lab = Lab(Path(sys.argv[1]))
(group,) = lab.groups(lab.collection("capitals"))
for i in range(10):
    answer = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": f"{sys.argv[2]} {i}"}}
    place = 2 * i + (sys.argv[2] == "b")
    lab.put(group, [Arrival(place, [Choice.model_validate(answer)])], model="m", step=None, sampling={})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_completions_of_several_processes_are_all_there_also_when_they_are_killed(lab, sample, tmp_path):
    sample(0)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "lab.db")]
    processes = [subprocess.Popen([*command, who]) for who in ("a", "b")]
    assert [process.wait() for process in processes] == [-9, -9]
    assert sorted(t.answer for t in trajectories(lab)) == sorted(f"{who} {i}" for who in "ab" for i in range(10))


def test_a_reward_is_kept_with_its_components_and_who_gave_it(lab, opened, sample):
    sample(2)
    lab.rewards.give([Score(trajectories(lab)[0], 0.75, {"right": 0.5, "short": 0.25})], "function")
    first, second = trajectories(opened())
    assert (first.reward, first.components, first.source) == (0.75, {"right": 0.5, "short": 0.25}, "function")
    assert (second.reward, second.components, second.source) == (None, {}, None)


@pytest.mark.parametrize("reward", [0.0, -2.5, 1e-300, 1e300, 0.1])
def test_a_reward_is_kept_to_the_last_bit(lab, sample, reward):
    sample(1)
    lab.rewards.give([Score(trajectories(lab)[0], reward)], "hand")
    assert trajectories(lab)[0].reward == reward


def test_every_change_of_a_reward_is_remembered(lab, opened, sample, monkeypatch):
    sample(1)
    monkeypatch.setenv("LOGNAME", "ada")
    lab.rewards.give([Score(trajectories(lab)[0], 1.0, {"right": 1.0})], "function")
    monkeypatch.setenv("LOGNAME", "grace")
    lab.rewards.give([Score(trajectories(lab)[0], 0.5)], "hand")
    history = opened().rewards.history(trajectories(lab)[0])
    assert [(e.trajectory, e.who, e.source, e.old, e.new, e.components) for e in history] == [
        ("capitals/0/0", "ada", "function", None, 1.0, {"right": 1.0}),
        ("capitals/0/0", "grace", "hand", 1.0, 0.5, {}),
    ]
    assert history[0].at < history[1].at


def test_what_give_returns_is_what_is_remembered(lab, sample):
    sample(2)
    edits = lab.rewards.give([Score(t, 1.0) for t in trajectories(lab)], "hand")
    assert edits == [edit for t in trajectories(lab) for edit in lab.rewards.history(t)]


def test_a_reward_that_stays_the_same_is_not_remembered_again(lab, sample):
    sample(2)
    first, second = trajectories(lab)
    lab.rewards.give([Score(first, 1.0)], "function")
    edits = lab.rewards.give([Score(first, 1.0), Score(second, 1.0)], "function")
    assert [e.trajectory for e in edits] == ["capitals/0/1"]
    assert len(lab.rewards.history(first)) == 1


def test_the_old_reward_is_the_one_that_was_there_whatever_the_caller_had_seen(lab, opened, sample):
    sample(1)
    (seen,) = trajectories(lab)
    opened().rewards.give([Score(seen, 1.0)], "function")
    lab.rewards.give([Score(seen, 0.0)], "hand")
    assert [(e.old, e.new) for e in lab.rewards.history(seen)] == [(None, 1.0), (1.0, 0.0)]


def test_a_reward_that_someone_else_has_changed_since_can_be_set_back(lab, opened, sample):
    sample(1)
    lab.rewards.give([Score(trajectories(lab)[0], 0.5)], "hand")
    (seen,) = trajectories(lab)
    opened().rewards.give([Score(trajectories(lab)[0], 1.0)], "function")
    lab.rewards.give([Score(seen, 0.5)], "hand")
    assert trajectories(lab)[0].reward == 0.5


@pytest.mark.parametrize("components", [{}, {"right": object()}])
def test_rewards_are_given_all_or_none(lab, sample, components):
    sample(2)
    first, second = trajectories(lab)
    bad = Score(second, 1.0 if components else math.nan, components)
    with pytest.raises((TypeError, sqlite3.IntegrityError, LabError)):
        lab.rewards.give([Score(first, 1.0), bad], "function")
    assert [t.reward for t in trajectories(lab)] == [None, None]
    assert lab.rewards.history(first) == []


def test_jobs_come_back_newest_first(lab, opened):
    jobs = [job(id="b"), job(id="a", created_at="2026-01-30T12:00:00+00:00"), job(id="c", collections=(), options={})]
    for submitted in jobs:
        lab.jobs.add(submitted)
    assert opened().jobs.newest_first() == jobs[::-1]


def test_what_a_lab_remembers_is_a_plain_value(lab, sample):
    (group,) = lab.groups(sample(1))
    assert isinstance(group, Group)
    assert group == lab.groups(lab.collection("capitals"))[0]


def test_what_is_finished_at_its_place_stays_as_it_is(lab, sample, choice):
    (group,) = lab.groups(sample(1))
    lab.put(group, [Arrival(0, [choice("another")])], model="m", step=9, sampling={})
    assert [t.answer for t in trajectories(lab)] == ["Answer 0"]


def test_a_conversation_cut_short_between_two_turns_waits_unseen_until_it_is_finished(lab, sample, choice, question):
    (group,) = lab.groups(sample(0))
    lab.put(group, [Arrival(0, [choice("first")], pending=1)], model="m", step=0, sampling={})
    assert trajectories(lab) == []
    ((waiting,),) = [g.trajectories for g in lab.groups(lab.collection("capitals"), unfinished=True)]
    assert (waiting.answer, waiting.pending) == ("first", 1)
    lab.put(group, [Arrival(0, [choice("first"), *question(), choice("second")])], model="m", step=0, sampling={})
    assert [(t.answer, t.pending) for t in trajectories(lab)] == [("second", 0)]


def test_a_collection_knows_its_plan_what_is_missing_and_what_it_cost(lab, choice, question):
    collection = lab.open_collection("capitals", {"total": 4, "model": "lab/practice"})
    groups = lab.add_groups(collection, [NewGroup(question(), {}), NewGroup(question(), {})])
    for group in groups:
        lab.put(group, [Arrival(0, [choice()])], model="m", step=0, sampling={}, usage=(10, 3))
    found = lab.collection("capitals")
    assert (found.plan["model"], found.missing) == ("lab/practice", 2)
    assert (found.prompt_tokens, found.completion_tokens) == (20, 6)
    lab.spend(found, 100, 40)
    assert lab.collection("capitals").prompt_tokens == 120
    assert lab.collection("capitals").completion_tokens == 46


def test_a_lab_of_the_first_version_opens_with_its_reward_history(tmp_path):
    file = sqlite3.connect(tmp_path / "lab.db")
    file.executescript(FIRST)
    file.executescript("""
        INSERT INTO collections VALUES (1, 'capitals', 1, '2026-01-31');
        INSERT INTO groups VALUES (1, 1, 0, '[{"role": "user", "content": "Capital?"}]', '{}');
        INSERT INTO trajectories VALUES (1, 1, 0, '[]', 'm', 0, '{}', '2026-01-31', 0.5, '{}', 'hand');
        INSERT INTO edits VALUES (1, 1, 'then', 'ada', 'function', NULL, 1.0, '{"right": 1.0}');
        INSERT INTO edits VALUES (2, 1, 'later', 'bob', 'hand', 1.0, 0.5, '{}');
        PRAGMA user_version = 1;
    """)
    file.close()
    lab = Lab(tmp_path / "lab.db")
    (found,) = trajectories(lab)
    assert (found.reward, found.source, found.pending) == (0.5, "hand", 0)
    history = lab.rewards.history(found)
    assert [(e.who, e.source, e.old, e.new) for e in history] == [
        ("ada", "function", None, 1.0),
        ("bob", "hand", 1.0, 0.5),
    ]
    lab.close()


def test_the_events_of_a_job_are_kept_with_it_and_go_with_it(lab):
    told = [Event(id="1", type="training_started", data={"step": 0}), Event(id="2", type="training_ended", data={})]
    lab.jobs.add(job(id="key"))
    lab.jobs.keep_events("key", told[:1])
    lab.jobs.keep_events("key", told)
    lab.jobs.rename("key", "a")
    assert (lab.jobs.events("a"), lab.jobs.events("key")) == (told, [])
    lab.jobs.forget("a")
    assert lab.jobs.events("a") == []
    lab.jobs.keep_events("a", told)
    assert lab.jobs.events("a") == []


def plans(lab: Lab, work) -> list[str]:
    """How SQLite goes about every query of some work."""
    asked: list[str] = []
    lab._database._connection.set_trace_callback(asked.append)
    work()
    lab._database._connection.set_trace_callback(None)
    return [row["detail"] for sql in asked for row in lab._database.read(f"EXPLAIN QUERY PLAN {sql}")]


def test_a_collection_is_found_and_one_of_its_groups_read_without_looking_at_others(lab, sample):
    sample(3, 3)
    steps = plans(lab, lambda: lab.groups(lab.find("capitals"), 1))
    assert not [step for step in steps if step.startswith("SCAN") or "TEMP B-TREE" in step]
    assert (
        "SEARCH g USING COVERING INDEX sqlite_autoindex_groups_1 (collection_id=? AND position>? AND position<?)"
        in (steps)
    )


def test_collections_are_counted_without_reading_a_trajectory_or_sorting_one(lab, sample):
    sample(3, 3)
    steps = plans(lab, lab.collections)
    assert [step for step in steps if step.startswith("SCAN")] == ["SCAN c"]
    assert not [step for step in steps if "TEMP B-TREE" in step]
    assert all("COVERING" in step for step in steps if step.startswith(("SEARCH t", "SEARCH g")))


def test_a_collection_read_bit_by_bit_is_the_same(lab, choice, question):
    groups = lab.add_groups(lab.open_collection("capitals"), [NewGroup(question(), {"n": i}) for i in range(150)])
    for group in groups[::2]:
        lab.put(group, [Arrival(0, [choice()])], model="m", step=0, sampling={})
    collection = lab.find("capitals")
    assert list(lab.each_group(collection)) == lab.groups(collection)
    assert [group.position for group in lab.each_group(collection)] == list(range(150))


def test_what_is_put_at_once_is_all_there_or_nothing(opened, sample, choice):
    sample(0)
    lab, other = opened(), opened()
    (group,) = lab.groups(lab.collection("capitals"))

    def put(position: int) -> None:
        lab.put(group, [Arrival(position, [choice("a")])], model="m", step=None, sampling=SAMPLING, usage=(1, 2))

    def put_and_fail() -> None:
        put(0)
        raise KeyError

    def put_two() -> None:
        put(0)
        put(1)
        assert trajectories(other) == []

    with pytest.raises(KeyError):
        lab.at_once(put_and_fail)
    assert trajectories(other) == []
    lab.at_once(put_two)
    assert len(trajectories(other)) == 2
    assert other.collection("capitals").completion_tokens == 4


def test_a_collection_is_found_by_its_number_under_any_name_until_it_is_deleted(lab, sample):
    number = sample(1).id
    lab.lifecycle.rename("capitals", "cities")
    assert lab.by_id(number).name == "cities"
    lab.lifecycle.delete("cities")
    with pytest.raises(NotFoundError, match="cities:1 was deleted") as gone:
        lab.by_id(number)
    assert gone.value.hint == "%collections --restore cities:1"
