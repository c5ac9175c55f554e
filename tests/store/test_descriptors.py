"""A notebook whose process has no file descriptor left: an error in words, and it goes on once there are some."""

from collections.abc import Callable

import pytest

from rolloutlab.api.wire.chat import AssistantMessage, UserMessage
from rolloutlab.fsutil import TO_HAVE_MORE
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings
from rolloutlab.store.models import Recorded

SHORT = """
import os, resource, sys, warnings
warnings.simplefilter("error")
from pathlib import Path
import IPython, pandas
from rolloutlab.errors import RolloutlabError
from rolloutlab.session import Session
from rolloutlab.settings import Address, Settings

session = Session(Settings(home=Path(sys.argv[1]), service=Address("http://127.0.0.1:9", "http://127.0.0.1:9", None)))
session._connector.http._tries = 1
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

def short(left):
    opened = []
    while True:
        try:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            break
    for descriptor in opened[len(opened) - left:]:
        os.close(descriptor)
    return opened[:len(opened) - left]

def tried(call, left):
    opened = short(left)
    try:
        call()
    except RolloutlabError as error:
        lines = error._render_traceback_()
    else:
        lines = ["done"]
    for descriptor in opened:
        os.close(descriptor)
    print(*lines, sep="|", flush=True)
"""
"""Begins a script: `tried` makes a call with so many descriptors left, prints its error, and then gives all back."""
REMEDY = f"|  -> {TO_HAVE_MORE}"


@pytest.fixture
def lab(tmp_path):
    """The folder of a lab with a collection."""
    session = Session(
        Settings(home=tmp_path / "lab", service=Address("http://127.0.0.1:9", "http://127.0.0.1:9", None))
    )
    prompt, answer = UserMessage(role="user", content="?"), AssistantMessage(role="assistant", content="Paris")
    with session.store.draft() as draft:
        draft.add([Recorded("line 0", "capitals", 0, [prompt], [answer])])
        draft.publish()
    session.close()
    return tmp_path / "lab"


@pytest.fixture
def printed(lab, scripts) -> Callable[[str], list[str]]:
    """The lines that a script prints which begins with SHORT."""

    def run(script: str) -> list[str]:
        ended = scripts.run(SHORT + script, str(lab))
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.splitlines()

    return run


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_lab_that_cannot_be_opened_for_want_of_descriptors_says_so_and_is_opened_later(lab, printed, left):
    refused, later = printed(f"tried(session.collections, {left})\ntried(session.collections, 40)")
    assert refused.startswith(f"LabError: {lab / 'lab.db'} cannot be opened: this process has no file descriptor left")
    assert refused.endswith(REMEDY)
    assert later == "done"


def test_a_lock_that_cannot_be_opened_says_so(lab, printed):
    script = """
session.collections()
found = session.store.find("capitals")
tried(lambda: session.store.lock_for_sampling(found), 0)
tried(lambda: session.store.lock_for_sampling(found), 40)
"""
    refused, later = printed(script)
    assert refused.startswith(f"LabError: {lab / 'sampling'}")
    assert "this process has no file descriptor left" in refused
    assert refused.endswith(REMEDY)
    assert later == "done"


def test_a_connection_that_cannot_be_made_says_so(printed):
    script = """
chat = lambda: session.chat("capitals", "?", model="m")
tried(chat, 40)
session._connector.http.close()
tried(chat, 0)
session._connector.http._loop.start()
tried(chat, 0)
tried(chat, 40)
"""
    before, *refused, later = printed(script)
    assert before == later
    assert "nothing answers" in before
    assert len(refused) == 2
    for line in refused:
        assert line.startswith("UnreachableError: no connection ")
        assert line.endswith(f"can be made: this process has no file descriptor left{REMEDY}")
