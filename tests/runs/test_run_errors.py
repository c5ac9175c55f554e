"""Wrong calls about runs: each says what is wrong and what to type, and changes nothing."""

import json

import pytest

from rolloutlab.errors import InputError
from tests.runs.test_runs import two_steps


@pytest.fixture
def run(session, trainer):
    two_steps(trainer)
    return session.runs()[0]


def test_one_text_is_one_tag(session, run):
    run.tags = "keep"
    assert run.tags == session.runs()[0].tags == ("keep",)


@pytest.mark.parametrize("tags", [None, 3, [1], ["keep", None], [""], " "])
def test_tags_that_are_no_texts_are_refused(session, run, tags):
    run.tags = ["first"]
    with pytest.raises(InputError, match="tags are texts, not ") as error:
        run.tags = tags
    assert error.value.hint == "%runs lab/practice --tag keep"
    assert run.tags == session.runs()[0].tags == ("first",)


def test_a_lab_that_has_other_tags_already_is_shown(session, run):
    run.note = "steady"
    with session.store._database.write() as connection:
        connection.execute("UPDATE run_notes SET tags = ?", (json.dumps([1, "", None, "a\ud800b", "keep"]),))
    assert session.runs()[0].tags == ("1", "None", "a?b", "keep")
    assert "keep" in repr(session.runs())
    assert session.runs().frame["tags"].tolist() == ["1, None, a?b, keep"]
    again = session.runs()[0]
    again.tags = [*again.tags, "second"]
    assert session.runs()[0].tags == ("1", "None", "a?b", "keep", "second")


def test_no_note_is_an_empty_one(session, run):
    run.note = "steady"
    run.note = None
    assert run.note == session.runs()[0].note == ""


def test_a_note_that_is_no_text_is_refused(session, run):
    with pytest.raises(InputError, match="a note is a text, not 3") as error:
        run.note = 3
    assert error.value.hint == "%runs lab/practice --note 'steady'"
    assert session.runs()[0].note == ""


def test_halves_of_characters_are_replaced_in_notes_and_tags(session, run):
    run.note, run.tags = "a\ud800b", ["c\udfffd"]
    assert (run.note, run.tags) == (session.runs()[0].note, session.runs()[0].tags) == ("a?b", ("c?d",))


def test_two_objects_of_a_run_do_not_undo_each_other(session, run):
    other = session.runs()[0]
    run.note = "steady"
    other.tags = ["keep"]
    run.note = "steady, shorter answers"
    assert (session.runs()[0].note, session.runs()[0].tags) == ("steady, shorter answers", ("keep",))
