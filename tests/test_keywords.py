"""Calls whose keyword arguments a typed dictionary lists."""

import inspect
from typing import TypedDict, Unpack

import pytest

from rolloutlab.errors import InputError
from rolloutlab.keywords import takes


class Cooking(TypedDict, total=False):
    """How anything is cooked.

    heat: in degrees. 100 by default.
    """

    heat: float | None


class Baking(Cooking, total=False):
    """How something is baked, beside that.

    minutes: in the oven, where a text
        may go on.
    """

    minutes: int


@takes(Cooking, Baking)
def bake(what: str, *, twice: bool = False, **given: Unpack[Baking]) -> tuple[str, Baking]:
    """Bake something.

    Args:
        what: a loaf.
        twice: once more.

    Raises:
        InputError: it burns.
    """
    return f"{what}{' twice' * twice}", given


def test_the_call_gets_the_options_that_are_given_and_none_is_the_default():
    assert bake("rye", heat=220.5, minutes=40) == ("rye", {"heat": 220.5, "minutes": 40})
    assert bake(what="rye", twice=True, heat=None, minutes=0) == ("rye twice", {"minutes": 0})


@pytest.mark.parametrize(
    ("typed", "hint"), [("minute", "minutes=..."), ("twise", "twice=..."), ("yeast_of_the_day", "lab.bake?")]
)
def test_an_unknown_keyword_is_an_error_with_the_closest_one(typed, hint):
    with pytest.raises(InputError, match=f"there is no setting '{typed}'") as caught:
        bake("rye", **{typed: 1})
    assert caught.value.hint == hint


def test_help_and_completion_see_each_option():
    assert list(inspect.signature(bake).parameters) == ["what", "twice", "heat", "minutes"]
    assert inspect.getdoc(bake) == inspect.cleandoc("""
        Bake something.

        Args:
            what: a loaf.
            twice: once more.
            heat: in degrees. 100 by default.
            minutes: in the oven, where a text
                may go on.

        Raises:
            InputError: it burns.
    """)
