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
