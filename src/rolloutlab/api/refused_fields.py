"""Fields of chat requests that a service refuses for a model: learned from its errors, and left out from then on.

OpenAI-compatible services refuse a field that they lack with a 400 or 422, llama.cpp's server with a 500 and OpenAI
with a 403 for logprobs. No two have the same text, but nearly all name the field in it.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from rolloutlab.api.prices import Tokens, prompt_bound
from rolloutlab.api.wire.chat import AssistantMessage, ChatCompletion, ChatRequest, UserMessage
from rolloutlab.errors import ServiceError, SignInError, UnreachableError
from rolloutlab.settings import Address

Send = Callable[[ChatRequest], Awaitable[ChatCompletion]]

LOGPROBS, MESSAGES = "logprobs", "messages"
_NAMED = {
    LOGPROBS: r"log ?prob",
    "n": r"(?<![\w\\])n(?!\w)|\bn_cmpl\b|\b(choices?|candidates?)\b",  # llama.cpp: "only one completion choice"
    "seed": r"\bseed\b",
    "temperature": r"\btemperature\b",
    "top_p": r"\btop_p\b",
    "max_tokens": r"\bmax_completion_tokens\b",  # OpenAI names what its reasoning models take instead
}
_REFUSALS = {400, 403, 422, 500}
"""Statuses after which the service might accept the request without some field."""
_TRIED = {LOGPROBS, "n", "seed"}
_OF_MESSAGES = {"role", "content", "tool_calls", "token_ids"}  # the last is `EarlierTokens`' to leave out
_WORD = UserMessage(role="user", content="hi")
"""The prompt of trials, so that they cost next to nothing."""
_UNTRAINED = "its completions can be judged and compared, but not trained on"


class RefusedFields:
    """Sends chat requests without the fields that the service has refused for their model in this session."""

    def __init__(self) -> None:
        self._refused: dict[tuple[str, str], set[str]] = {}
        """Names of refused fields by inference URL and model. A model gets an entry with its first completion."""
        self._trials: dict[tuple[asyncio.AbstractEventLoop, str, str], asyncio.Lock] = {}
        """A lock per model, held during its trial. Each event loop has its own: one that hangs never frees a lock."""
        self._tried: dict[tuple[str, str], set[str]] = {}
        """Names of fields that trials have found to be refused, by inference URL and model."""
        self._lacking: set[tuple[str, str]] = set()
        self._noted: set[str] = set()

    async def complete(
        self, address: Address, request: ChatRequest, send: Send, free: Collection[str] = ()
    ) -> ChatCompletion:
        """Complete a request. If the service refuses `n`, there are fewer choices than were requested.

        A refused `temperature` or `top_p` is an error, with two exceptions: its value is 1, which services use by
        default; or its name is in `free`, the fields that the code of the caller has set, and not a person.

        Raises:
            RolloutlabError: the errors of `send`, for the request without the refused fields.
        """
        key = address.inference_base_url, request.model
        optional = _find_optional(request, free)
        left_out = self._refused.get(key, set()) & optional
        while True:
            try:
                completion = await send(_leave_out(request, left_out))
                break
            except ServiceError as error:
                named = _find_named(error, request) | self._refused.get(key, set())
                if not named and key not in self._refused and _may_be_of_a_field(error):
                    named = await self._try(key, _leave_out(request, left_out), send)
                if not (more := (named & optional) - left_out):
                    raise
                left_out = left_out | more
        self._refused.setdefault(key, set()).update(left_out)
        if request.logprobs and not any(choice.sampled_tokens() for choice in completion.choices):
            self._lacking.add(key)
        return completion

    def most_of_trials(self, address: Address, model: str, n: int) -> Tokens:
        """Bound the tokens of the trials before a request for `n` completions. The request must have `max_tokens`."""
        if (address.inference_base_url, model) in self._refused:
            return Tokens()
        trials = 1 + len(_TRIED)
        return Tokens(trials * prompt_bound([_WORD]), trials + n)

    def notes(self) -> list[str]:
        """Return a line for each model whose service refused fields or gave no logprobs. Each line is returned once."""
        lines = []
        for key, refused in self._refused.items():
            lacking = LOGPROBS in refused or key in self._lacking
            names = ", ".join(sorted(refused - {LOGPROBS, MESSAGES}))
            what = [*(["gives no logprobs"] if lacking else []), *([f"does not take {names}"] if names else [])]
            if what:
                lines.append(f"{key[1]} at {key[0]} {' and '.join(what)}{f': {_UNTRAINED}' if lacking else ''}")
        new = [line for line in lines if line not in self._noted]
        self._noted.update(new)
        return new

    async def _try(self, key: tuple[str, str], request: ChatRequest, send: Send) -> set[str]:
        """Find by trial requests, once per model, which fields the service refuses though its error names none."""
        if not _find_optional(request, ()) & _TRIED:  # nothing could be learned, as of most requests of judges
            return set()
        async with self._trials.setdefault((asyncio.get_running_loop(), *key), asyncio.Lock()):
            if key not in self._tried:
                self._tried[key] = await _run_trials(request, send)
            return self._tried[key]


async def _run_trials(request: ChatRequest, send: Send) -> set[str]:
    """Find the fields without which a short request is accepted, by up to `1 + len(_TRIED)` requests.

    The first request has none of the fields. If that is accepted, each field is tried with those accepted before it.
    """
    fields = _find_optional(request, ()) & _TRIED
    lengths = {name: 1 for name in ("max_tokens", "max_completion_tokens") if getattr(request, name)}
    short = request.model_copy(update={"messages": [_WORD], **lengths})
    needed = set(fields)
    for kept in ("", *sorted(fields)):
        try:
            await send(_leave_out(short, needed - {kept}))
        except ServiceError as error:
            if _is_for_now(error):
                raise
            if not kept:
                return set()
        else:
            needed.discard(kept)
    return needed


def _find_optional(request: ChatRequest, free: Collection[str]) -> set[str]:
    """Find the fields that can be left out, or renamed, without changing what a person asked for."""
    sent = request.model_fields_set
    neutral = {name for name in ("temperature", "top_p") if name in sent and getattr(request, name) == 1}
    named = {name for name in (LOGPROBS, "seed", "max_tokens") if getattr(request, name)}
    extras = {MESSAGES} if any(map(_extras_of, request.messages)) else set()
    return neutral | named | extras | ({"n"} if request.n > 1 else set()) | (sent & set(free))


def _leave_out(request: ChatRequest, fields: Collection[str]) -> ChatRequest:
    """Leave out these fields: `max_tokens` gets its other name, messages keep what every service reads."""
    if not fields:
        return request
    kept = {name: value for name, value in request.to_wire().items() if name not in fields or name == MESSAGES}
    body: dict[str, Any] = kept
    if "max_tokens" in fields:
        body["max_completion_tokens"] = request.max_tokens
    if MESSAGES in fields:
        body[MESSAGES] = [
            {name: value for name, value in sent.items() if name not in _extras_of(message)}
            for sent, message in zip(body[MESSAGES], request.messages, strict=True)
        ]
    return ChatRequest.model_validate(body)


def _extras_of(message: Any) -> set[str]:
    """Find the fields of an assistant's message that some services give and others refuse, such as its reasoning."""
    return set(message.to_wire()) - _OF_MESSAGES if isinstance(message, AssistantMessage) else set()


def _find_named(error: ServiceError, request: ChatRequest) -> set[str]:
    """Find the fields that an error message names. After a 403 only logprobs count: OpenAI refuses them with it."""
    if error.status not in _REFUSALS:
        return set()
    text = re.sub(r"https?://\S+", "", error.message)
    extras = set().union(*map(_extras_of, request.messages))
    named = {name for name, pattern in _NAMED.items() if re.search(pattern, text, re.IGNORECASE)}
    if any(re.search(rf"\b{re.escape(name)}\b", text) for name in extras):
        named.add(MESSAGES)
    return named & {LOGPROBS} if isinstance(error, SignInError) else named


def _is_for_now(error: ServiceError) -> bool:
    """Whether an error says nothing about the fields of a request: the service is busy or away."""
    return isinstance(error, UnreachableError) or error.status in {408, 429} or error.status > 500


def _may_be_of_a_field(error: ServiceError) -> bool:
    return error.status in {400, 422} and "token_ids" not in error.message
