"""The inference half of a service."""

from pydantic import ValidationError

from rolloutlab.errors import NotFoundError, ServiceError
from rolloutlab.http import Http
from rolloutlab.settings import Address
from rolloutlab.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.wire.training import ModelCard, ModelCardList

_LONGEST_ANSWER = 600.0


async def models(http: Http, address: Address) -> list[ModelCard]:
    """GET {inference_base_url}/models: what can be sampled.

    Raises:
        ServiceError: the answer is no list of models; and all that `Http.request` raises.
    """
    body = await http.request("GET", f"{address.inference_base_url}/models", token=address.token)
    try:
        return ModelCardList.model_validate(body).data
    except ValidationError as error:
        raise ServiceError(f"the answer is no list of models: {error.errors()[0]['msg']}") from error


async def complete(http: Http, address: Address, request: ChatRequest) -> ChatCompletion:
    """POST {inference_base_url}/chat/completions. Tried again when the connection breaks: a completion has no effect.

    Raises:
        ServiceError: the answer is not a chat completion; and all that `Http.request` raises.
    """
    url = f"{address.inference_base_url}/chat/completions"
    try:
        body = await http.request(
            "POST", url, token=address.token, content=request.to_json(), patience=_LONGEST_ANSWER, retry=True
        )
    except NotFoundError as error:
        raise NotFoundError(error.message, hint=f"%model {request.model} registers it") from error
    try:
        return ChatCompletion.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ServiceError(f"the answer is not a chat completion: {where}: {first['msg']}") from error
