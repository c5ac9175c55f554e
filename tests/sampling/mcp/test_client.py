"""A context server that means harm: what a call comes to, and that the next one works."""

import asyncio
import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import pytest

pytest.importorskip("mcp")

from rolloutlab.api.wire.chat import FunctionToolCall
from rolloutlab.auth.registration import RegisteredClient
from rolloutlab.auth.session import OAuthSession
from rolloutlab.auth.token_store import MemoryStore
from rolloutlab.auth.tokens import Grant
from rolloutlab.errors import BrokenOffError, RefusedError, UnreachableError
from rolloutlab.sampling.mcp.client import McpConnection
from rolloutlab.sampling.mcp.tools import ContextTool
from rolloutlab.sampling.tools import Tools


def says(text):
    return {"content": [{"type": "text", "text": text}]}


SAYS = {
    "ping": says("pong"),
    "long": says("x" * ((1 << 20) + 1)),
    "wide": says("é" * ((1 << 19) + 1)),
    "flood": says("x" * (17 << 20)),
    "structure": {"content": [], "structuredContent": {"answer": "é"}},
}


REFUSES = {}
"""By name of a tool, the status and body of an answer instead."""


class Hostile(BaseHTTPRequestHandler):
    """Speaks the protocol, until a tool is called."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_told):
        pass

    def do_GET(self):
        self.answer(405, b"")

    do_DELETE = do_GET

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if refused := self.refused(asked):
            return self.answer(*refused)
        method, name = asked["method"], (asked.get("params") or {}).get("name")
        if "id" not in asked:
            return self.answer(202, b"")
        if name == "drip":
            return self.drip()
        told = {"jsonrpc": "2.0", "id": asked["id"]}
        self.server.sent.append(self.headers.get("Authorization", ""))
        heard = " ".join(dict.fromkeys(self.server.sent))
        if method == "initialize":
            told["result"] = {
                "protocolVersion": asked["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "hostile", "version": "1"},
            }
            self.server.sessions.append(f"session-{len(self.server.sent)}")
        elif method == "tools/list":
            told["result"] = self.page((asked.get("params") or {}).get("cursor"), heard)
        elif name == "refuse":
            told["error"] = {"code": -32602, "message": heard}
        elif name in {"echo", "complain"}:
            told["result"] = {**says(heard), "isError": name == "complain"}
        elif method == "tools/call":
            told["result"] = SAYS.get(name, says("no such tool"))
        else:
            told["error"] = {"code": -32601, "message": "Method not found"}
        body = json.dumps(told).encode()
        if name == "bomb":
            return self.answer(200, gzip.compress(b" " * (64 << 20)), ("Content-Encoding", "gzip"))
        begun = [("Mcp-Session-Id", self.server.sessions[-1])] if method == "initialize" and self.server.lost else []
        return self.answer(200, body, *begun)

    def page(self, cursor, heard):
        if self.server.pages:
            return self.server.pages[int(cursor or 0)]
        first, *others = [{"name": name, "inputSchema": {"type": "object"}} for name in SAYS]
        return {"tools": [first | {"description": heard, "inputSchema": {"type": "object", "title": heard}}, *others]}

    def refused(self, asked):
        if self.server.slash and not self.path.endswith("/"):
            return 307, b"", ("Location", f"{self.path}/")
        named = self.headers.get("Mcp-Session-Id")
        if self.server.lost and named and named not in self.server.sessions:
            return self.server.lost
        return REFUSES.get((asked.get("params") or {}).get("name"))

    def answer(self, status, body, *headers):
        if self.server.lost:  # so that nothing is left open where it ends
            headers, self.close_connection = [*headers, ("Connection", "close")], True
        self.send_response(status)
        for header in (("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers):
            self.send_header(*header)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True

    def drip(self):
        """A stream of nothing, until nobody listens any more or the test is over."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.close_connection = True
        try:
            while not self.server.over.wait(0.01):
                self.wfile.write(b": still here\n\n")
        except OSError:
            pass


