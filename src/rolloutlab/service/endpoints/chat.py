"""POST /v1/chat/completions and GET /v1/models, in the form that OpenAI's clients read."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.api.wire.training import ModelCardList, UsageList
from rolloutlab.service.endpoints.body import describe, reads
from rolloutlab.service.endpoints.completer import Completer
from rolloutlab.service.endpoints.sampling_settings import header
from rolloutlab.service.model_registry import Registry
from rolloutlab.service.usage import Ledger

_EXAMPLE = {"model": "practice", "messages": [{"role": "user", "content": "What is 12 + 30?"}], "max_tokens": 8}
_EVENTS: dict[str, dict[str, str]] = {"text/event-stream": {}}  # a schema would be taken for that of each event


def router(registry: Registry, completer: Completer) -> APIRouter:
    """The inference half of the service; its base address ends in /v1."""
    routes = APIRouter(prefix="/v1", tags=["chat"])

    @routes.post(
        "/chat/completions",
        response_model=ChatCompletion,
        responses={200: {"content": _EVENTS}},
        openapi_extra=describe(ChatRequest, _EXAMPLE),
    )
    async def create_chat_completion(
        body: Annotated[ChatRequest, Depends(reads(ChatRequest))],
        request: Request,
        vendor_project: Annotated[str | None, Header()] = None,
        openai_project: Annotated[str | None, Header()] = None,
    ) -> Response:
        plan = await run_in_threadpool(completer.plan, body, vendor_project or openai_project or "")
        headers = header(plan.ignored)
        if body.stream:
            headers["Cache-Control"] = "no-cache"
            return StreamingResponse(completer.stream(plan), media_type="text/event-stream", headers=headers)
        answer = await completer.answer(plan, request.receive)
        return Response(answer, media_type="application/json", headers=headers)

    @routes.get("/models", response_model=ModelCardList, response_model_exclude_unset=True)
    async def list_models() -> ModelCardList:
        return ModelCardList(object="list", data=registry.cards())

    return routes


def usage_router(ledger: Ledger) -> APIRouter:
    """What chats came to."""
    routes = APIRouter(prefix="/v1/preview/usage", tags=["chat"])

    @routes.get("")
    def list_usage() -> UsageList:
        return UsageList(object="list", data=ledger.entries())

    return routes
