"""Answers of the gateway in OpenAI's form: completions as their client wants them, chunks, and errors."""

from collections.abc import Iterator, Mapping
from typing import Any

from rolloutlab.api.wire.chat import ChatCompletion
from rolloutlab.capture.requests import ClientOptions
from rolloutlab.errors import (
    BudgetError,
    ConflictError,
    FullError,
    InputError,
    NotFoundError,
    RefusedError,
    RolloutlabError,
    SignInError,
    UnreachableError,
)

Problem = tuple[int, dict[str, Any]]
"""Status and body."""

_STATUS: dict[type[RolloutlabError], int] = {
    InputError: 400, NotFoundError: 404, ConflictError: 401, FullError: 507, UnreachableError: 503,
}  # fmt: skip
"""Any other error is the service's, with status 502. So is a refused key, because it is not the client's key."""


def shown(completion: ChatCompletion, options: ClientOptions) -> ChatCompletion:
    """The completion for its client, without logprobs if the client did not ask for them."""
    if options.logprobs:
        return completion
    choices = [choice.model_copy(update={"logprobs": None}) for choice in completion.choices]
    return completion.model_copy(update={"choices": choices})


def shown_chunk(chunk: Mapping[str, Any], options: ClientOptions) -> dict[str, Any] | None:
    """The chunk for its client; None if it contains nothing that the client asked for."""
    choices = chunk.get("choices") or []
    if not options.logprobs:
        choices = [{name: value for name, value in choice.items() if name != "logprobs"} for choice in choices]
    usage = chunk.get("usage") if options.usage else None
    if not choices and not usage:
        return None
    others = {name: value for name, value in chunk.items() if name != "usage"}
    return {**others, "choices": choices, **({"usage": usage} if options.usage else {})}


def chunks_of(completion: ChatCompletion) -> Iterator[dict[str, Any]]:
    """A whole completion as chunks: a message for each choice, then the usage."""
    head = {"id": completion.id, "object": "chat.completion.chunk", "created": completion.created}
    head["model"] = completion.model
    for choice in completion.choices:
        sent = choice.to_wire()
        delta = sent.pop("message")
        if calls := delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
        yield {**head, "choices": [{**sent, "delta": delta}]}
    if completion.usage:
        yield {**head, "choices": [], "usage": completion.usage.to_wire()}


def problem(error: RolloutlabError) -> Problem:
    """An error in OpenAI's form. If a service reported the error in that form, it is passed on unchanged."""
    if isinstance(error, BudgetError):
        return _problem(429, error.with_hint, "insufficient_quota", "insufficient_quota")
    if isinstance(error, RefusedError) and error.reported:
        return error.status, {"error": {"param": None, "code": None, "type": _TYPE, **error.reported}}
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 502)
    message = "the service refused the key of the lab" if isinstance(error, SignInError) else error.with_hint
    return _problem(status, message, _TYPE if status < 500 else "server_error")


_TYPE = "invalid_request_error"


def _problem(status: int, message: str, kind: str, code: str | None = None) -> Problem:
    return status, {"error": {"message": message, "type": kind, "param": None, "code": code}}
