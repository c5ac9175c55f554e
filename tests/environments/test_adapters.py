"""Names of adapters, and what they make of texts; the packages themselves are met in tests/acceptance."""

import sys

import pytest
from IPython.core import completer

from rolloutlab.environments.source import source_of
from rolloutlab.errors import InputError
from rolloutlab.integrations.gymnasium import in_brackets
from rolloutlab.integrations.reasoning_gym import final_answer
from tests.environments.conftest import notebook, policy  # noqa: F401  # fixtures
from tests.magics.conftest import bare  # noqa: F401


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("gymnasium:FrozenLake-v1", "gymnasium", "gymnasium"),
        ("reasoning-gym:chain_sum", "reasoning_gym.factory", "reasoning-gym"),
        ("textarena:Mastermind-v0", "textarena", "textarena"),
    ],
)
def test_a_package_that_is_missing_is_named_with_what_installs_it(notebook, monkeypatch, name, module, extra):  # noqa: F811
    monkeypatch.setitem(sys.modules, module, None)
    error = notebook.error(f"%%chat x --env {name}\n")
    assert error.startswith(f"InputError: environments of {extra} need {module}")
    assert error.endswith(f"-> pip install 'rolloutlab[{extra}]'")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gymnasim:X", "gymnasium:NAME"),
        ("mine:X", "gymnasium:NAME, openenv:NAME, reasoning-gym:NAME, textarena:NAME"),
        ("openenv:", "openenv:http://127.0.0.1:8000"),
        ("openenv:ftp://example.org", "openenv:http://127.0.0.1:8000"),
    ],
)
def test_a_name_without_an_adapter_is_answered_with_those_there_are(name, hint):
    with pytest.raises(InputError) as refused:
        source_of(name)
    assert refused.value.hint == hint


def test_options_are_for_names():
    with pytest.raises(InputError, match="options are for names"):
        source_of(dict, size=3)


def test_prefixes_are_completed_without_importing_a_package(notebook):  # noqa: F811
    notebook.run("class Guess:\n    def reset(self, seed): ...")
    line = "%%chat x --env "
    with completer.provisionalcompleter():
        found = [each.text for each in notebook.shell.Completer.completions(line, len(line))]
    assert "Guess" in found  # IPython 7 adds Python's keywords
    assert sorted(each for each in found if ":" in each) == ["gymnasium:", "openenv:", "reasoning-gym:", "textarena:"]
    assert "textarena" not in sys.modules


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("156", "156"),
        ("The answer is 156.", "156"),
        ("The answer is 15.6", "15.6"),
        ("First 7.\nAnswer: **156**\nDone", "156"),
        ("The answer is 1, no, the answer is: 2", "2"),
        ("answer is 3 <answer> 4\n5 </answer> so", "4\n5"),
        ("1 2\n3 4", "1 2\n3 4"),
        ("The answer is ", "The answer is"),
    ],
)
def test_the_answer_of_a_text(text, answer):
    assert final_answer(text) == answer


def test_colours_of_a_drawing_become_brackets_also_inside_each_other():
    assert in_brackets("\x1b[41mS\x1b[0mF\x1b[35m\x1b[43m \x1b[0m\x1b[0m\x1b[34;1mB\x1b[0m") == "[S]F<[ ]>(B)"
