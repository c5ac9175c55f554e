"""HTTP server of the gateway: OpenAI's chat completions and models on 127.0.0.1, for the keys of rollouts."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from rolloutlab.api.http.ip_scope import on_this_machine
from rolloutlab.capture.answers import problem_of
from rolloutlab.capture.gateway import ENDED, Gateway, OnChunk
from rolloutlab.capture.requests import read_object
from rolloutlab.capture.responses import ResponseEvents, chat_body, make_response
from rolloutlab.capture.rollout import MODEL, CapturedRollout
from rolloutlab.errors import ConflictError, InputError, NotFoundError, RolloutlabError, ServiceError
from rolloutlab.sanitize import replace_surrogates

_HOST = "127.0.0.1"
_MAX_BYTES = 64_000_000
_BACKLOG = 1024
_SESSION = "X-Session-ID"
"""The header in which an evaluator names the sample that a call belongs to."""
_BEARER = re.compile(r"bearer\s+", re.IGNORECASE)
_NOT_RETRIED = {"x-should-retry": "false"}
"""Keeps OpenAI's clients from retrying: rolloutlab has retried the request already, if that could help."""
_OFFERED = "the gateway offers chat completions, responses and models"
_HTTP_LOG = logging.getLogger(f"{__name__}.http")
# aiohttp would log a traceback for each malformed request, which gets an error as its answer anyway
_HTTP_LOG.setLevel(logging.CRITICAL)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Answer = Callable[[OnChunk], Awaitable[Any]]


@asynccontextmanager
async def serve(gateway: Gateway) -> AsyncIterator[str]:
    """Serve a gateway on a free port, and yield its URL."""
    app = make_app(gateway)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, logger=_HTTP_LOG, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, _HOST, 0, backlog=_BACKLOG).start()
        yield f"http://{_HOST}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def make_app(gateway: Gateway) -> web.Application:
    """Make the application of a gateway."""
    app = web.Application(middlewares=[_catch_errors], client_max_size=_MAX_BYTES)
    endpoints = Endpoints(gateway)
    for prefix in ("/v1", "/rollouts/{id}/v1"):
        app.router.add_post(f"{prefix}/chat/completions", endpoints.chat)
        app.router.add_post(f"{prefix}/responses", endpoints.responses)
        app.router.add_get(f"{prefix}/models", endpoints.models)
        app.router.add_get(f"{prefix}/models/{{model:.+}}", endpoints.model)
    return app


class Endpoints:
    """The handlers of requests."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer POST /v1/chat/completions."""
        rollout, tries = self._rollout(request), _read_tries(request)
        body = read_object(await request.read())
        if not body.get("stream"):
            completion = await self._gateway.chat(rollout, body, tries)
            return web.Response(text=completion.to_json(), content_type="application/json")
        return await stream(request, lambda on_chunk: self._gateway.chat(rollout, body, tries, on_chunk))

    async def responses(self, request: web.Request) -> web.StreamResponse:
        """Answer POST /v1/responses by a chat completion."""
        rollout, tries = self._rollout(request), _read_tries(request)
        body = read_object(await request.read())
        chat = chat_body(body)
        if not body.get("stream"):
            return web.json_response(make_response(body, await self._gateway.chat(rollout, chat, tries)))

        async def answer(emit: OnChunk) -> None:
            events = ResponseEvents(body, emit)
            events.end(await self._gateway.chat(rollout, chat, tries, events.take_chunk))

        return await stream(request, answer)

    async def models(self, request: web.Request) -> web.Response:
        """Answer GET /v1/models with the policy alone."""
        self._rollout(request)
        return web.json_response({"object": "list", "data": [_model_card(MODEL)]})

    async def model(self, request: web.Request) -> web.Response:
        """Answer GET /v1/models/NAME with the policy, under any name, as for chat completions."""
        self._rollout(request)
        return web.json_response(_model_card(request.match_info["model"]))

    def _rollout(self, request: web.Request) -> CapturedRollout:
        """Find the rollout or session of a request by its address, or else by its key.

        Raise ConflictError if there is none.
        """
        name = request.match_info.get("id") or _BEARER.sub("", request.headers.get("Authorization", "")).strip()
        if rollout := self._gateway.rollout(name):
            return self._gateway.session(rollout, replace_surrogates(request.headers.get(_SESSION, "")))
        raise ConflictError(ENDED if name else "an API key is required", hint="client.base_url and client.api_key")


async def stream(request: web.Request, answer: Answer) -> web.StreamResponse:
    """Respond with the chunks of an answer as server-sent events. An error before the first chunk is raised."""
    chunks: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    task = asyncio.ensure_future(answer(chunks.put_nowait))
    task.add_done_callback(lambda _: chunks.put_nowait(None))
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    try:
        while (chunk := await chunks.get()) is not None:
            if not response.prepared:
                await response.prepare(request)
            await response.write(format_event(chunk))
        try:
            task.result()
        except (RolloutlabError, asyncio.CancelledError) as error:
            if not response.prepared:
                raise
            broken = error if isinstance(error, RolloutlabError) else ConflictError(ENDED)
            await response.write(format_event(problem_of(broken)[1]))
        await response.write(b"data: [DONE]\n\n")
    finally:
        task.cancel()
    return response


def format_event(data: dict[str, Any]) -> bytes:
    """Format a server-sent event. Only the events of a response have a name."""
    name = f"event: {data['type']}\n" if "sequence_number" in data else ""
    return f"{name}data: {json.dumps(data)}\n\n".encode()


@web.middleware
async def _catch_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors into responses in OpenAI's form. A request that a web page may have sent gets 403."""
    try:
        _check_origin(request)
        return await handler(request)
    except RolloutlabError as error:
        return _error_response(error)
    except web.RequestPayloadError as error:
        reason = " ".join(str(error).split()).removeprefix("400, message: ")
        return _error_response(InputError(f"the body cannot be read: {reason}"))
    except web.HTTPException as error:
        if error.status in {404, 405}:
            return _error_response(NotFoundError(f"there is no {request.method} {request.path}: {_OFFERED}"))
        body = {"error": {"message": error.reason, "type": "invalid_request_error"}}
        return web.json_response(body, status=error.status)
    except Exception:
        logging.getLogger(__name__).exception("a captured call failed")
        return _error_response(ServiceError("the gateway failed; the log of the notebook has the details"))


def _check_origin(request: web.Request) -> None:
    """Raise HTTPForbidden unless a program of this machine asks, because answers cost money.

    A web page sends its `Origin`. A page that reaches this machine under a host name of its own (DNS rebinding) sends
    that name as `Host`.
    """
    if "Origin" in request.headers:
        raise web.HTTPForbidden(reason="the gateway answers no web pages: the request has an Origin")
    hosts = request.headers.getall("Host", [])
    if len(hosts) != 1 or not on_this_machine(f"http://{hosts[0]}"):
        raise web.HTTPForbidden(
            reason="the gateway is addressed as 127.0.0.1 or localhost: the request has another Host"
        )


def _error_response(error: RolloutlabError) -> web.Response:
    status, body = problem_of(error)
    return web.json_response(body, status=status, headers=_NOT_RETRIED)


def _read_tries(request: web.Request) -> int:
    """Read how often a client of OpenAI has sent this request before."""
    count = request.headers.get("x-stainless-retry-count", "0")
    return int(count) if re.fullmatch("[0-9]{1,4}", count) else 0


def _model_card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rolloutlab"}
