"""Which front end shows sign-ins where."""

import io

import pytest

from rolloutlab.auth.redirect.route import FrontEndContext, RedirectRoute
from rolloutlab.widgets.login.console import ConsoleFrontEnd
from rolloutlab.widgets.login.frontend import NoFrontEnd, context_of, front_end, is_console
from rolloutlab.widgets.login.notebook import NotebookFrontEnd

SERVED = {"JPY_SESSION_NAME": "/first.ipynb"}


@pytest.mark.parametrize(
    ("around", "kind", "way"),
    [
        (FrontEndContext(True, True, SERVED), NotebookFrontEnd, RedirectRoute.PAGE),
        (FrontEndContext(True, True, {"COLAB_RELEASE_TAG": "1"}), NotebookFrontEnd, RedirectRoute.PASTE),
        (FrontEndContext(True, True, {}), NotebookFrontEnd, RedirectRoute.LOOPBACK),
        (FrontEndContext(False, True, {}), ConsoleFrontEnd, RedirectRoute.LOOPBACK),
        (FrontEndContext(True, True, {}, console=True), ConsoleFrontEnd, RedirectRoute.LOOPBACK),
        (FrontEndContext(True, False, SERVED), NoFrontEnd, RedirectRoute.NONE),
    ],
)
def test_a_kernel_gets_a_widget_a_terminal_text_and_a_program_nothing(around, kind, way):
    result = front_end(around)
    assert isinstance(result, kind)
    assert result.way is way


def test_a_notebook_whose_kernel_hears_no_page_can_have_the_address_asked_for():
    assert front_end(FrontEndContext(True, True, SERVED), paste=True).way is RedirectRoute.PASTE


def test_a_script_that_reads_no_terminal_has_nobody_to_ask(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert context_of(None, {}) == FrontEndContext(False, False)


@pytest.mark.parametrize(
    ("command", "console"),
    [
        ("/venv/bin/python /venv/bin/jupyter-console --kernel python3", True),
        ("python -m jupyter_console", True),
        ("/usr/bin/jupyter-qtconsole", True),
        ("python3 -m qtconsole", True),
        ("/venv/bin/python /venv/bin/jupyter-lab", False),
        ("python -m notebook --notebook-dir qtconsole", False),
        ("", False),
    ],
)
def test_a_console_is_known_by_the_command_that_started_the_kernel(command, console):
    assert is_console(command.split()) is console
