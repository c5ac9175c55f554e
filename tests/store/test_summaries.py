"""Outlines of trajectories: written with them, never out of date, and made later for what an older version wrote."""

import sqlite3

import pytest

from rolloutlab.api.wire.chat import AssistantMessage
from rolloutlab.store.lab import Lab
from rolloutlab.store.migrations import ANSWERS_WITHOUT_REASONING, FIRST, MIGRATIONS, PLANS_AND_UNDO
from rolloutlab.store.models import Arrival, NewGroup, Recorded, Score, TrajectorySummary
from rolloutlab.store.sqlite import Database

LONG = "It is " + "very " * 100 + "straßE"


@pytest.fixture
def lab(tmp_path):
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.close()


@pytest.fixture
def put(lab, choice, question):
    """Puts one answer per place into a group of the newest `capitals`, making it at first."""

    def put(*said: str | None, pending: int = 0, extra: dict | None = None, **overrides):
        if not lab.collections():
            lab.add_groups(lab.open_collection("capitals"), [NewGroup(question(), {}), NewGroup(question("Peru?"), {})])
        arrivals = [Arrival(i, [choice(one, **overrides)], pending, extra or {}) for i, one in enumerate(said)]
        lab.put(lab.groups(lab.find("capitals"))[0], arrivals, model="m", step=0, sampling={})

    return put


def outlines(lab: Lab) -> list[TrajectorySummary]:
    return lab.outlines.of(lab.find("capitals"))


def answers(lab: Lab) -> list[str]:
    found = lab.outlines.answers(outline.id for outline in outlines(lab))
    return [found[outline.id] for outline in outlines(lab)]


def assert_outlines_are_those_of_the_trajectories(lab: Lab) -> None:
    trajectories = [t for group in lab.groups(lab.find("capitals")) for t in group.trajectories]
    expected = [
        (t.id, t.name, t.reward, t.source, t.components, t.history_tokens, t.finish_reason) for t in trajectories
    ]
    assert [
        (o.id, f"capitals/{o.group}/{o.position}", o.reward, o.source, o.components, o.tokens_H, o.finish_reason)
        for o in outlines(lab)
    ] == expected
    assert answers(lab) == [t.answer for t in trajectories]
    previews = lab.outlines.previews(t.id for t in trajectories)
    assert [previews[t.id] for t in trajectories] == [(t.answer[:200], len(t.answer) > 200) for t in trajectories]


def test_an_outline_says_what_the_trajectory_does(lab, put, choice):
    other = {"messages_and_choices": [choice("More").to_wire()]}
    put("Paris", LONG, "", None, "Par\0is", extra={"additional_histories": [other]})
    lab.rewards.give([Score(lab.groups(lab.find("capitals"))[0].trajectories[1], 0.1, {"right": 0.1})], "judge")
    assert_outlines_are_those_of_the_trajectories(lab)
    assert outlines(lab)[0].tokens_H == (2, 2)


def test_what_is_recorded_elsewhere_has_an_outline_too(lab, choice, question):
    said = AssistantMessage(role="assistant", content="Paris it is")
    with lab.draft() as draft:
        draft.add(Recorded("", "capitals", i, question(), items, reward=1.0) for i, items in enumerate(([said], [])))
        draft.publish()
    assert_outlines_are_those_of_the_trajectories(lab)
    assert answers(lab) == ["Paris it is", ""]


def test_what_is_not_finished_is_no_row_and_has_another_outline_when_it_is(lab, put):
    put("first", pending=1)
    assert outlines(lab) == []
    put("second")
    assert answers(lab) == ["second"]
    put("third")
    assert answers(lab) == ["second"]
    assert_outlines_are_those_of_the_trajectories(lab)


@pytest.mark.parametrize("column", ["items", "extra"])
def test_an_outline_whose_trajectory_is_changed_by_whoever_it_is_is_made_anew(lab, put, column):
    put("Paris", "Lyon")
    value = "[]" if column == "items" else '{"additional_histories": []}'
    with lab._database.write() as connection:
        connection.execute(f"UPDATE trajectories SET {column} = ? WHERE position = 0", (value,))
        assert connection.execute("SELECT count(*) FROM outlines").fetchone()[0] == 1
    assert_outlines_are_those_of_the_trajectories(lab)


