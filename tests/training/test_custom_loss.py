"""What a loss of the user's own takes from its notebook: written down for the service, or refused before it is sent."""

import enum
import math
import statistics
import sys
from types import ModuleType

import numpy as np
import pytest

from rolloutlab.errors import InputError
from rolloutlab.training.custom_loss import source_of


class Level(enum.IntEnum):
    HIGH = 3


class Kind(enum.StrEnum):
    MEAN = "a 'mean'"


eps = None
"""Of the loss below; a test gives it a value."""


def uses_eps(new, old, advantage, weight, history):
    return -(weight * advantage * new).sum() * eps


def as_the_service_has_it(loss, name="eps"):
    """The value of a name in the namespace of the source, which has no name of the notebook."""
    scope = {}
    exec(source_of(loss), scope)
    return scope[name]


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(0.2), 0.2),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (Level.HIGH, 3),
        (Kind.MEAN, "a 'mean'"),
        (math.inf, math.inf),
        (-np.inf, -math.inf),
        (10**30, 10**30),
        ("a\n'b'", "a\n'b'"),
        (True, True),
        (None, None),
    ],
)
def test_numbers_and_texts_of_any_library_go_with_a_loss(monkeypatch, value, plain):
    monkeypatch.setitem(globals(), "eps", value)
    there = as_the_service_has_it(uses_eps)
    assert (type(there), there) == (type(plain), plain)


def test_a_number_that_is_not_one_goes_with_a_loss(monkeypatch):
    monkeypatch.setitem(globals(), "eps", np.float64("nan"))
    assert math.isnan(as_the_service_has_it(uses_eps))


@pytest.mark.parametrize("value", [np.ones(2), [1], Level, 1j, np.datetime64("2026-01-01")])
def test_other_values_are_refused_by_name(monkeypatch, value):
    monkeypatch.setitem(globals(), "eps", value)
    with pytest.raises(InputError, match=r"the loss uses eps, a .*: only modules, numbers and texts go with it"):
        source_of(uses_eps)


def test_installed_modules_go_with_a_loss(monkeypatch):
    monkeypatch.setitem(globals(), "eps", np.random)
    assert as_the_service_has_it(uses_eps) is np.random
    monkeypatch.setitem(globals(), "eps", statistics)
    assert as_the_service_has_it(uses_eps) is statistics


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Writes a module beside the notebook, and imports it as a cell does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")

    def write(name):
        (tmp_path / f"{name}.py").write_text("K = 2.0\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
        module = __import__(name)
        monkeypatch.delitem(sys.modules, name)  # which puts back the one before, at the end
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return write


NOT_INSTALLED = "a module that the embedded service cannot import"


@pytest.mark.parametrize("name", ["loss_helper", "pluggy"])
def test_a_module_beside_the_notebook_is_refused_also_under_the_name_of_an_installed_one(beside, monkeypatch, name):
    monkeypatch.setitem(globals(), "eps", beside(name))
    with pytest.raises(InputError, match=f"the loss uses {name}, {NOT_INSTALLED}") as refused:
        source_of(uses_eps)
    assert refused.value.hint


def test_a_module_that_was_made_in_the_notebook_is_refused(monkeypatch):
    for name in ("made_here", "__main__"):
        monkeypatch.setitem(globals(), "eps", ModuleType(name))
        with pytest.raises(InputError, match=f"the loss uses {name}, {NOT_INSTALLED}"):
            source_of(uses_eps)


def test_a_module_that_the_loss_itself_imports_is_refused_unless_it_only_tries(beside):
    beside("loss_helper")

    def imports(new, old, advantage, weight, history):
        import loss_helper.part

        return new.sum() * loss_helper.part.K

    def imports_from(new, old, advantage, weight, history):
        if weight is not None:
            from loss_helper import K
        return new.sum() * K

    def tries(new, old, advantage, weight, history):
        try:
            from loss_helper import K
        except ImportError:
            K = 1.0
        return new.sum() * K

    for loss in (imports, imports_from):
        with pytest.raises(InputError, match=f"the loss uses loss_helper, {NOT_INSTALLED}"):
            source_of(loss)
    assert "except ImportError" in source_of(tries)


def test_a_name_without_a_value_is_refused():
    def misspelt(new, old, advantage, weight, history):
        return -(wieght * advantage * new).sum()  # noqa: F821

    def assigned_later(new, old, advantage, weight, history):
        return new.sum() * eps

    with pytest.raises(InputError, match="the loss uses wieght, which has no value"):
        source_of(misspelt)
    with pytest.raises(InputError, match="the loss uses eps, which has no value"):
        source_of(assigned_later)
    eps = 1.0
    assert as_the_service_has_it(assigned_later) == eps


def test_names_that_the_loss_gives_values_itself_need_none_of_the_notebook():
    def keeps(new, old, advantage, weight, history):
        class Scale:
            half = 0.5
            whole = 2 * half

        global seen
        seen = len(new)
        return torch.abs(new).sum() * Scale.whole * seen * __debug__  # noqa: F821 - the service has torch

    assert "seen = len(new)" in source_of(keeps)
