"""The inference half of a service."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest, StreamOptions
from rolloutlab.api.wire.training import ModelCard, ModelCardList
from rolloutlab.errors import NotFoundError, NotOfferedError, ServiceError
from rolloutlab.settings import Address


class StreamedCompletion:
    """Folds the chunks of one streamed completion, read leniently: services differ in what they repeat."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._whole: dict[str, Any] | None = None
        self.text = ""

    def add(self, data: str) -> bool:
        """Take the `data:` of one event, or a completion that came in one piece; whether there is more text now.

        Raises:
            ServiceError: it is no chunk, or the service reports an error in the middle.
        """
        before = len(self.text)
        try:
            chunk = json.loads(data)
            if chunk.get("object") == "chat.completion":
                self._whole = chunk
                return False
            if chunk.get("error"):
                raise ServiceError(f"the answer broke off: {_problem_told(chunk['error'])}")
            self._head |= {name: value for name, value in chunk.items() if name != "choices" and value is not None}
            for choice in chunk.get("choices") or []:
                self._fold(self._choices.setdefault(choice.get("index", 0), {"tool_calls": {}, "logprobs": {}}), choice)
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            raise ServiceError("the answer has a chunk that cannot be read") from error
        return len(self.text) > before

    def whole(self) -> dict[str, Any]:
        """The completion as it would have come in one piece; ServiceError when its end is missing."""
        if self._whole:
            return self._whole
        if not self._choices or any("finish_reason" not in choice for choice in self._choices.values()):
            raise ServiceError("the answer broke off before its end")
        choices = [_choice(index, parts) for index, parts in sorted(self._choices.items())]
        return {"created": 0, **self._head, "object": "chat.completion", "choices": choices}

    def _fold(self, parts: dict[str, Any], choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or {}
        for name in ("content", "refusal"):
            if delta.get(name):
                parts[name] = parts.get(name, "") + delta[name]
                self.text += delta[name]
        for call in delta.get("tool_calls") or []:
            _fold_call(parts["tool_calls"].setdefault(call.get("index", 0), {}), call)
        for name, tokens in (choice.get("logprobs") or {}).items():
            parts["logprobs"].setdefault(name, []).extend(tokens or [])
        others = {"index", "delta", "logprobs"}
        parts |= {name: value for name, value in choice.items() if name not in others and value is not None}


def _problem_told(error: Any) -> str:
    """What an error in the middle says."""
    words = error.get("message") if isinstance(error, Mapping) else error
    return str(words or "it does not say why")


def _fold_call(parts: dict[str, Any], call: Mapping[str, Any]) -> None:
    """A call comes whole, or its arguments come in pieces."""
    function = call.get("function") or {}
    told = parts.setdefault("function", {"arguments": ""})
    told["arguments"] += function.get("arguments") or ""
    told |= {"name": function["name"]} if function.get("name") else {}
    parts |= {name: call[name] for name in ("id", "type") if call.get(name)}


def _choice(index: int, parts: dict[str, Any]) -> dict[str, Any]:
    calls = [{"type": "function", **call} for _, call in sorted(parts.pop("tool_calls").items())]
    message = {"role": "assistant", "content": parts.pop("content", None), "refusal": parts.pop("refusal", None)}
    said = {name: value for name, value in message.items() if value is not None}
    return {"index": index, **parts, "message": {**said, **({"tool_calls": calls} if calls else {})}}


_LONGEST_ANSWER = 600.0
SELECT = "%model UUID, the id of a model that it has"


def not_offered(error: NotOfferedError, words: str, hint: str | None = None) -> NotOfferedError:
    """The same, with what is missing in words."""
    return NotOfferedError(words, hint=hint, status=error.status)


async def models(
    http: HttpClient, address: Address, *, patience: float = 60.0, retry: bool | None = None
) -> list[ModelCard]:
    """GET {inference_base_url}/models: what can be sampled. patience: seconds without any byte of an answer.

    Raises:
        ServiceError: the answer is no list of models; NotOfferedError: the service gives none; and all that
        `Http.request` raises.
    """
    url = f"{address.inference_base_url}/models"
    headers = address.headers
    try:
        body = await http.request("GET", url, token=address.token, headers=headers, patience=patience, retry=retry)
    except NotOfferedError as error:
        raise not_offered(error, f"{address.inference_base_url} does not list its models", SELECT) from error
    try:
        return ModelCardList.model_validate(body).data
    except ValidationError as error:
        raise ServiceError(f"the answer is no list of models: {error.errors()[0]['msg']}") from error


async def complete(http: HttpClient, address: Address, request: ChatRequest) -> ChatCompletion:
    """POST {inference_base_url}/chat/completions. Tried again when the connection breaks: a completion has no effect.

    Raises:
        ServiceError: the answer is not a chat completion; and all that `Http.request` raises.
    """
    with _told(request):
        body = await http.request(
            "POST",
            _url(address),
            token=address.token,
            headers=address.headers,
            content=request.to_json(),
            patience=_LONGEST_ANSWER,
            retry=True,
        )
        return _checked(body)


async def stream(
    http: HttpClient, address: Address, request: ChatRequest, said: Callable[[str], None]
) -> ChatCompletion:
    """The same as `complete`; `said` gets the text so far whenever there is more of it."""
    asked = request.model_copy(update={"stream": True, "stream_options": StreamOptions(include_usage=True)})
    streamed = StreamedCompletion()
    with _told(request):
        async for data in http.events(
            _url(address),
            token=address.token,
            headers=address.headers,
            content=asked.to_json(),
            patience=_LONGEST_ANSWER,
        ):
            if streamed.add(data):
                said(streamed.text)
        return _checked(streamed.whole())


def _checked(body: Any) -> ChatCompletion:
    completion = ChatCompletion.model_validate(body)
    if not completion.choices:
        raise ServiceError("the answer has no choices")
    return completion


def _url(address: Address) -> str:
    return f"{address.inference_base_url}/chat/completions"


@contextmanager
def _told(request: ChatRequest) -> Iterator[None]:
    """Says what the model's absence, or an answer of another shape, means here."""
    try:
        yield
    except NotFoundError as error:
        raise NotFoundError(error.message, hint=f"%model {request.model} registers it") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ServiceError(f"the answer is not a chat completion: {where}: {first['msg']}") from error
