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
"""The status and the body of a response with an error."""

_STATUS: dict[type[RolloutlabError], int] = {
    InputError: 400, NotFoundError: 404, ConflictError: 401, FullError: 507, UnreachableError: 503,
}  # fmt: skip
"""The status of an error, by its type. Any other error is one of the service, with status 502.

A refused key is such an error too, because it is the key of the lab and not the client's."""


def hide_logprobs(completion: ChatCompletion, options: ClientOptions) -> ChatCompletion:
    """Remove the logprobs from a completion if the client did not ask for them."""
    if options.logprobs:
        return completion
    choices = [choice.model_copy(update={"logprobs": None}) for choice in completion.choices]
    return completion.model_copy(update={"choices": choices})


def filter_chunk(chunk: Mapping[str, Any], options: ClientOptions) -> dict[str, Any] | None:
    """Keep what the client asked for of a chunk; None if that is nothing."""
    choices = chunk.get("choices") or []
    if not options.logprobs:
        choices = [{name: value for name, value in choice.items() if name != "logprobs"} for choice in choices]
    usage = chunk.get("usage") if options.usage else None
    if not choices and not usage:
        return None
    others = {name: value for name, value in chunk.items() if name != "usage"}
    return {**others, "choices": choices, **({"usage": usage} if options.usage else {})}


def chunks_of(completion: ChatCompletion) -> Iterator[dict[str, Any]]:
    """Convert a whole completion to chunks: a message for each choice, then the usage."""
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


def problem_of(error: RolloutlabError) -> Problem:
    """Convert an error to OpenAI's form. If a service reported the error in that form, it is passed on unchanged."""
    if isinstance(error, BudgetError):
        return _make_problem(429, error.with_hint, "insufficient_quota", "insufficient_quota")
    if isinstance(error, RefusedError) and error.reported:
        return error.status, {"error": {"param": None, "code": None, "type": _TYPE, **error.reported}}
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 502)
    message = "the service refused the key of the lab" if isinstance(error, SignInError) else error.with_hint
    return _make_problem(status, message, _TYPE if status < 500 else "server_error")


_TYPE = "invalid_request_error"


def _make_problem(status: int, message: str, kind: str, code: str | None = None) -> Problem:
    return status, {"error": {"message": message, "type": kind, "param": None, "code": code}}
