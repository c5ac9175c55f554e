"""Signing in where no page of a Jupyter server is: IPython in a terminal, a kernel nobody sits at, Colab."""

import os
import re
import sys
from collections.abc import Iterator

import httpx
import pexpect
import pytest
from jupyter_client.blocking import BlockingKernelClient

from tests.kernel.terminals import end
from tests.kernels import start_kernel

pytestmark = pytest.mark.process

LONGEST = 240
DEFINE = """
from rolloutlab.auth.redirect.broker import Broker
from rolloutlab.auth.prompt import AuthorizationRequest, Question
from rolloutlab.api.http.client import HttpClient; from rolloutlab.widgets.login.frontend import context_of, front_end
question = Question("https://mcp.example/mcp", "id.example", "https://mcp.example/mcp", (), "rolloutlab")
http = HttpClient()
async def prepare(redirect):
    return AuthorizationRequest("https://id.example/authorize?redirect=" + redirect, "right", question)
"""
SIGN_IN = """
broker = Broker(front_end(context_of(get_ipython())))
print("came:", sorted(http.run(broker(question.server, prepare), broker.tick).items()))
"""
CAME = "came: [('code', 'c'), ('state', 'right')]"


@pytest.fixture
def terminal(tmp_path) -> Iterator["pexpect.spawn[str]"]:
    script = tmp_path / "sign_in.ipy"
    script.write_text(DEFINE + SIGN_IN)
    command = ["-m", "IPython", "--simple-prompt", "--colors=NoColor", "--no-banner", str(script)]
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython"), "TERM": "dumb"}
    process = pexpect.spawn(sys.executable, command, env=environment, encoding="utf-8", timeout=LONGEST)
    process.expect(r"redirect=(http://127\.0\.0\.1:\d+/[\w-]+)")
    yield process
    end(process)


def test_in_a_terminal_the_answer_comes_back_to_the_listener(terminal):
    answer = httpx.get(f"{terminal.match[1]}?code=c&state=right", trust_env=False, timeout=LONGEST)
    assert "You can close this page" in answer.text
    terminal.expect_exact(CAME)


def test_in_a_terminal_the_address_can_be_pasted_and_is_not_shown(terminal):
    terminal.expect_exact("and press Enter.")
    terminal.waitnoecho(LONGEST)
    terminal.sendline("http://127.0.0.1:1/x?code=c&state=right")
    terminal.expect_exact(CAME)
    assert "code=c" not in terminal.before


class Kernel:
    """A kernel and whoever talks to it. variables: of its environment. asks: whether it may ask something."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.manager, self.client = start_kernel({**os.environ, **variables})
        self.client: BlockingKernelClient

    def run(self, cell: str, answer=None) -> dict:
        """The reply to a cell. answer: what is typed when it asks; without one, it is told that nobody is there.

        A function is called then, and nothing is typed.
        """
        self.said = ""

        def heard(message):
            content = message["content"]
            self.said += content.get("text") or content.get("data", {}).get("text/plain", "")

        def asked(message):
            self.prompt = message["content"]
            answer() if callable(answer) else self.client.input(answer)

        options = {"allow_stdin": bool(answer), "stdin_hook": asked}
        return self.client.execute_interactive(cell, timeout=LONGEST, output_hook=heard, **options)["content"]

    def shut_down(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.context.destroy()


@pytest.fixture
def kernel() -> Iterator:
    started = []

    def start(**variables: str) -> Kernel:
        started.append(Kernel(variables))
        return started[-1]

    yield start
    for each in started:
        each.shut_down()


def test_a_notebook_that_a_program_runs_is_told_what_to_type_in_another_and_nothing_is_asked(kernel):
    reply = kernel(JPY_SESSION_NAME="/first.ipynb").run(DEFINE + SIGN_IN)
    assert (reply["status"], reply["ename"]) == ("error", "SignInError")
    assert "this front end cannot reach" in reply["evalue"]
    assert "%login https://mcp.example/mcp --keep" in "".join(reply["traceback"])


def test_in_colab_the_address_is_asked_for_unseen_while_no_message_of_a_page_is_heard(kernel):
    colab = kernel(COLAB_RELEASE_TAG="release")
    assert colab.run(DEFINE + SIGN_IN, "http://127.0.0.1:1/x?code=c&state=right")["status"] == "ok"
    assert colab.prompt["password"] is True
    assert CAME in colab.said
    assert not re.search("code=c|state=right", colab.said)


OTHERWISE = """
import pathlib, os
async def prepare(redirect):
    pathlib.Path(os.environ["TOLD"]).write_text(redirect)
    return AuthorizationRequest("https://id.example/authorize", "right", question)
"""
BRIEFLY = """
broker = Broker(front_end(context_of(get_ipython())), seconds=0.5)
http.run(broker(question.server, prepare), broker.tick)
"""


def test_where_the_address_is_asked_for_an_answer_that_comes_otherwise_or_the_end_of_the_sign_in_frees_the_cell(
    kernel, tmp_path
):
    told = tmp_path / "told"
    colab = kernel(COLAB_RELEASE_TAG="release", TOLD=str(told))

    def come_back() -> None:
        httpx.get(f"{told.read_text()}?code=c&state=right", timeout=LONGEST)

    page = colab.run(DEFINE + OTHERWISE + SIGN_IN, come_back)
    assert (page["status"], CAME in colab.said) == ("ok", True)
    assert "Enter alone gives up" in colab.prompt["prompt"]
    expired = colab.run(BRIEFLY, lambda: None)
    assert expired["status"] == "error"
    assert "was not answered within" in expired["evalue"]


CONSOLE = """
import os, sys
from tests.kernels import start_kernel
manager, client = start_kernel(dict(os.environ))
def heard(message):
    content = message["content"]
    print(content.get("text") or content.get("data", {}).get("text/plain", ""), end="", flush=True)
client.execute_interactive(sys.argv[1], timeout=240, allow_stdin=True, output_hook=heard)
client.stop_channels(); manager.shutdown_kernel(now=True)
"""


def test_in_a_console_with_a_kernel_the_link_is_printed_and_the_answer_comes_to_the_listener(tmp_path):
    script = tmp_path / "jupyter-console"
    script.write_text(CONSOLE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    console = pexpect.spawn(
        sys.executable, [str(script), DEFINE + SIGN_IN], env=environment, encoding="utf-8", timeout=LONGEST
    )
    try:
        console.expect(r"redirect=(http://127\.0\.0\.1:\d+/[\w-]+)")
        assert httpx.get(f"{console.match[1]}?code=c&state=right", trust_env=False, timeout=LONGEST).is_success
        console.expect_exact(CAME)
        console.expect(pexpect.EOF)
    finally:
        end(console)
