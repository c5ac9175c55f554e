"""Models are made by being selected, and by nothing else."""

import pytest

from rolloutlab.errors import InputError, NotFoundError


def test_a_model_that_is_only_named_is_not_made(session):
    session.model("lab/other")
    with pytest.raises(NotFoundError, match="there is no model 'lab/othr'") as unknown:
        session._models.existing("lab/othr")
    assert unknown.value.hint == "lab/other"
    with pytest.raises(InputError, match="is not a model name"):
        session._models.existing("other")
    assert "lab/othr" not in session.models.list().index


def test_the_selected_model_and_those_that_are_there_are_found(session):
    assert session._models.existing("lab/practice").steps == (0,)
    session.model("lab/other")
    assert session._models.existing("lab/practice").name == "lab/practice"