def test_a_file_of_the_version_before_gets_its_outlines_when_they_are_first_asked_for(tmp_path, choice):
    file = sqlite3.connect(tmp_path / "old.db")
    file.executescript(f"{FIRST}; {PLANS_AND_UNDO}")
    item = choice(LONG).to_json()
    file.execute("INSERT INTO collections VALUES (1, 'capitals', 1, '2026-01-31', '{}', 0, 0, NULL)")
    file.execute("""INSERT INTO groups VALUES (1, 1, 0, '[{"role": "user", "content": "Capital?"}]', '{}', '[[]]')""")
    sql = "INSERT INTO trajectories VALUES (?, 1, ?, ?, 'm', 0, '{}', 'then', ?, '{}', 'hand', ?, '{}')"
    for i in range(600):
        values = (i + 1, i, f"[{item}]", 0.5 if i else None, i == 7)
        file.execute(sql, values)
    file.execute("PRAGMA user_version = 2")
    file.commit()
    file.close()
    lab = Lab(tmp_path / "old.db")
    assert len(outlines(lab)) == 599
    assert_outlines_are_those_of_the_trajectories(lab)
    assert lab._database.read("SELECT count(*) FROM outlines")[0][0] == 599
    lab.close()


def test_answers_of_the_version_before_lose_the_reasoning_that_they_were_kept_with(tmp_path, choice):
    Database(tmp_path / "old.db", MIGRATIONS[: MIGRATIONS.index(ANSWERS_WITHOUT_REASONING)]).close()
    file = sqlite3.connect(tmp_path / "old.db")
    file.execute("INSERT INTO collections VALUES (1, 'capitals', 1, '2026-01-31', '{}', 0, 0, NULL)")
    file.execute("""INSERT INTO groups VALUES (1, 1, 0, '[{"role": "user", "content": "Capital?"}]', '{}', '[[]]')""")
    texts = ["<think>hm</think>Paris", f"<think>{LONG}</think>Lyon", "Lima", f"{'hm ' * 100}\n</think>\n\nCusco"]
    for i, text in enumerate(texts):
        sql = "INSERT INTO trajectories VALUES (?, 1, ?, ?, 'm', 0, '{}', 'then', 0.5, '{}', 'hand', 0, '{}')"
        file.execute(sql, (i + 1, i, f"[{choice(text).to_json()}]"))
        kept = text[:200], text if len(text) > 200 else None
        file.execute("INSERT INTO outlines VALUES (?, '[2]', 'stop', ?, ?)", (i + 1, *kept))
    file.commit()
    file.close()
    lab = Lab(tmp_path / "old.db")
    assert [lab.outlines.answers([o.id])[o.id] for o in outlines(lab)] == ["Paris", "Lyon", "Lima", "Cusco"]
    assert_outlines_are_those_of_the_trajectories(lab)
    reasonings = lab.outlines.reasonings(range(1, 5))
    assert reasonings == {1: "hm", 2: LONG.strip(), 4: ("hm " * 100).strip()}
    assert lab.outlines.may_reason(lab.find("capitals"))
    lab.close()


def test_conversations_without_reasoning_are_not_read_for_it(lab, put):
    put("Paris", LONG)
    assert not lab.outlines.may_reason(lab.find("capitals"))
    assert lab.outlines.reasonings(o.id for o in outlines(lab)) == {}


@pytest.mark.parametrize("part", ["paris", "VERY STRASSE", "strasse", "\0i", "%", "_"])
def test_a_part_is_found_in_the_whole_answer_in_whatever_case(lab, put, part):
    put("PARIS", LONG, "Par\0is 100%", "a_b")
    expected = {o.id for o, said in zip(outlines(lab), answers(lab), strict=True) if part.casefold() in said.casefold()}
    assert lab.outlines.find_holding(lab.find("capitals"), part) == expected
    assert len(expected) == 1


def test_the_prompts_of_groups_are_their_last_user_messages(lab, put):
    put("Paris")
    assert lab.outlines.prompts(lab.find("capitals"), [0, 1, 5]) == {0: "Capital of France?", 1: "Peru?"}
    assert lab.outlines.positions(lab.find("capitals")) == [0, 1]
    assert lab.outlines.count(lab.find("capitals")) == 1


def test_rows_are_read_without_touching_a_conversation(lab, put):
    put("Paris", "Lyon")
    asked: list[str] = []
    lab._database._connection.set_trace_callback(asked.append)
    outlines(lab)
    lab.outlines.origins(lab.find("capitals"))
    lab.outlines.count(lab.find("capitals"))
    lab._database._connection.set_trace_callback(None)
    plans = [row["detail"] for sql in asked for row in lab._database.read(f"EXPLAIN QUERY PLAN {sql}")]
    assert plans
    assert all("COVERING" in step for step in plans if step.startswith(("SEARCH t", "SEARCH o")))
    assert not [step for step in plans if step.startswith("SCAN") or "TEMP B-TREE" in step]


def test_whether_anything_was_written_is_told_for_this_connection_and_others(lab, put, tmp_path):
    put("Paris")
    before = lab.changes()
    outlines(lab)
    assert lab.changes() == before
    other = Lab(tmp_path / "lab.db")
    other.rewards.give([Score(other.groups(other.find("capitals"))[0].trajectories[0], 1.0)], "hand")
    assert lab.changes() != before
    before = other.changes()
    other.rewards.undo(other.find("capitals"))
    assert other.changes() != before
    other.close()
