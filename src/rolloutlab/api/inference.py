"""Inference API of a service: models, chat completions, and logprobs of existing conversations."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from rolloutlab.api.answers import arguments_of, failure_of, parse_answer, reasoning_and_text, text_of, tidy_completion
from rolloutlab.api.dialect import dialect_of
from rolloutlab.api.http.client import HttpClient, Tries
from rolloutlab.api.http.errors import message_of, status_error
from rolloutlab.api.model_list import model_cards
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest, StreamOptions
from rolloutlab.api.wire.reasoning import FIELDS
from rolloutlab.api.wire.training import ModelCard
from rolloutlab.api.wire.trajectories import History, LogprobsRequest, ScoredHistories
from rolloutlab.errors import NotFoundError, NotOfferedError, RefusedError, RolloutlabError, ServiceError
from rolloutlab.sanitize import join_surrogates
from rolloutlab.settings import Address


class StreamedCompletion:
    """Assembles the chunks of one streamed completion. It is lenient, as services differ in what they repeat.

    on_chunk: gets each chunk.
    """

    def __init__(self, on_chunk: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
        self._on_chunk = on_chunk
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._whole: dict[str, Any] | None = None
        self._halves: dict[tuple[int, str], str] = {}
        """The first half of a character, by choice and field."""
        self.text = ""

    @property
    def has_begun(self) -> bool:
        """Whether there is anything of an answer yet."""
        return bool(self._choices)

    def add(self, data: str) -> bool:
        """Add the `data:` of one event, and return whether it had any text.

        Raises:
            ServiceError: the event is an error, or not a chunk.
        """
        before = len(self.text)
        if not self._take(data):
            raise ServiceError("the response has an invalid chunk", hint=_OTHER)
        return len(self.text) > before

    def _take(self, data: str) -> bool:
        """Add the `data:` of one event, and return whether it is a chunk."""
        try:
            chunk = self._hold_half_characters(_unwrap(json.loads(data)))
            if chunk.get("object") == "chat.completion":
                self._whole = chunk
                return True
            if chunk.get("error") or (not chunk.get("choices") and message_of(chunk)):
                words = message_of(chunk) or "no reason given"
                raise ServiceError(f"the response broke off: {words}", status=_status_in(chunk))
            self._head |= {name: value for name, value in chunk.items() if name != "choices" and value is not None}
            for choice in chunk.get("choices") or []:
                self._fold(self._choices.setdefault(choice.get("index", 0), {"tool_calls": {}, "logprobs": {}}), choice)
        except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
            return False
        self._on_chunk(chunk)
        return True

    def _hold_half_characters(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Hold back half a surrogate pair at the end of a chunk's text; it is put before the text of the next chunk."""
        for choice in chunk.get("choices") or []:
            delta = choice.get("delta") or {}
            for name, value in delta.items():
                if not isinstance(value, str):
                    continue
                place = choice.get("index", 0), name
                text = self._halves.pop(place, "") + value
                if "\ud800" <= text[-1:] <= "\udbff":
                    self._halves[place], text = text[-1], text[:-1]
                delta[name] = text if text.isascii() else join_surrogates(text)
        return chunk

    def whole(self) -> dict[str, Any]:
        """Return the completion as a response without streaming, or raise ServiceError if it broke off."""
        if self._whole:
            return dict(join_surrogates(self._whole))
        if not self._choices or any("finish_reason" not in choice for choice in self._choices.values()):
            raise ServiceError("the response broke off before its end")
        for (index, name), half in self._halves.items():  # nothing came after it
            self._choices[index][name] = self._choices[index].get(name, "") + half
        choices = [_choice(index, parts) for index, parts in sorted(self._choices.items())]
        return dict(join_surrogates({**self._head, "choices": choices}))

    def _fold(self, parts: dict[str, Any], choice: Mapping[str, Any]) -> None:
        delta = dict(choice.get("delta") or {})
        reasoning, delta["content"] = reasoning_and_text(delta.get("content"))
        if reasoning and not any(delta.get(name) for name in FIELDS):
            delta["reasoning_content"] = reasoning
        for name in ("reasoning_content", "reasoning", "content", "refusal"):
            if text := text_of(delta.get(name)):
                parts[name] = parts.get(name, "") + text
                if name != "reasoning" or not delta.get("reasoning_content"):  # some send it under both names
                    self.text += text
        for call in delta.get("tool_calls") or []:
            _fold_call(parts["tool_calls"].setdefault(_place(parts["tool_calls"], call), {}), call)
        for name, tokens in (choice.get("logprobs") or {}).items():
            parts["logprobs"].setdefault(name, []).extend(tokens or [])
        others = {"index", "delta", "logprobs"}
        parts |= {name: value for name, value in choice.items() if name not in others and value is not None}


