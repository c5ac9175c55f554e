"""Adapter of OpenEnv: `openenv:URL`, environments that a server of openenv serves.

The protocol of the package's servers is implemented here. The package itself cannot be installed beside
`rolloutlab[local]`: it requires fastmcp, which requires mcp before 2.
"""

import asyncio
import json
import re
import time
from collections.abc import Mapping
from inspect import Parameter, Signature
from threading import Lock
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import WithJsonSchema

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.http.websocket import JsonSocket
from rolloutlab.environments.adapters import name_with, packages_of
from rolloutlab.environments.episode import EpisodeError
from rolloutlab.environments.protocol import Step
from rolloutlab.errors import InputError, ServiceError

_FULL = "CAPACITY_REACHED"
_INVALID = "VALIDATION_ERROR"
_PAUSE = 0.2  # seconds between tries to get a session
_ANSWER = 60.0  # seconds for the first answer of a session, which may start something
_PATIENCE = 600.0  # seconds without one, after which other programs are taken to hold them


def source(url: str, **options: Any) -> "OpenEnv":
    """Make the source of the environments of a running server. options: of each reset, such as `split="test"`."""
    address = url if "://" in url else f"http://{url}"
    address = re.sub("^ws", "http", address).rstrip("/")
    if urlsplit(address).scheme not in {"http", "https"} or not urlsplit(address).hostname:
        raise InputError(f"{url!r} is not the URL of a server", hint="openenv:http://127.0.0.1:8000")
    return OpenEnv(address, options)


def names() -> list[str]:
    """Return no names: servers have addresses."""
    return []


class OpenEnv:
    """The environments of one server. Their reset gets the row, such as `{"split": "train", "index": 3}`."""

    is_async = True

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.name = name_with(f"openenv:{url}", options)
        self.url = url
        self.options = options
        self.queue = Lock()
        http = HttpClient(tries=1)
        try:
            schemas = http.run(http.request("GET", f"{url}/schema", timeout=10.0))
        finally:
            http.close()
        if not isinstance(schemas, Mapping) or not isinstance(schemas.get("action"), Mapping):
            raise InputError(f"{url} is not a server of openenv: its /schema has no action", hint="openenv:URL")
        self.action: Mapping[str, Any] = schemas["action"]

    def rows(self, limit: int | None, seed: int) -> list[dict[str, Any]]:  # noqa: ARG002 - each group has its own
        return [{} for _ in range(limit or 1)]

    def environment(self, row: Mapping[str, Any]) -> "RemoteEnvironment":
        return RemoteEnvironment(self, {**self.options, **row})


class RemoteEnvironment:
    """A session of a server. The policy acts by the tool that `/schema` describes.

    If an action has only one required field, a text, an answer without a call is that text.
    """

    def __init__(self, server: OpenEnv, options: Mapping[str, Any]) -> None:
        self._server = server
        self._options = options
        self._socket: JsonSocket | None = None
        properties = _properties(server.action)
        self.tools = [_tool(server.action, properties, self._act)]
        required = [name for name in properties if name in server.action.get("required", ())]
        if len(required) == 1 and properties[required[0]].get("type") == "string":
            self.step = lambda answer: self._act(**{required[0]: answer})

    async def open(self) -> str | None:
        """Get a session, which may take long, as many servers have only a few. Return what it waited for, if at all."""
        if await self._try_to_connect():
            return None
        began = time.monotonic()
        while not self._server.queue.acquire(blocking=False):  # noqa: ASYNC110 - shared by several loops
            await asyncio.sleep(_PAUSE)
        try:
            turn = time.monotonic()
            while not await self._try_to_connect():
                if time.monotonic() > turn + _PATIENCE:
                    message = f"{self._server.url} had no session for {_PATIENCE:g} s ({_FULL})"
                    raise EpisodeError(message, hint="more max_concurrent_envs, or end what holds its sessions")
                await asyncio.sleep(_PAUSE)
        finally:
            self._server.queue.release()
        return f"waited {time.monotonic() - began:.1f} s for a session of {self._server.url} ({_FULL})"

    async def reset(self, seed: int) -> str:
        return _text((await self._ask("reset", {"seed": seed, **self._options})).get("observation"))

    async def close(self) -> None:
        if socket := self._socket:
            self._socket = None
            try:
                await socket.send({"type": "close"})
            finally:
                await socket.close()

    async def _act(self, **action: Any) -> Step:
        try:
            result = await self._ask("step", action)
        except InvalidActionError as error:
            return Step(f"error: {error}")
        done = bool(result.get("done"))
        text = _text(result.get("observation")) or ("" if done else "(nothing)")
        return Step(text, float(result.get("reward") or 0.0), done)

    async def _try_to_connect(self) -> bool:
        """Try to get a session; return whether there is one, by the server's answer to the first message."""
        socket = await JsonSocket.connect(f"{self._server.url}/ws")
        try:
            async with asyncio.timeout(_ANSWER):
                answer = await socket.ask({"type": "state"})
            if _code(answer) != _FULL:
                self._socket = socket
        finally:
            if self._socket is not socket:
                await socket.close()
        return self._socket is socket

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self._socket, "open comes first"
        try:
            answer = await self._socket.ask({"type": kind, "data": data})
        except ServiceError as error:
            raise EpisodeError(f"{kind}: {error.message}") from error
        if code := _code(answer):
            failure = answer["data"]
            if code == _INVALID:
                places = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in failure.get("errors", ()))
                raise InvalidActionError("; ".join(places) or failure.get("message"))
            raise EpisodeError(f"{self._server.url}: {kind} failed: {failure.get('message')} ({code})")
        result: Mapping[str, Any] = answer.get("data") or {}
        return result