@pytest.fixture
def server():
    """lost: what it answers in a session that it does not know; None: it has no sessions. pages: of its tools."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    server.daemon_threads = True
    server.over, server.sent, server.slash = threading.Event(), [], False
    server.sessions, server.lost, server.pages = [], None, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()

    def stop():
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()

    server.stop = stop
    yield server
    if not server.over.is_set():
        stop()


@pytest.fixture
def url(server):
    return f"http://127.0.0.1:{server.server_address[1]}/mcp"


async def nobody(*_told):
    raise AssertionError


def called(url, *names, **options):
    """What each tool says, one after the other over one connection, or the error of the one that fails.

    What is no name is called in its place.
    """

    async def story():
        server = McpConnection(url, OAuthSession(url, nobody, MemoryStore()), **options)
        outcomes = []
        try:
            for name in names:
                if callable(name):
                    name()
                    continue
                try:
                    outcomes.append(await server.call(name, {}))
                except (RefusedError, UnreachableError) as error:
                    outcomes.append(error)
        finally:
            await server.close()
        return outcomes

    return asyncio.run(story())


PONG = ("pong", False)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("long", "returned more than 1,024 KiB of text"),
        ("wide", "returned more than 1,024 KiB of text"),
        ("flood", "more than 16,384 KiB was not read"),
        ("bomb", "a compressed response, which was not asked for"),
    ],
)
def test_an_answer_without_a_bound_is_not_read_and_the_next_call_works(url, name, why):
    refused, after = called(url, name, "ping")
    assert isinstance(refused, RefusedError)
    assert why in refused.message
    assert after == PONG


def test_an_answer_that_goes_on_and_on_is_given_up_and_the_next_call_works(url):
    given_up, after = called(url, "drip", "ping", in_all=1)
    assert isinstance(given_up, BrokenOffError)
    assert given_up.message == f"{url} did not answer in 1 s"
    assert after == PONG


def rpc_error(code, message):
    return json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}).encode()


LOST = [
    (404, rpc_error(-32001, "Session not found")),
    (404, rpc_error(-32600, "Not here")),
    (404, b""),
    (404, b"<html>not found</html>"),
    (400, rpc_error(-32000, "Bad Request: No valid session ID provided")),
    (400, rpc_error(-32000, "Bad Request: Server not initialized")),  # the TypeScript SDK, after a restart
    (400, b"Bad Request"),
    (410, b'{"error": "Session expired"}'),
    (410, rpc_error(-32000, "Gone")),
    (403, b"Forbidden"),
    (500, b'{"error": "boom"}'),
    (500, rpc_error(-32603, "no such session")),
]


@pytest.mark.parametrize("lost", LOST)
def test_a_server_that_has_forgotten_the_session_is_asked_for_another_one_and_then_again(server, url, lost):
    server.lost = lost
    assert called(url, "ping", server.sessions.clear, "ping", "ping") == [PONG] * 3
    assert len(server.sessions) == 1


@pytest.mark.parametrize("lost", LOST)
def test_a_server_that_forgets_every_session_at_once_is_nothing_for_a_policy_to_read(server, url, lost):
    server.lost = lost

    class Forgetful(list):
        def __contains__(self, _):
            return len(self) < 2

    server.sessions = Forgetful()
    first, lasting = called(url, "ping", lambda: server.sessions.append("another"), "ping")
    assert first == PONG
    assert isinstance(lasting, UnreachableError)
    assert not isinstance(lasting, BrokenOffError)


@pytest.mark.parametrize("refused", [(404, rpc_error(-32601, "Method not found")), (400, rpc_error(-32602, "no city"))])
def test_what_is_wrong_with_a_call_is_not_taken_for_a_lost_session(server, url, refused):
    server.lost = refused
    begun = []

    def forget():
        begun.append(len(server.sent))
        server.sessions.clear()

    first, wrong = called(url, "ping", forget, "ping")
    assert first == PONG
    assert isinstance(wrong, RefusedError)
    assert not server.sessions


def test_an_error_of_a_call_that_speaks_of_sessions_is_for_the_policy(server, url, monkeypatch):
    server.lost = LOST[0]
    monkeypatch.setitem(REFUSES, "ping", (404, rpc_error(-32000, "there is no user session 7")))
    [wrong] = called(url, "ping")
    assert isinstance(wrong, RefusedError)
    assert "there is no user session 7" in wrong.message


class Once(dict):
    """Refuses the first call of a tool."""

    def __init__(self, refusal):
        self.refusals = [refusal]

    def get(self, name):
        return self.refusals.pop() if name == "ping" and self.refusals else None


@pytest.mark.parametrize("lost", [None, LOST[0]])
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(server, url, monkeypatch, status, lost):
    server.lost = lost
    monkeypatch.setattr("tests.sampling.mcp.test_client.REFUSES", Once((status, b"slow down", ("Retry-After", "0"))))
    assert called(url, "ping", "ping") == [PONG, PONG]


@pytest.mark.parametrize("lost", [None, LOST[0]])
@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_gateway_that_reaches_no_server_is_nothing_for_a_policy_to_read(server, url, monkeypatch, status, lost):
    server.lost = lost
    monkeypatch.setattr("rolloutlab.sampling.mcp.client._TRIES", 1)
    monkeypatch.setitem(REFUSES, "ping", (status, b"<html>bad gateway</html>"))
    [gone] = called(url, "ping")
    assert isinstance(gone, UnreachableError)
    assert not isinstance(gone, BrokenOffError)
    assert f"does not answer any more: {status} <html>bad gateway" in gone.message


@pytest.mark.parametrize("refusal", [(500, b"boom"), (403, b"boom"), (500, rpc_error(-32603, "boom"))])
def test_an_error_of_one_call_on_a_healthy_server_is_for_the_policy_and_it_is_not_called_twice(
    server, url, monkeypatch, refusal
):
    server.lost = LOST[0]
    monkeypatch.setattr("tests.sampling.mcp.test_client.REFUSES", Once(refusal))
    wrong, after = called(url, "ping", "ping")
    assert isinstance(wrong, RefusedError)
    assert wrong.message.endswith("boom")
    assert after == PONG


def test_a_server_that_has_ended_is_nothing_for_a_policy_to_read(server, url):
    server.lost = LOST[0]
    first, gone, still = called(url, "ping", server.stop, "ping", "ping")
    assert first == PONG
    for error in (gone, still):
        assert isinstance(error, UnreachableError)
        assert not isinstance(error, BrokenOffError)


def pages(url):
    async def story():
        server = McpConnection(url, OAuthSession(url, nobody, MemoryStore()))
        try:
            return [tool.name for tool in await server.tools()], server.incomplete
        finally:
            await server.close()

    return asyncio.run(story())


def page(name, **more):
    return {"tools": [{"name": name, "inputSchema": {"type": "object"}}], **more}


@pytest.mark.parametrize("end", [{}, {"nextCursor": None}, {"nextCursor": ""}])
def test_tools_are_read_page_by_page_to_the_last(server, url, end):
    server.pages = [page("a", nextCursor="1"), page("b", **end)]
    assert pages(url) == (["a", "b"], "")


@pytest.mark.parametrize("again", ["0", "1"])
def test_a_page_that_is_named_again_is_not_read_again_and_that_is_said(server, url, again):
    server.pages = [page("a", nextCursor="1"), page("b", nextCursor=again)]
    names, incomplete = pages(url)
    assert names == ["a", "b"]
    assert incomplete == f"{url} names a page of its tools again: 2 tools were read, there may be others"


def test_a_list_of_tools_without_an_end_is_left_and_that_is_said(server, url):
    server.pages = [page(f"t{i}", nextCursor=str(i + 1)) for i in range(100)]
    names, incomplete = pages(url)
    assert len(names) == 51
    assert "has more than 50 pages" in incomplete


BLOCKS = [
    ({"type": "resource", "resource": {"uri": "file:///a.md", "text": "# A"}}, "file:///a.md:\n# A"),
    (
        {"type": "resource", "resource": {"uri": "file:///a.zip", "mimeType": "application/zip", "blob": "UEs="}},
        "[binary resource file:///a.zip of type application/zip left out: the policy reads text]",
    ),
    ({"type": "resource_link", "uri": "file:///b.md", "name": "b", "description": "of B"}, "[b - of B](file:///b.md)"),
    (
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        "[image of type image/png left out: the policy reads text]",
    ),
    (
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
        "[audio of type audio/wav left out: the policy reads text]",
    ),
]


@pytest.mark.parametrize(("block", "text"), BLOCKS)
def test_what_a_result_has_besides_text_is_read_or_named(url, monkeypatch, block, text):
    monkeypatch.setitem(SAYS, "blocks", {"content": [{"type": "text", "text": "see"}, block]})
    assert called(url, "blocks") == [(f"see\n{text}", False)]


def test_structure_beside_an_image_is_read(url, monkeypatch):
    monkeypatch.setitem(SAYS, "chart", {"content": [BLOCKS[3][0]], "structuredContent": {"top": 3}})
    assert called(url, "chart") == [(f'{{"top": 3}}\n{BLOCKS[3][1]}', False)]


VIDEO = {"type": "video", "data": "x"}
UNREAD = [
    ({"content": [VIDEO]}, ("[the result cannot be read: video]", True)),
    ({"content": [{"type": "text", "text": "see"}, VIDEO]}, ("see\n[the result cannot be read: video]", False)),
    ({"content": [VIDEO], "structuredContent": {"a": 1}}, ('{"a": 1}\n[the result cannot be read: video]', False)),
    ({"content": [{"type": "text", "text": "see", "annotations": 7}]}, ("see", False)),
    ({"structuredContent": [1]}, ("[1]", False)),
    ({"content": [7]}, ("[the result cannot be read: int]", True)),
    ({"content": []}, ("", False)),
]


@pytest.mark.parametrize(("result", "read"), UNREAD)
def test_what_is_unknown_in_a_result_is_named_and_the_rest_is_kept(url, monkeypatch, result, read):
    monkeypatch.setitem(SAYS, "odd", result)
    assert called(url, "odd", "ping") == [read, PONG]


@pytest.mark.parametrize("result", [{}, {"content": "text"}, {"content": None}, None, [], "text"])
def test_a_result_that_is_none_fails_its_own_call_alone_and_is_said_in_a_line(url, monkeypatch, result):
    monkeypatch.setitem(SAYS, "odd", result)
    refused, after = called(url, "odd", "ping")
    assert isinstance(refused, RefusedError)
    assert refused.message.startswith(f"{url} answered: the result cannot be read: ")
    assert "pydantic" not in refused.message
    assert "\n" not in refused.message
    assert after == PONG


def test_a_tool_that_cannot_be_read_does_not_hide_the_others(server, url):
    odd = [{"name": "wrong", "inputSchema": {"type": "string"}}, {"name": "list", "inputSchema": [1]}, {}, 7]
    plain = [{"name": "bare"}, {"name": "null", "inputSchema": None}, {"name": "untyped", "inputSchema": {}}]
    icons = {"name": "icons", "inputSchema": {"type": "object"}, "icons": 7, "outputSchema": 7, "description": 7}
    server.pages = [{"tools": [*odd, *plain, icons]}]
    names, incomplete = pages(url)
    assert names == ["bare", "null", "untyped", "icons"]
    assert incomplete == (
        f"{url} describes tools in a form that cannot be read, which are left out: wrong, list, one without a name"
    )


def test_a_result_without_the_structure_that_its_tool_has_promised_is_read(server, url):
    server.pages = [{"tools": [{"name": "ping", "inputSchema": {}, "outputSchema": {"type": "object"}}]}]
    assert called(url, "ping") == [PONG]


def test_a_server_that_leads_to_its_address_with_a_slash_is_followed_there(server, url):
    server.slash = True
    assert called(url, "ping", "ping") == [PONG, PONG]


def test_an_answer_of_structure_alone_is_its_json(url):
    assert called(url, "structure") == [('{"answer": "é"}', False)]


def test_what_is_not_read_is_a_failed_call_that_the_policy_reads(url):
    async def story():
        server = McpConnection(url, OAuthSession(url, nobody, MemoryStore()))
        tool = ContextTool("long", "", {}, lambda arguments: server.call("long", arguments))
        call = FunctionToolCall.model_validate(
            {"id": "1", "type": "function", "function": {"name": "long", "arguments": "{}"}}
        )
        try:
            return await Tools([tool]).answer([call])
        finally:
            await server.close()

    [message], [trouble] = asyncio.run(story())
    assert message.content.startswith("error: RefusedError: http://127.0.0.1")
    assert message.content.endswith("returned more than 1,024 KiB of text")
    assert "long failed" in trouble


class SlowPerson(OAuthSession):
    """Whoever signs in takes longer than a tool may."""

    async def after(self, *_told):
        first = self.__dict__.setdefault("visits", count())
        if not next(first):
            taken = asyncio.Event()
            asyncio.get_running_loop().call_later(1.5, taken.set)
            await taken.wait()
        return False


def test_the_time_in_which_somebody_signs_in_is_not_counted(url):
    async def story():
        server = McpConnection(url, SlowPerson(url, nobody, MemoryStore()), in_all=1)
        try:
            return await server.call("ping", {})
        finally:
            await server.close()

    assert asyncio.run(story()) == PONG


def test_a_server_that_repeats_the_tokens_that_it_was_sent_shows_them_to_nobody(url):
    kept = MemoryStore()
    access = OAuthSession(url, nobody, kept)

    def let_in(token):
        kept.write(Grant(url, url, url, url, None, RegisteredClient("me"), token, None, (), None))
        assert access.status

    async def story():
        let_in("s3cret")
        server = McpConnection(url, access)
        try:
            await server.call("ping", {})
            let_in("s3cret-of-later")
            said = [await server.call(name, {}) for name in ("echo", "complain")]
            with pytest.raises(RefusedError) as refused:
                await server.call("refuse", {})
            return said, refused.value, await server.tools()
        finally:
            await server.close()

    said, refused, tools = asyncio.run(story())
    assert said == [("Bearer ... Bearer ...", False), ("Bearer ... Bearer ...", True)]
    assert refused.message == f"{url} answered: Bearer ... Bearer ..."
    assert tools[0].description == tools[0].schema["title"] == "Bearer ... Bearer ..."
