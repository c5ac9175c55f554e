"""%runs in a notebook."""

import pytest

from rolloutlab.errors import InputError
from rolloutlab.store.models import SubmittedJob
from tests.labs import lab_with


@pytest.fixture
def trained(session):
    made = lab_with(session.store, ["a", "b"], name="letters", rewards=[0.0, 1.0])
    job = SubmittedJob("a" * 8, "embedded", "lab/practice", (f"letters:{made.generation}",), {}, made.created_at)
    session.store.jobs.add(job)
    session.store.jobs.set_status(job.id, "succeeded", 1)
    return session


def test_a_note_and_tags_are_written_in_a_cell(notebook, trained):
    notebook.run("%runs practice --tag keep --note 'steady, shorter answers'")
    assert (trained.runs()[0].tags, trained.runs()[0].note) == (("keep",), "steady, shorter answers")
    notebook.run("%runs practice --untag keep")
    assert trained.runs()[0].tags == ()


def test_a_tag_without_a_run_is_an_error(notebook, trained):
    with pytest.raises(InputError, match="of a run"):
        notebook.run("%runs --tag keep")


def test_an_empty_tag_is_refused_before_anything_is_written(notebook, trained):
    shown = notebook.error("%runs practice --note 'steady' --tag ''")
    assert shown == "InputError: a tag is empty\n  -> %runs practice --tag keep"
    assert (trained.runs()[0].tags, trained.runs()[0].note) == ((), "")
    notebook.run("%runs practice --tag keep")


def test_a_csv_file_that_cannot_be_written_says_a_cell_that_can(notebook, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = notebook.error("%runs practice --csv none/x.csv")
    assert shown.endswith("-> %runs lab/practice --csv run.csv")
    notebook.run(shown.partition("-> ")[2])
    assert (tmp_path / "run.csv").exists()


def test_the_cells_to_type_next_run(notebook, session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"over": [{"i": i} for i in range(2)], "n": 2, "max_tokens": 3, "jobs": 1, "seed": 1, "say": lambda _: None}
    for name in ("first", "second"):
        session.model(f"lab/{name}")
        session.loop(name, "user: {{i}}", lambda answer: min(1.0, len(answer) / 50), held_out=[{"i": 7}], **given)
    notebook.shell.user_ns["lab"] = session
    cells = notebook.run("%runs lab/first lab/second").overlay().next
    assert [cell.partition(" ")[0].partition("(")[0] for cell in cells] == ["%compare", "%export", "lab.report"]
    for cell in cells:
        notebook.run(cell)
    assert (tmp_path / "best" / "adapter_config.json").exists()
    assert (tmp_path / "run.html").exists()