class InvalidActionError(Exception):
    """The server does not take an action. The text is for the policy."""


def _code(answer: Any) -> str | None:
    """Return the code of an answer that is an error; None for other answers."""
    is_error = isinstance(answer, Mapping) and answer.get("type") == "error"
    return str(answer["data"].get("code", "UNKNOWN")) if is_error else None


def _text(observation: Any) -> str:
    """Write an observation as text: its only field, or a line for each, without empty fields and metadata."""
    if observation is None:
        return ""
    if not isinstance(observation, Mapping):
        return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)
    fields = {name: value for name, value in observation.items() if name != "metadata" and value not in (None, "")}
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in fields.items()
    }
    return (
        next(iter(texts.values())) if len(texts) == 1 else "\n".join(f"{name}: {text}" for name, text in texts.items())
    )


def _properties(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the fields of an action that a policy fills in."""
    definitions = schema.get("$defs", {})
    fields = schema.get("properties", {})
    return {name: _inline(field, definitions) for name, field in fields.items() if name != "metadata"}


def _inline(schema: Any, definitions: Mapping[str, Any], depth: int = 8) -> Any:
    """Put what a schema refers to in its place, to some depth: the parameters of a tool have no definitions."""
    if isinstance(schema, list):
        return [_inline(each, definitions, depth) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:
        named = definitions.get(str(schema["$ref"]).rpartition("/")[2], {}) if depth else {}
        schema = {**named, **{key: value for key, value in schema.items() if key != "$ref"}}
        depth -= 1
    return {key: _inline(value, definitions, depth) for key, value in schema.items()}


def _tool(schema: Mapping[str, Any], properties: Mapping[str, Any], act: Any) -> Any:
    """Make a function with the signature of an action, named after it: `GuessAction` becomes `guess`."""
    defaults = {name: field.get("default") for name, field in properties.items()}

    async def tool(**action: Any) -> Step:
        given = {name: value for name, value in action.items() if name in required or value != defaults[name]}
        step: Step = await act(**given)
        return step

    required = schema.get("required", ())
    parameters = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            annotation=Annotated[Any, WithJsonSchema({key: value for key, value in field.items() if key != "title"})],
            default=Parameter.empty if name in required else defaults[name],
        )
        for name, field in properties.items()
    ]
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(schema.get("title", ""))).lower()
    tool.__name__ = tool.__qualname__ = words.removesuffix("_action") if words.endswith("_action") else "act"
    tool.__doc__ = str(schema.get("description") or "Act in the environment.")
    tool.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    tool.__annotations__ = {each.name: each.annotation for each in parameters}
    return tool


def advice(environment: Any) -> str | None:
    """Say what to type for a client or an environment of OpenEnv."""
    return "openenv:URL, of a server of it" if "openenv" in packages_of(environment) else None
