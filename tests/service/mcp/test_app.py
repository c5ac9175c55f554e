"""The context server over real HTTP: the protocol, and the scope that each call needs."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anyio
import httpx
import pytest

from rolloutlab.service.mcp.lab import LabTools
from rolloutlab.service.mcp.sdk_server import McpServer
from rolloutlab.service.mcp.tools import TOKEN_INFO, TOOLS
from rolloutlab.service.oauth.grants import TokenInfo
from rolloutlab.settings import Embedding, Settings

READING = {"search_trajectories", "get_trajectory", "list_groups"}
WRITING = {"add_trajectory", "set_reward"}


@pytest.fixture
def reader(visitor):
    """A token that may read."""
    return visitor.signs_in(scope="lab:read")["access_token"]


@pytest.fixture
def writer(visitor):
    """A token that may read and write."""
    return visitor.signs_in(scope="lab:read lab:write")["access_token"]


@pytest.fixture
def tool(visitor):
    """Calls a tool; the HTTP answer."""

    def call(token: str, name: str, **arguments: object) -> httpx.Response:
        return visitor.calls("tools/call", token, {"name": name, "arguments": arguments})

    return call


@pytest.mark.clause("Q1")
def test_a_client_is_initialized_and_no_session_is_kept(visitor, reader):
    arguments = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a test", "version": "1"}}
    answer = visitor.calls("initialize", reader, arguments)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["result"]["serverInfo"]["name"] == "rolloutlab"
    assert answer.json()["result"]["protocolVersion"] == "2025-11-25"
    assert "mcp-session-id" not in answer.headers


def test_all_tools_are_listed_whatever_the_scope(visitor, reader):
    listed = visitor.calls("tools/list", reader).json()["result"]["tools"]
    assert {each["name"] for each in listed} == READING | WRITING == TOOLS.keys()
    for each in listed:
        assert each["inputSchema"]["type"] == "object"
        assert each["description"]
        assert each["annotations"]["readOnlyHint"] is (each["name"] in READING)


@pytest.mark.clause("O3", "O4", "O5", "O6", "O7", "O8")
@pytest.mark.parametrize("name", sorted(WRITING))
def test_insufficient_scope_gets_403_with_what_is_needed_and_what_was_granted(visitor, tool, reader, challenges, name):
    answer = tool(reader, name)
    assert answer.status_code == 403
    challenge = challenges(answer)
    assert challenge["error"] == "insufficient_scope"
    assert challenge["scope"] == "lab:read lab:write"
    assert challenge["resource_metadata"] == f"{visitor.url}/.well-known/oauth-protected-resource/context"
    assert challenge["error_description"]


@pytest.mark.clause("O3", "O6")
def test_a_token_that_may_only_write_cannot_read(visitor, tool, challenges):
    token = visitor.signs_in(scope="lab:write")["access_token"]
    for answer in (tool(token, "list_groups"), visitor.calls("tools/list", token)):
        assert answer.status_code == 403
        assert challenges(answer)["scope"] == "lab:read lab:write"


def test_after_a_step_up_the_same_request_goes_through(tool, reader, writer):
    arguments = {"into": "kept", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    assert tool(reader, "add_trajectory", **arguments).status_code == 403
    assert tool(writer, "add_trajectory", **arguments).json()["result"]["isError"] is False


@pytest.mark.clause("O4")
@pytest.mark.parametrize(
    "body",
    [
        '[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"set_reward"}}]',
        '[1,{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"set_reward"}}]',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"},"params":{"name":"set_reward"}}',
        '{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"set_reward"}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools\\u002fcall","params":{"name":"set\\u005freward"}}',
    ],
)
def test_a_call_cannot_be_hidden_from_the_check(visitor, reader, body):
    headers = {"Authorization": f"Bearer {reader}", "Content-Type": "application/json"}
    headers["Accept"] = "application/json, text/event-stream"
    assert visitor.post("/context", content=body, headers=headers).status_code == 403


def test_the_scope_is_checked_again_where_the_tool_is_called(visitor, tmp_path):
    async def unguarded(scope, receive, send):
        """As if the check before it had read another call in the same body."""
        scope[TOKEN_INFO] = TokenInfo("c-1", "an application", ("lab:read",))
        await speaker(scope, receive, send)

    async def called():
        headers = {"Accept": "application/json, text/event-stream", "Host": "127.0.0.1"}
        params = {"name": "set_reward", "arguments": {"id": "letters:1/0/0", "reward": 1}}
        async with speaker.run(), httpx.AsyncClient(transport=httpx.ASGITransport(unguarded)) as client:
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            return await client.post(visitor.context, json=message, headers=headers)

    speaker = McpServer(memory := LabTools(Settings(home=tmp_path)), visitor.url, {"127.0.0.1"})
    result = anyio.run(called).json()["result"]
    memory.close()
    assert (result["isError"], result["content"][0]["text"]) == (True, "set_reward needs the scope lab:write")


@pytest.mark.parametrize("body", ["", "{", "[]", "7", "null", '{"method": 7}', '{"method": "tools/call", "params": 7}'])
def test_what_is_no_message_is_refused_as_the_protocol_says(visitor, reader, body):
    headers = {"Authorization": f"Bearer {reader}", "Content-Type": "application/json"}
    headers["Accept"] = "application/json, text/event-stream"
    assert visitor.post("/context", content=body, headers=headers).status_code == 400


def test_only_post_is_served(visitor, reader):
    for method in ("GET", "DELETE"):
        answer = visitor.browser.request(method, visitor.context, headers={"Authorization": f"Bearer {reader}"})
        assert answer.status_code == 405
        assert answer.headers["allow"] == "POST"


def test_a_page_of_another_origin_is_refused(visitor, reader):
    headers = {"Authorization": f"Bearer {reader}", "Origin": "https://evil.example", "Accept": "application/json"}
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert visitor.post("/context", json=message, headers=headers).status_code == 403


def test_a_body_has_an_end(visitor, reader):
    answer = visitor.post("/context", content=b" " * 4_200_000, headers={"Authorization": f"Bearer {reader}"})
    assert answer.status_code == 413


def test_a_tool_that_is_not_there_is_told_with_those_that_are(tool, reader):
    result = tool(reader, "train").json()["result"]
    assert result["isError"] is True
    assert "list_groups" in result["content"][0]["text"]


def test_what_the_lab_refuses_is_told_with_a_hint(tool, reader):
    result = tool(reader, "get_trajectory", id="nothing/0/0").json()["result"]
    assert result["isError"] is True
    assert "there is no collection 'nothing'" in result["content"][0]["text"]


def test_the_official_client_finds_and_calls_the_tools(visitor, writer):
    from httpx2 import AsyncClient
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async def use() -> dict[str, object]:
        async with (
            AsyncClient(headers={"Authorization": f"Bearer {writer}"}) as http,
            streamable_http_client(visitor.context, http_client=http) as (reading, writing),
            ClientSession(reading, writing) as session,
        ):
            await session.initialize()
            listed = await session.list_tools()
            assert {each.name for each in listed.tools} == TOOLS.keys()
            messages = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]
            arguments = {"into": "sums", "messages": messages, "reward": 1.0}
            added = await session.call_tool("add_trajectory", arguments)
            found = await session.call_tool("get_trajectory", {"id": json.loads(added.content[0].text)["id"]})
            return json.loads(found.content[0].text)

    found = anyio.run(use)
    assert found["id"] == "sums:1/0/0"
    assert found["reward"] == 1.0


@pytest.mark.clause("Q1")
def test_the_official_client_of_the_newest_revision_finds_and_calls_them_too(visitor, reader):
    from httpx2 import AsyncClient
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async def use() -> object:
        async with (
            AsyncClient(headers={"Authorization": f"Bearer {reader}"}) as http,
            Client(streamable_http_client(visitor.context, http_client=http)) as client,
        ):
            assert {each.name for each in (await client.list_tools()).tools} == TOOLS.keys()
            return (await client.call_tool("list_groups", {})).structured_content

    assert anyio.run(use) == {"collections": [], "total": 0}


@pytest.fixture
def upstream():
    """An embedding service that keeps the headers of what it is asked."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
            seen.append(str(self.headers))
            rows = [{"index": index, "embedding": [1.0, float(len(text))]} for index, text in enumerate(texts)]
            body = json.dumps({"data": rows}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_said: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", seen
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.clause("N5")
def test_a_received_token_must_not_be_passed_on_to_an_upstream_api(visit, upstream):
    url, seen = upstream
    visitor = visit(embedding=Embedding(url, "small"))
    token = visitor.signs_in(scope="lab:read lab:write")["access_token"]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    added = {"name": "add_trajectory", "arguments": {"into": "sums", "messages": messages}}
    search = {"name": "search_trajectories", "arguments": {"rank": {"$knn": {"query": "a"}}}}
    for call in (added, search):
        assert visitor.calls("tools/call", token, call).json()["result"]["isError"] is False
    assert seen
    assert token not in "".join(seen)
