"""Plug-ins of other packages: found, and those that cannot be used are named and cost nobody else a cell."""

import sys
from importlib.metadata import Distribution, EntryPoint, EntryPoints
from types import ModuleType

import pytest

from rolloutlab import plugins
from rolloutlab.environments.adapters import complete_names, make_source
from rolloutlab.environments.source import source_of
from rolloutlab.errors import InputError
from rolloutlab.scoring.foreign import call_of


class _Package(Distribution):
    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def metadata(self):
        return {"Name": self._name}

    def read_text(self, filename):
        return None

    def locate_file(self, path):
        return path


@pytest.fixture
def install(monkeypatch):
    """Adds an entry point of another package whose module has some attributes, beside this package's own."""
    installed, added = plugins.entry_points(), []
    groups = (
        plugins.ENGINES, plugins.ENVIRONMENTS, plugins.REWARDS, plugins.READERS, plugins.SEARCH, plugins.TRACKERS,
    )  # fmt: skip
    own = [entry for group in groups for entry in installed.select(group=group)]

    def install(group: str, name: str, package: str = "stranger", *, target: str | None = None, **attributes) -> None:
        module = ModuleType(f"{package}_{name}")
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        entry = EntryPoint(name, target or module.__name__, group)
        vars(entry).update(dist=_Package(package))
        added.append(entry)
        monkeypatch.setattr(plugins, "entry_points", lambda: EntryPoints([*own, *added]))
        plugins._scan.cache_clear()

    yield install
    monkeypatch.undo()
    plugins._scan.cache_clear()


class Game:
    def __init__(self, row):
        self.row = row

    def reset(self, seed):
        return "hi"

    def step(self, answer):
        return answer, 0.0, True


@pytest.mark.parametrize("source", [lambda name: None, lambda name: 5, lambda name: {}["x"]])
def test_an_adapter_that_makes_no_source_is_an_error_and_not_a_cell_without_environment(install, source):
    install(plugins.ENVIRONMENTS, "broken", source=source)
    with pytest.raises(InputError, match="plug-in broken"):
        make_source("broken:x", {})


def test_why_a_plug_in_cannot_be_used_is_said_each_time(install):
    install(plugins.ENVIRONMENTS, "lost", target="a_module_that_is_not_installed")
    for _ in range(2):
        with pytest.raises(InputError, match="in stranger, needs the module a_module_that_is_not_installed") as error:
            make_source("lost:x", {})
    assert error.value.hint.startswith("pip install --upgrade stranger")


@pytest.mark.parametrize(
    "recognise", [lambda function, columns: 1 / 0, lambda function, columns: True, lambda one: None]
)
def test_a_signature_that_fails_is_passed_over_by_name(install, recognise):
    install(plugins.REWARDS, "broken", recognise=recognise)
    with pytest.warns(RuntimeWarning, match="the plug-in broken of rolloutlab.rewards is passed over"):
        assert call_of("", lambda answer: 1.0, []).style == ""


def test_a_failing_adapter_costs_nobody_elses_class(install):
    install(plugins.ENVIRONMENTS, "broken", recognise=lambda env, options: 1 / 0, refuse=lambda environment: 1 / 0)
    with pytest.warns(RuntimeWarning, match="the plug-in broken of rolloutlab.environments is passed over"):
        assert source_of(Game).name == "Game"


def test_this_packages_own_plug_in_stays_where_another_package_takes_its_name(install):
    install(plugins.REWARDS, "trl")
    with pytest.warns(RuntimeWarning, match="in stranger is not used"):
        assert plugins.load(plugins.REWARDS, "trl").__name__ == "rolloutlab.integrations.trl"


def test_two_packages_with_one_name_are_an_error(install):
    install(plugins.SEARCH, "notes", "one")
    install(plugins.SEARCH, "notes", "two")
    with pytest.raises(InputError, match="one, two") as error:
        plugins.load(plugins.SEARCH, "notes")
    assert error.value.hint == "pip uninstall two"


def test_names_that_fail_leave_completion_empty(install):
    install(plugins.ENVIRONMENTS, "broken", source=lambda name: None, names=lambda: 1 / 0)
    assert complete_names("broken:") == []