def _place(calls: Mapping[int, Any], call: Mapping[str, Any]) -> int:
    """Find the place of a call in its message. Gemini sends no `index`: there each call with a name is a new one."""
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
"""Seconds to wait for the next byte of a response; a service may sample for minutes before it sends the first."""
SELECT = "%model UUID, the id of a model that it has"
_ANY = "%model NAME_OR_UUID, of a model that it has"
_UNLISTED = "%model PROJECT/NAME --base BASE"
_OTHER = "%model selects another model, %connect another service"


_FOR_NOW = {408, 409, 429}
"""Statuses of refusals that say nothing about an endpoint."""


async def models(
    http: HttpClient, address: Address, *, timeout: float = 60.0, retry: bool | None = None
) -> list[ModelCard]:
    """GET {inference_base_url}/models. Raises as `HttpClient.request`, and NotOfferedError if there is no such list."""
    url = f"{address.inference_base_url}/models"
    headers, message = address.headers, f"{address.inference_base_url} does not list its models"
    if not dialect_of(address).lists_models:
        raise NotOfferedError(message, hint=_UNLISTED)
    try:
        body = await http.request("GET", url, token=address.token, headers=headers, timeout=timeout, retry=retry)
    except NotFoundError as error:
        status = error.status if isinstance(error, NotOfferedError) else 404
        raise NotOfferedError(message, hint=_ANY, status=status) from error
    except RefusedError as error:  # gateways answer so at paths that they do not know
        if error.status in _FOR_NOW:
            raise
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
    """POST {inference_base_url}/chat/completions. The request has no side effect, so it is retried after a broken one.

    Choices that the service reports as failed are left out, so there may be fewer than were requested.

    tries: called before each try, and after each failed one.

    Raises:
        ServiceError: the response is not a chat completion, or no choice is whole.
        RolloutlabError: the errors of `HttpClient.request`.
    """

    async def attempt() -> ChatCompletion:
        return _check_completion(
            address, await http.request("POST", retry=True, tries=tries, **_options(address, request))
        )

    return await _explain_errors(address, request, _retry_after_errors(http, attempt, tries))


async def stream(
    http: HttpClient,
    address: Address,
    request: ChatRequest,
    on_text: Callable[[str], None],
    tries: Tries | None = None,
    on_chunk: Callable[[dict[str, Any]], None] = lambda _: None,
) -> ChatCompletion:
    """Complete a request as `complete` does, and show the completion while it is streamed.

    Args:
        http: Sends the request.
        address: The service.
        request: The request.
        on_text: Called with all text so far, when there is more of it.
        tries: Called before each try, and after each failed one.
        on_chunk: Called with each chunk.
    """
    streaming = request.model_copy(update={"stream": True, "stream_options": StreamOptions(include_usage=True)})

    async def attempt() -> ChatCompletion:
        streamed = StreamedCompletion(on_chunk)
        async for data in http.events(tries=tries, **_options(address, streaming)):
            try:
                added = streamed.add(data)
            except ServiceError as error:
                raise error if streamed.has_begun else _SentWith200(error) from None
            if added:
                on_text(streamed.text)
        return _check_completion(address, streamed.whole(), every=True)  # parts of a failed one were passed on before

    return await _explain_errors(address, request, _retry_after_errors(http, attempt, tries))


class _SentWith200(Exception):  # noqa: N818 - it carries an error
    """An error that came with status 200, before anything of an answer."""

    def __init__(self, error: RolloutlabError) -> None:
        super().__init__()
        self.error = error


async def _retry_after_errors(
    http: HttpClient, attempt: Callable[[], Awaitable[ChatCompletion]], tries: Tries | None
) -> ChatCompletion:
    """Attempt a completion. Retry if the answer has status 200 but is an error with a code such as 429."""
    retries = http.retries()
    while True:
        try:
            return await attempt()
        except _SentWith200 as sent:
            failure = sent.error
        status = failure.status if isinstance(failure, ServiceError) else 0
        if tries:
            tries.failed(reached=not 400 <= status < 500 or status == 408)
        pause = retries.after_answer(status, {})
        if pause is None:
            raise failure
        await asyncio.sleep(pause)


def _check_completion(address: Address, body: Any, *, every: bool = False) -> ChatCompletion:
    """Check a completion, and leave out the choices that failed. every: none may have failed."""
    body = _unwrap(body)
    if isinstance(body, Mapping) and not body.get("choices") and (words := message_of(body)):
        raise _SentWith200(_error_in(address, body, words))
    tidy = tidy_completion(body)
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


