"""Wrong calls about runs: each says what is wrong and what to type, and changes nothing."""

import json

import pytest

from rolloutlab.errors import InputError, LabError, NotFoundError
from tests.runs.test_runs import HALF, two_steps


@pytest.fixture
def run(session, trainer):
    two_steps(trainer)
    return session.runs()[0]


@pytest.mark.parametrize("named", [[], (), None, 3, ["lab/practice", None]])
def test_a_report_of_no_run_says_how_to_name_one(session, run, tmp_path, monkeypatch, named):
    with pytest.raises(InputError, match="neither the name of a run nor several") as error:
        session.report(named, tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()
    monkeypatch.chdir(tmp_path)
    assert eval(error.value.hint, {"lab": session}).exists()


@pytest.mark.parametrize("named", [["lab/practice"], 0, None])
def test_a_name_that_is_no_text_is_refused(session, run, named):
    with pytest.raises(InputError, match="the name of a run is a text, not ") as error:
        session.runs(named)
    assert error.value.hint == "%runs lab/practice"
    with pytest.raises(InputError):
        session.runs("lab/practice", named)


def test_a_name_that_is_no_text_is_refused_in_a_lab_without_runs_too(session):
    with pytest.raises(InputError) as error:
        session.runs(0)
    assert error.value.hint == "%runs"


def test_one_text_is_one_tag(session, run):
    run.tags = "keep"
    assert run.tags == session.runs()[0].tags == ("keep",)


@pytest.mark.parametrize("tags", [None, 3, [1], ["keep", None], [""], " "])
def test_tags_that_are_no_texts_are_refused(session, run, tags):
    run.tags = ["first"]
    with pytest.raises(InputError, match="is no list of tags: a tag is a text") as error:
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


@pytest.mark.parametrize("path", [None, 3])
def test_a_csv_file_needs_a_path(run, path):
    with pytest.raises(InputError, match="is not a file path") as error:
        run.to_csv(path)
    assert error.value.hint == "%runs lab/practice --csv run.csv"


def test_a_csv_file_that_cannot_be_written_says_what_can(run, tmp_path):
    with pytest.raises(LabError, match="cannot be written") as error:
        run.to_csv(tmp_path / "none" / "x.csv")
    assert error.value.hint == "%runs lab/practice --csv run.csv"


@pytest.mark.parametrize("report_to", [3, [3], [None], ["tensorboard", 3]])
def test_trackers_that_are_no_texts_are_refused(session, run, report_to):
    with pytest.raises(InputError, match="is not a list of texts") as error:
        session.runs("lab/practice").send(report_to, say=[].append)
    assert error.value.hint == 'report_to=["tensorboard"]'
    with pytest.raises(InputError, match="is not a list of texts"):
        session.loop("letters", "user: {{i}}", len, over=[{"i": 1}], jobs=1, report_to=report_to)


def test_a_hint_quotes_a_name_as_a_cell_needs_it(session, trainer):
    trainer.train(trainer.sample("letters", HALF, model="lab/größe x"), step=1, model="lab/größe x")
    with pytest.raises(NotFoundError) as error:
        session.runs("lab/größe")
    assert error.value.hint == "%runs 'lab/größe x'"


def test_the_name_of_an_earlier_run_is_no_checkpoint(session, trainer):
    two_steps(trainer)
    trainer.train(trainer.sample("letters", [[100.0, 0.0], [100.0, 100.0]], step=2, code="v2"), step=3)
    with pytest.raises(InputError, match="lab/practice:1") as error:
        session.compare("letters", len, checkpoints=["lab/practice:1", "lab/practice"])
    assert error.value.hint == "%compare letters lab/practice:1 lab/practice --best"
