"""Inference API of a service: models, chat completions, and logprobs of existing conversations."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from rolloutlab.api.answers import arguments_of, failure_of, text_of, tidied
from rolloutlab.api.http.client import HttpClient, Tries
from rolloutlab.api.http.errors import message_of, status_error
from rolloutlab.api.kinds import chat_name, kind_of, with_step
from rolloutlab.api.model_list import model_cards
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest, StreamOptions
from rolloutlab.api.wire.training import ModelCard
from rolloutlab.api.wire.trajectories import History, LogprobsRequest, ScoredHistories
from rolloutlab.errors import NotFoundError, NotOfferedError, RefusedError, RolloutlabError, ServiceError
from rolloutlab.settings import Address


class StreamedCompletion:
    """Assembles the chunks of one streamed completion, leniently, as services differ in what they repeat.

    on_chunk: gets each chunk.
    """

    def __init__(self, on_chunk: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
        self._on_chunk = on_chunk
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._whole: dict[str, Any] | None = None
        self.text = ""

    def add(self, data: str) -> bool:
        """Add the `data:` of one event; whether it has added text. ServiceError: it is an error, or not a chunk."""
        before = len(self.text)
        try:
            chunk = json.loads(data)
            if chunk.get("object") == "chat.completion":
                self._whole = chunk
                return False
            if chunk.get("error") or (not chunk.get("choices") and message_of(chunk)):
                raise ServiceError(f"the response broke off: {message_of(chunk) or 'no reason given'}")
            self._head |= {name: value for name, value in chunk.items() if name != "choices" and value is not None}
            for choice in chunk.get("choices") or []:
                self._fold(self._choices.setdefault(choice.get("index", 0), {"tool_calls": {}, "logprobs": {}}), choice)
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            raise ServiceError("the response has an invalid chunk", hint=_OTHER) from error
        self._on_chunk(chunk)
        return len(self.text) > before

    def whole(self) -> dict[str, Any]:
        """The completion as a response without streaming; ServiceError when its end is missing."""
        if self._whole:
            return self._whole
        if not self._choices or any("finish_reason" not in choice for choice in self._choices.values()):
            raise ServiceError("the response broke off before its end")
        choices = [_choice(index, parts) for index, parts in sorted(self._choices.items())]
        return {**self._head, "choices": choices}

    def _fold(self, parts: dict[str, Any], choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or {}
        for name in ("reasoning_content", "reasoning", "content", "refusal"):
            if text := text_of(delta.get(name)):
                parts[name] = parts.get(name, "") + text
                self.text += text
        for call in delta.get("tool_calls") or []:
            _fold_call(parts["tool_calls"].setdefault(_place(parts["tool_calls"], call), {}), call)
        for name, tokens in (choice.get("logprobs") or {}).items():
            parts["logprobs"].setdefault(name, []).extend(tokens or [])
        others = {"index", "delta", "logprobs"}
        parts |= {name: value for name, value in choice.items() if name not in others and value is not None}


def _place(calls: Mapping[int, Any], call: Mapping[str, Any]) -> int:
    """The place of a call among those of a message; without an `index`, as Gemini's, a name begins another one."""
    if isinstance(index := call.get("index"), int):
        return index
    return len(calls) if (call.get("function") or {}).get("name") or not calls else len(calls) - 1


def _fold_call(parts: dict[str, Any], call: Mapping[str, Any]) -> None:
    """Add a tool call, whose arguments may be split over chunks."""
    function = call.get("function") or {}
    folded = parts.setdefault("function", {"arguments": ""})
    folded["arguments"] += "" if function.get("arguments") is None else arguments_of(function)
    folded |= {"name": function["name"]} if function.get("name") else {}
    parts |= {name: call[name] for name in ("id", "type") if call.get(name)}


def _choice(index: int, parts: dict[str, Any]) -> dict[str, Any]:
    calls = [{"type": "function", **call} for _, call in sorted(parts.pop("tool_calls").items())]
    texts = {name: parts.pop(name, None) for name in ("content", "reasoning_content", "reasoning", "refusal")}
    message = {"role": "assistant", **texts}
    present = {name: value for name, value in message.items() if value is not None}
    return {"index": index, **parts, "message": {**present, **({"tool_calls": calls} if calls else {})}}


TIMEOUT = 600.0
"""Seconds without any byte of a response; a service that samples sends none for long."""
SELECT = "%model UUID, the id of a model that it has"
_ANY = "%model NAME_OR_UUID, of a model that it has"
_UNLISTED = "%model PROJECT/NAME --base BASE"
_OTHER = "%model selects another model, %connect another service"


async def models(
    http: HttpClient, address: Address, *, timeout: float = 60.0, retry: bool | None = None
) -> list[ModelCard]:
    """GET {inference_base_url}/models; raises as `HttpClient.request`, and NotOfferedError for no list of models."""
    url = f"{address.inference_base_url}/models"
    headers, message = address.headers, f"{address.inference_base_url} does not list its models"
    if not kind_of(address).lists_models:
        raise NotOfferedError(message, hint=_UNLISTED)
    try:
        body = await http.request("GET", url, token=address.token, headers=headers, timeout=timeout, retry=retry)
    except NotFoundError as error:
        status = error.status if isinstance(error, NotOfferedError) else 404
        raise NotOfferedError(message, hint=_ANY, status=status) from error
    except RefusedError as error:  # gateways answer so at paths that they do not know
        raise NotOfferedError(f"{message}: {error.message}", hint=_ANY) from error
    if (cards := model_cards(body)) is None:
        raise NotOfferedError(f"{message}: what it answers has no names of models", hint=_ANY)
    return cards


