"""Chat requests of programs: read leniently, as frameworks write them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.api.wire.errors import locate
from rolloutlab.errors import InputError

_INTEGERS = ("n", "max_tokens", "max_completion_tokens", "seed", "top_logprobs")
_UNCONSTRAINED = "a rollout samples the policy as it is, without a grammar"
_TEXT = ("leave response_format out, or {'type': 'json_object'}: in openai-agents an Agent without output_type, in "
         "LangChain with_structured_output(method='json_mode'), in inspect_ai no response_schema")  # fmt: skip


@dataclass(frozen=True)
class ClientOptions:
    """How a client wants its answer: streamed, with usage in the stream, with logprobs."""

    stream: bool = False
    usage: bool = False
    logprobs: bool = False


def read_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object; raise InputError for anything else."""
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InputError(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError("the body must be a JSON object")
    return value


def read_request(body: Mapping[str, Any]) -> tuple[ChatRequest, ClientOptions]:
    """Read the request of a body, and how its client wants the answer.

    `response_format` has no effect on what is sampled. Integers may be written as `20.0`.

    Raises:
        InputError: the request is invalid, or wants a response with a schema.
    """
    fields = {name: _to_integer(value) if name in _INTEGERS else value for name, value in body.items()}
    kind = fields.pop("response_format", None) or {}
    if isinstance(kind, Mapping) and kind.get("type") not in (None, "text", "json_object"):
        raise InputError(f"response_format {kind['type']} is not offered: {_UNCONSTRAINED}", hint=_TEXT)
    stream, wants = fields.pop("stream", None), fields.pop("stream_options", None) or {}
    usage = isinstance(wants, Mapping) and bool(wants.get("include_usage"))
    options = ClientOptions(bool(stream), usage, bool(fields.pop("logprobs", None)))
    fields.setdefault("model", "")
    try:
        return ChatRequest.model_validate(fields), options
    except ValidationError as error:
        first = locate(error.errors(include_url=False)[:1], fields)[0]
        raise InputError(f"{'.'.join(map(str, first.loc))}: {first.msg}") from None


def _to_integer(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