def _error_in(address: Address, body: Mapping[str, Any], words: str) -> RolloutlabError:
    """Make the error of a body with status 200. Gateways send such, some with the status of the service behind them."""
    if code := _status_in(body):
        return status_error(address.inference_base_url, code, words, json.dumps(body).encode())
    return ServiceError(f"{address.inference_base_url} answered with an error: {words}", hint=_OTHER)


def _status_in(body: Mapping[str, Any]) -> int:
    """Find the HTTP status that an error in a body names; 0 for none."""
    error = body.get("error")
    code = error.get("code") if isinstance(error, Mapping) else body.get("code")
    number = int(code) if isinstance(code, int | str) and str(code).isdecimal() else 0
    return number if 400 <= number < 600 else 0


def _unwrap(body: Any) -> Any:
    """Return the object in a list of one, as Google sends its errors; anything else unchanged."""
    return body[0] if isinstance(body, list) and len(body) == 1 and isinstance(body[0], Mapping) else body


def _options(address: Address, request: ChatRequest) -> dict[str, Any]:
    name = dialect_of(address).chat_name(address, request.model)
    named = request if name == request.model else request.model_copy(update={"model": name})
    options = {"token": address.token, "headers": address.headers, "content": named.to_json(), "timeout": TIMEOUT}
    return {"url": f"{address.inference_base_url}/chat/completions", **options}


async def _explain_errors(
    address: Address, request: ChatRequest, work: Coroutine[Any, Any, ChatCompletion]
) -> ChatCompletion:
    """Await a completion, and explain its error: a 404 by what to type, an invalid form by a ServiceError.

    Some services repeat the key that they were sent, so the error must not show it. Neither may the chain of the error
    contain the body of the response.
    """
    failure: RolloutlabError
    try:
        return dialect_of(address).completion(request.model, await work)
    except NotFoundError as error:
        failure = NotFoundError(error.message, hint=_hint_for(address, request.model))
    except ServiceError as error:
        failure = error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        failure = ServiceError(f"the response is not a chat completion: {where}: {first['msg']}", hint=_OTHER)
    if token := await _token(address):
        failure.message = failure.message.replace(token, "...")
        failure.args = (failure.message,)
        if isinstance(failure, ServiceError) and failure.reported:
            failure.reported = {name: str(text).replace(token, "...") for name, text in failure.reported.items()}
    raise failure  # outside of the handlers, else the first error would be its context


async def _token(address: Address) -> str | None:
    """Return the token that requests to a service carry, if any."""
    if isinstance(address.token, str | None):
        return address.token
    source = address.token.of(f"{address.inference_base_url}/chat/completions")
    with suppress(RolloutlabError):  # it has expired meanwhile, and cannot be renewed
        return await source.token() if source else None
    return None


def _hint_for(address: Address, model: str) -> str:
    """Say what to type for a model that the service lacks. A name such as `org/model` may be one of a model hub."""
    kind = dialect_of(address)
    if model.startswith("lab/") and kind.has("POST", "models"):
        return f"%model {model} registers it"
    return "%models lists those that there are" if kind.lists_models else _UNLISTED


async def score_histories(
    http: HttpClient, address: Address, model: str, histories: Sequence[History], *, retry: bool = True
) -> ScoredHistories:
    """POST /v1/preview/logprobs: score histories under a model.

    Args:
        http: Sends the request.
        address: The service.
        model: The name of a model, as in chat requests.
        histories: The conversations.
        retry: Whether to try again if that can help.

    Raises:
        ServiceError: there is no such endpoint, or it answers with another number of conversations.
        RolloutlabError: the errors of `HttpClient.request`.
    """
    url = f"{address.base_url}/v1/preview/logprobs"
    body = LogprobsRequest(model=model, histories=list(histories)).to_json()
    lacks = f"{address.base_url} gives no logprobs for conversations from elsewhere"
    hint = "the embedded service does: start a kernel without ROLLOUTLAB_URL"
    if not dialect_of(address).has("POST", "logprobs"):
        raise ServiceError(lacks, hint="%connect embedded")
    try:
        token, headers = address.token, address.headers
        scored = await http.request(
            "POST", url, token=token, headers=headers, content=body, timeout=TIMEOUT, retry=retry
        )
    except NotOfferedError as error:
        raise ServiceError(lacks, hint=hint) from error
    except NotFoundError as error:
        raise NotFoundError(error.message, hint=_hint_for(address, model)) from error
    answer = parse_answer(ScoredHistories, scored)
    if len(answer.data) != len(histories):
        what = f"the logprobs of {len(answer.data):,} of {len(histories):,} conversations"
        raise ServiceError(f"{address.base_url} sent {what}", hint="%connect embedded")
    return answer