async def reads_token_ids(http: HttpClient, address: Address) -> bool:
    """Whether the service lists, for all its models, that it reads the sampled token ids of earlier turns."""
    try:
        cards = await models(http, address)
    except (ServiceError, NotFoundError):  # it may sample all the same
        return False
    return bool(cards) and all("token_ids" in (card.reads or ()) for card in cards)


async def complete(
    http: HttpClient, address: Address, request: ChatRequest, tries: Tries | None = None
) -> ChatCompletion:
    """POST {inference_base_url}/chat/completions. Retried when the connection breaks, as it has no side effect.

    Choices that the service reports as failed are left out, so there may be fewer than were requested.

    tries: hears of each try.

    Raises:
        ServiceError: the response is not a chat completion, or no choice is whole; and as `HttpClient.request`.
    """
    with _explained(address, request):
        made = _checked(address, await http.request("POST", retry=True, tries=tries, **_options(address, request)))
    return with_step(address, request.model, made)


async def stream(
    http: HttpClient,
    address: Address,
    request: ChatRequest,
    on_text: Callable[[str], None],
    tries: Tries | None = None,
    on_chunk: Callable[[dict[str, Any]], None] = lambda _: None,
) -> ChatCompletion:
    """As `complete`; `on_text` gets all text so far whenever there is more, `on_chunk` each chunk as it comes."""
    streaming = request.model_copy(update={"stream": True, "stream_options": StreamOptions(include_usage=True)})
    streamed = StreamedCompletion(on_chunk)
    with _explained(address, request):
        async for data in http.events(tries=tries, **_options(address, streaming)):
            if streamed.add(data):
                on_text(streamed.text)
        made = _checked(address, streamed.whole(), every=True)  # of one that failed, parts were passed on
    return with_step(address, request.model, made)


def _checked(address: Address, body: Any, *, every: bool = False) -> ChatCompletion:
    """The completion, without the choices that failed. every: none may have failed."""
    if isinstance(body, Mapping) and not body.get("choices") and (words := message_of(body)):
        raise _failure(address, body, words)
    tidy = tidied(body)
    choices = tidy.get("choices") if isinstance(tidy, Mapping) else None
    if isinstance(choices, list) and (failed := [each for each in choices if failure_of(each) is not None]):
        whole = [each for each in choices if failure_of(each) is None]
        if every or not whole:
            raise ServiceError(f"the service broke off the answer: {failure_of(failed[0])}")
        tidy = {**tidy, "choices": whole}
    completion = ChatCompletion.model_validate(tidy)
    if not completion.choices:
        raise ServiceError("the response has no choices", hint=_OTHER)
    return completion


def _failure(address: Address, body: Mapping[str, Any], words: str) -> RolloutlabError:
    """The error in a body that came with 200, as gateways send it; some have the status of the service behind them."""
    error = body.get("error")
    code = error.get("code") if isinstance(error, Mapping) else body.get("code")
    token = address.token if isinstance(address.token, str) else None
    if type(code) is int and 400 <= code < 600:
        return status_error(address.inference_base_url, code, words, json.dumps(body).encode(), token)
    words = words.replace(token, "...") if token else words
    return ServiceError(f"{address.inference_base_url} answered with an error: {words}", hint=_OTHER)


def _options(address: Address, request: ChatRequest) -> dict[str, Any]:
    named = request.model_copy(update={"model": chat_name(address, request.model)})
    options = {"token": address.token, "headers": address.headers, "content": named.to_json(), "timeout": TIMEOUT}
    return {"url": f"{address.inference_base_url}/chat/completions", **options}


@contextmanager
def _explained(address: Address, request: ChatRequest) -> Iterator[None]:
    """Add what to type to 404, and turn a response of another shape into ServiceError."""
    try:
        yield
    except NotFoundError as error:
        raise NotFoundError(error.message, hint=_registers(address, request.model)) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = f"the response is not a chat completion: {where}: {first['msg']}"
        raise ServiceError(message, hint=_OTHER) from error


def _registers(address: Address, model: str) -> str:
    """What to type for a model that a service lacks; other projects' names may be those of hubs, as `org/model`."""
    kind = kind_of(address)
    if model.startswith("lab/") and kind.has("POST", "models"):
        return f"%model {model} registers it"
    return "%models lists those that there are" if kind.lists_models else _UNLISTED


async def score_histories(
    http: HttpClient, address: Address, model: str, histories: Sequence[History], *, retry: bool = True
) -> ScoredHistories:
    """POST /v1/preview/logprobs; ServiceError where there is no such endpoint, and as `HttpClient.request`."""
    url = f"{address.base_url}/v1/preview/logprobs"
    body = LogprobsRequest(model=model, histories=list(histories)).to_json()
    lacks = f"{address.base_url} gives no logprobs for conversations from elsewhere"
    hint = "the embedded service does: start a kernel without ROLLOUTLAB_URL"
    if not kind_of(address).has("POST", "logprobs"):
        raise ServiceError(lacks, hint="%connect embedded")
    try:
        token, headers = address.token, address.headers
        scored = await http.request(
            "POST", url, token=token, headers=headers, content=body, timeout=TIMEOUT, retry=retry
        )
    except NotOfferedError as error:
        raise ServiceError(lacks, hint=hint) from error
    except NotFoundError as error:
        raise NotFoundError(error.message, hint=_registers(address, model)) from error
    return ScoredHistories.model_validate(scored)
