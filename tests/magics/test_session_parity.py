"""Every magic is one documented call: a notebook can become a script by writing `lab.NAME(...)` for `%NAME ...`."""

import inspect
import keyword
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from rolloutlab.magics import register
from rolloutlab.magics.cells import LabMagics
from rolloutlab.session import Session
from rolloutlab.settings import Settings


def every_magic() -> dict[str, Any]:
    """The magics as they are typed, such as `%%chat`."""
    shell = InteractiveShell()
    register(shell, Session(Settings(home=None)))
    shell.history_manager.end_session()
    return {
        f"{prefix}{name}": magic
        for kind, prefix in (("line", "%"), ("cell", "%%"))
        for name, magic in shell.magics_manager.magics[kind].items()
        if isinstance(getattr(magic, "__self__", None), LabMagics)
    }


MAGICS = every_magic()
PUBLIC = [name for name in dir(Session) if callable(getattr(Session, name)) and not name.startswith("_")]


def call_of(magic: str) -> Any:
    """The method of Session that a magic calls: its own name, with `_` after a word of Python's."""
    name = magic.lstrip("%")
    return getattr(Session, f"{name}_" if keyword.iskeyword(name) else name)


def test_there_are_magics():
    assert {"%%chat", "%%reward", "%%train", "%connect", "%group"} <= set(MAGICS)


@pytest.mark.parametrize("magic", MAGICS)
def test_a_magic_is_one_call_of_the_session_with_what_it_is_told(magic):
    """Each option is a parameter of the call, or a call of its own, or, as in `%job --wait`, of what comes back."""
    method = call_of(magic)
    returned = vars(inspect.getmodule(method)).get(
        getattr(method.__annotations__.get("return"), "__name__", ""), object
    )
    told = {action.dest for action in MAGICS[magic].parser._actions} - {"help", "output"}
    calls = [method, *(getattr(Session, option) for option in told & set(PUBLIC))]
    known = {*dir(returned), *(told & set(PUBLIC))}.union(*(inspect.signature(call).parameters for call in calls))
    assert told <= known


@pytest.mark.parametrize("magic", MAGICS)
def test_a_magic_that_returns_something_binds_it_with_o(magic):
    returns = MAGICS[magic].__func__.__annotations__.get("return") is not None
    assert ("-o" in MAGICS[magic].parser._option_string_actions) == returns


@pytest.mark.parametrize("magic", MAGICS)
def test_every_option_of_a_magic_is_explained(magic):
    assert inspect.getdoc(MAGICS[magic])
    assert all(action.help for action in MAGICS[magic].parser._actions)
    if magic.startswith("%%"):
        assert f"    {magic} " in MAGICS[magic].__doc__, "a cell magic's help has an example"


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_part_of_the_session_is_documented(name):
    assert inspect.getdoc(inspect.getattr_static(Session, name))
