"""What pages ask a kernel for on its control channel."""

from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.events import EventManager

from rolloutlab.widgets.base import NotebookView
from rolloutlab.widgets.pages import VIEW, Pages, pages_of


class Adder(NotebookView):
    module = "adder"

    def state(self) -> dict[str, Any]:
        return {}

    def calls(self) -> dict[str, Any]:
        return {"add": lambda x, y: x + y}

    def __repr__(self) -> str:
        return "an adder"

    def _repr_html_(self) -> str:
        return "<b>an adder</b>"


class Kernel:
    """The part of a kernel that takes requests: what it has sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.session = SimpleNamespace(
            send=lambda _stream, _kind, content, _parent, _identity: self.sent.append(content)
        )
        self.control_handlers = {"comm_info_request": lambda *_message: self.sent.append({"comms": "as before"})}
        self.parent = {"header": {}, "metadata": {"cellId": "first"}}
        self.events = EventManager(self, {"post_run_cell": lambda result: None})

    def ask(self, **content: Any) -> Any:
        """The answer to a request of a page."""
        self.control_handlers["comm_info_request"](None, b"", {"content": content})
        return self.sent.pop()


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def pages(kernel: Kernel) -> Pages:
    return Pages(SimpleNamespace(kernel=kernel, events=kernel.events, get_parent=lambda: kernel.parent))


def test_a_view_answers_by_the_id_that_its_output_has(kernel, pages):
    view = Adder()
    data, metadata = pages.show("abc", view, ({"text/x": 1}, {}))
    assert data == {"text/x": 1, VIEW: {}}
    asked = {**metadata[VIEW], "id": "1", "call": "add", "args": {"x": 1, "y": 2}}
    assert kernel.ask(rolloutlab=asked)["rolloutlab"] == {"id": "1", "result": 3}
    static = kernel.ask(rolloutlab={"model_id": "abc", "call": "static"})["rolloutlab"]["result"]
    assert static == {"text/html": "<b>an adder</b>", "text/plain": "an adder"}


def test_a_page_gets_the_code_of_a_module_once(kernel, pages, tmp_path, monkeypatch):
    monkeypatch.setattr("rolloutlab.widgets.base.BUNDLES", tmp_path)
    for kind in ("js", "css"):
        (tmp_path / f"adder.{kind}").write_text(f"/* {kind} */")
    view = Adder()
    pages.show("abc", view, ({}, {}))
    asked = {"model_id": "abc", "call": "open"}
    first = kernel.ask(rolloutlab=asked)["rolloutlab"]["result"]
    again = kernel.ask(rolloutlab={**asked, "args": {"known": ["of another version", first["bundle"]]}})
    assert (first["script"], first["style"]) == ("/* js */", "/* css */")
    assert again["rolloutlab"]["result"] == {"bundle": first["bundle"], "state": first["state"]}


def test_a_view_that_the_kernel_does_not_have_is_no_error(kernel, pages):
    assert kernel.ask(rolloutlab={"model_id": "of an earlier kernel", "call": "open"})["rolloutlab"] == {}


def test_other_requests_for_comms_are_answered_as_before(kernel, pages):
    assert kernel.ask(target_name="jupyter.widget") == {"comms": "as before"}


def test_the_views_of_the_running_cell_are_known_until_it_ends(kernel, pages):
    view = Adder()
    pages.show("abc", view, ({}, {}))
    [shown] = kernel.ask(rolloutlab={"call": "shown"})["rolloutlab"]["result"]
    assert shown["cell"] == "first"
    assert shown["metadata"] == {VIEW: {"model_id": "abc"}}
    assert shown["data"]["text/html"] == "<b>an adder</b>"
    kernel.events.trigger("post_run_cell", None)
    assert kernel.ask(rolloutlab={"call": "shown"})["rolloutlab"] == {"result": []}


def test_a_shell_without_a_control_channel_has_no_pages():
    assert pages_of(None) is None
    assert pages_of(object()) is None
