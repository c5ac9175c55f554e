"""`openenv:URL` against a server that answers as the package's do; the package itself is in tests/acceptance."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from aiohttp import WSMsgType, web

from tests.environments.conftest import notebook, policy  # noqa: F401  # fixtures
from tests.magics.conftest import bare  # noqa: F401

ACTION = {
    "title": "SayAction", "description": "Says a word.", "type": "object", "required": ["word"],
    "properties": {
        "word": {"type": "string"}, "loud": {"$ref": "#/$defs/Loud", "default": "no"}, "metadata": {"type": "object"},
    },
    "$defs": {"Loud": {"type": "string", "enum": ["no", "yes"]}},
}  # fmt: skip


class Server:
    """One session at a time; it says back what it got, and ends after `end`."""

    def __init__(self) -> None:
        self.busy = 0
        self.most = 0
        self.refused = 0
        self.resets: list[dict] = []

    async def schema(self, _: web.Request) -> web.Response:
        return web.json_response({"action": ACTION, "observation": {}, "state": {}})

    async def session(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.busy:
            self.refused += 1
            await socket.send_json({"type": "error", "data": {"message": "full", "code": "CAPACITY_REACHED"}})
            return socket
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            async for message in socket:
                if message.type != WSMsgType.TEXT or (told := message.json())["type"] == "close":
                    break
                await socket.send_json(self.answer(told))
        finally:
            self.busy -= 1
        return socket

    def answer(self, told):
        data = told.get("data", {})
        if told["type"] == "reset":
            self.resets.append(data)
            return {"type": "observation", "data": {"observation": {"text": "Say it.", "metadata": {}}}}
        if told["type"] == "state":
            return {"type": "state", "data": {}}
        if data["word"] == "broken":
            return {"type": "error", "data": {"message": "no", "code": "EXECUTION_ERROR"}}
        if data["word"] == "bad":
            errors = [{"loc": ["word"], "msg": "not this one"}]
            return {"type": "error", "data": {"message": "Invalid", "code": "VALIDATION_ERROR", "errors": errors}}
        seen = {"said": data["word"], "keys": sorted(data), "nothing": ""}
        return {"type": "observation", "data": {"observation": seen, "reward": 0.5, "done": data["word"] == "end"}}


@pytest.fixture
def server() -> Iterator[Server]:
    """Served from a loop in a thread of its own."""
    served, loop = Server(), asyncio.new_event_loop()

    async def start() -> web.AppRunner:
        app = web.Application()
        app.add_routes([web.get("/schema", served.schema), web.get("/ws", served.session)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        served.url = "http://{}:{}".format(*site._server.sockets[0].getsockname())
        return runner

    runner = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield served
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def says(*words):
    return lambda messages: words[sum(m["role"] == "assistant" for m in messages)]


def call(arguments):
    function = {"name": "say", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


def test_an_answer_is_the_action_where_that_is_one_text(notebook, policy, server):  # noqa: F811
    policy.answer = says("hi", "end")
    played = notebook.run(f"%%chat said --env openenv:{server.url} --seed 3\n").trajectories[0]
    assert [message["content"] for message in played.messages] == [
        "Say it.", "hi", 'said: hi\nkeys: ["word"]', "end", 'said: end\nkeys: ["word"]',
    ]  # fmt: skip
    assert (played.reward, server.resets) == (1.0, [{"seed": 3}])


def test_a_call_of_its_tool_is_an_action_and_one_that_is_not_valid_is_for_the_policy(notebook, policy, server):  # noqa: F811
    policy.answer = says(call('{"word": "bad"}'), call('{"word": "x", "loud": "yes"}'), call('{"word": "end"}'))
    played = notebook.run(f"%%chat said --env openenv:{server.url}\n").trajectories[0]
    told = [message["content"] for message in played.messages if message["role"] == "tool"]
    assert told == ["error: word: not this one", 'said: x\nkeys: ["loud", "word"]', 'said: end\nkeys: ["word"]']
    (tool,) = policy.taken[0]["tools"]
    assert tool["function"]["name"] == "say"
    assert tool["function"]["description"] == "Says a word."
    assert tool["function"]["parameters"]["properties"] == {
        "word": {"type": "string"}, "loud": {"type": "string", "enum": ["no", "yes"], "default": "no"},
    }  # fmt: skip


def test_rollouts_wait_for_a_session_and_say_so(notebook, policy, server):  # noqa: F811
    policy.answer = says("hi", "end")
    trajectories = notebook.run(f"%%chat said -n 5 --env openenv:{server.url}\n").trajectories
    assert [t.reward for t in trajectories] == [1.0] * 5
    assert (server.most, len(server.resets)) == (1, 5)
    waited = [log for t in trajectories for log in t.extra.get("logs", []) if "CAPACITY_REACHED" in log]
    assert len(waited) == min(server.refused, 4)


def test_an_error_of_the_environment_ends_its_episode_alone(notebook, policy, server):  # noqa: F811
    policy.answer = says(call('{"word": "broken"}'))
    played = notebook.run(f"%%chat said --env openenv:{server.url}\n").trajectories[0]
    assert played.extra["metadata"]["episode_end"] == "error"
    assert "step failed: no (EXECUTION_ERROR)" in played.extra["logs"][-1]
    assert played.reward is None


def test_a_row_goes_to_the_reset(notebook, policy, server):  # noqa: F811
    policy.answer = says("end")
    notebook.run("rows = [{'split': 'train', 'index': 4}]")
    notebook.run(f"%%chat said --env openenv:{server.url} --over rows --seed 1\n")
    assert server.resets == [{"seed": 1, "split": "train", "index": 4}]


def test_an_address_without_a_server_stops_the_cell(notebook):  # noqa: F811
    assert notebook.error("%%chat said --env openenv:http://127.0.0.1:9\n").startswith("UnreachableError")
