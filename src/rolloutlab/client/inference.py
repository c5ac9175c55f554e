"""The inference half of a service."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from rolloutlab.client.stream import StreamedCompletion
from rolloutlab.errors import NotFoundError, NotOfferedError, ServiceError
from rolloutlab.http import Http
from rolloutlab.settings import Address
from rolloutlab.wire.chat import ChatCompletion, ChatRequest, StreamOptions
from rolloutlab.wire.training import ModelCard, ModelCardList

_LONGEST_ANSWER = 600.0
SELECT = "%model UUID, the id of a model that it has"


def not_offered(error: NotOfferedError, words: str, hint: str | None = None) -> NotOfferedError:
    """The same, with what is missing in words."""
    return NotOfferedError(words, hint=hint, status=error.status)


async def models(http: Http, address: Address, *, patience: float = 60.0, retry: bool | None = None) -> list[ModelCard]:
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


async def complete(http: Http, address: Address, request: ChatRequest) -> ChatCompletion:
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


async def stream(http: Http, address: Address, request: ChatRequest, said: Callable[[str], None]) -> ChatCompletion:
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
