"""What is new in a lab: everything that has happened since a mark, each time."""

import pytest

from rolloutlab.store.changes import Cursor
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, NewGroup, Recorded, Score, SubmittedJob
from tests.labs import lab_with


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.close()


@pytest.fixture
def put(lab, choice, question):
    """Samples some answers into a new generation of a collection; the ids of its trajectories."""

    def put(name, *said, pending=0):
        prompts = [NewGroup(question(), {"country": "France"})]
        collection = lab_with(lab, said, name=name, prompts=prompts, make=choice, model="m", step=3, pending=pending)
        return [each.id for each in lab.groups(collection, unfinished=True)[0].trajectories]

    return put


@pytest.fixture
def news(lab):
    """What is new since the last call; each mark is written and read again."""
    marks = [Cursor()]

    def news():
        found = lab.feed.since(marks[-1])
        marks.append(Cursor.from_json(found.mark.to_json()))
        return found

    return news


def test_what_arrived_is_told_once(put, news):
    first = put("capitals", "Paris", "Lyon")
    assert news().arrived == first
    second = put("capitals", "Nice")
    assert news().arrived == second
    assert not news()


def test_a_conversation_is_told_when_it_is_finished(lab, put, news, choice):
    begun = put("capitals", "Paris", pending=1)
    assert not news()
    (group,) = lab.groups(lab.find("capitals"), unfinished=True)
    lab.put(group, [Arrival(0, [choice("Paris"), choice("Sure")])], model="m", step=3, sampling={})
    assert news().arrived == begun


def test_every_change_of_a_reward_tells_of_its_group(lab, put, news):
    put("capitals", "Paris", "Lyon")
    news()
    (group,) = lab.groups(lab.find("capitals"))
    lab.rewards.give([Score(group.trajectories[0], 1.0)], "hand")
    assert news().rescored == [group.id]
    lab.rewards.undo(lab.find("capitals"))
    assert news().rescored == [group.id]
    assert not news()


def test_what_is_deleted_is_gone_and_what_is_restored_arrives_again(lab, put, news):
    ids = put("capitals", "Paris")
    news()
    lab.lifecycle.delete("capitals")
    assert news().gone == ["capitals:1"]
    lab.lifecycle.restore("capitals")
    assert news().arrived == ids


def test_a_rename_is_told_as_one_and_jobs_follow_it(lab, put, news):
    put("capitals", "Paris")
    lab.jobs.add(SubmittedJob("01ab", "embedded", "m", ("capitals:1",), {}, "2026-01-31T12:00:00+00:00"))
    news()
    lab.lifecycle.rename("capitals", "cities")
    found = news()
    assert (found.gone, found.renamed, found.arrived) == ([], {"capitals:1": "cities:1"}, [])
    assert (found.trained, lab.jobs.newest_first()[0].collections) == (["cities:1"], ("cities:1",))


def test_names_that_were_exchanged_are_goings_and_arrivals(lab, put, news):
    ids = put("capitals", "Paris") + put("rivers", "Seine")
    news()
    for old, new in (("capitals", "x"), ("rivers", "capitals"), ("x", "rivers")):
        lab.lifecycle.rename(old, new)
    found = news()
    assert (sorted(found.gone), found.renamed, found.arrived) == (["capitals:1", "rivers:1"], {}, ids)


def test_a_draft_is_told_when_it_is_published(lab, news, choice, question):
    with lab.draft() as draft:
        draft.add([Recorded("line 1", "capitals", 0, question(), [choice()], reward=1.0)])
        assert not news().arrived
        draft.publish()
    (arrived,) = news().arrived
    (entry,) = lab.feed.entries([arrived])
    assert entry.name == "capitals:1/0/0"


def test_a_job_tells_of_its_collections(lab, put, news):
    put("capitals", "Paris")
    news()
    lab.jobs.add(SubmittedJob("local", "embedded", "m", ("capitals:1",), {}, "2026-01-31T12:00:00+00:00"))
    found = news()
    assert (found.trained, found.mark.jobs) == (["capitals:1"], {"local": ["capitals:1"]})
    lab.jobs.rename("local", "01ab")
    assert news().trained == ["capitals:1"]
    assert not news()


def test_an_entry_is_the_trajectory_as_it_lies_there(lab, put):
    ids = put("capitals", "Paris")
    (entry,) = lab.feed.entries(ids)
    told = (entry.collection, entry.generation, entry.group, entry.model, entry.step, entry.row, entry.tokens)
    assert told == ("capitals", 1, "capitals:1/0", "m", 3, {"country": "France"}, 2)
    assert [entry.prompt[0]["content"], entry.items[0]["message"]["content"]] == ["Capital of France?", "Paris"]


def test_rewards_come_by_group_in_order(lab, put):
    put("capitals", "Paris", "Lyon")
    (group,) = lab.groups(lab.find("capitals"))
    lab.rewards.give([Score(group.trajectories[1], 0.5, {"right": 0.5})], "function")
    (members,) = lab.feed.scored([group.id]).values()
    told = [(m.name, m.reward, m.components, m.source) for m in members]
    assert told == [("capitals:1/0/0", None, {}, None), ("capitals:1/0/1", 0.5, {"right": 0.5}, "function")]
