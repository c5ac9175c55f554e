"""What a deliberate error looks like, and that the tree in the docstring is the tree of the code."""

import inspect
import re

import pytest

from rolloutlab import errors
from rolloutlab.errors import Cancelled, InputError, RolloutlabError


def drawn() -> dict[str, str]:
    """Every error of the docstring's tree, with the one it hangs on."""
    parents: dict[int, str] = {}
    tree: dict[str, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"(?P<branch>[ │├└─]+)(?P<name>[A-Z]\w+)", line):
            depth = len(found["branch"]) // 4
            parents[depth] = found["name"]
            tree[found["name"]] = parents.get(depth - 1, "Exception")
    return tree


def test_the_tree_is_drawn():
    assert drawn()["RolloutlabError"] == "Exception"
    assert drawn()["SignInError"] == "ServiceError"


@pytest.mark.parametrize(("name", "parent"), drawn().items())
def test_every_error_exists_and_descends_as_drawn(name, parent):
    assert [base.__name__ for base in getattr(errors, name).__bases__] == [parent]


def test_no_error_is_missing_from_the_tree():
    found = inspect.getmembers(errors, inspect.isclass)
    assert {name for name, kind in found if issubclass(kind, RolloutlabError)} == set(drawn())


@pytest.mark.parametrize("name", drawn())
def test_an_error_is_shown_as_what_happened_and_what_to_type(name):
    error = getattr(errors, name)("epsilon is -1", hint="epsilon: 0.2")
    assert error._render_traceback_() == [f"{name}: epsilon is -1", "  -> epsilon: 0.2"]


def test_an_error_with_nothing_to_type_is_one_line():
    assert InputError("epsilon is -1")._render_traceback_() == ["InputError: epsilon is -1"]


def test_the_text_of_an_error_is_its_message():
    error = InputError("epsilon is -1", hint="epsilon: 0.2")
    assert (str(error), error.message, error.hint) == ("epsilon is -1", "epsilon is -1", "epsilon: 0.2")


def test_being_cancelled_is_no_error_of_ours():
    assert not issubclass(Cancelled, RolloutlabError)
