"""What answers at an address."""

from dataclasses import dataclass
from typing import Any

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import NotFoundError, NotOfferedError, RefusedError, ServiceError
from rolloutlab.settings import Address

_PATIENCE = 10.0


@dataclass(frozen=True)
class Offer:
    """What a service offers: the models that can be sampled by name, or None where it lists none; whether it trains."""

    models: tuple[str, ...] | None
    trains: bool


async def ask(http: HttpClient, address: Address) -> Offer:
    """What answers at an address: GET {inference_base_url}/models, and whether {base_url} takes training jobs.

    A service that lists no models is asked for a chat completion instead.

    Raises:
        UnreachableError: nothing answers. SignInError: it wants a key, or another one.
        ServiceError: what answers is no such service.
    """
    url = f"{address.inference_base_url}/models"
    try:
        body = await _once(http, address, "GET", url)
    except (NotFoundError, RefusedError) as error:
        if await _chats(http, address):
            return Offer(None, await _trains(http, address))
        raise _no_such_service(url, error.message) from error
    listed = body.get("data") if isinstance(body, dict) else None
    if not isinstance(listed, list):
        raise _no_such_service(url, "it lists no models")
    models = tuple(str(card["id"]) for card in listed if isinstance(card, dict) and "id" in card)
    return Offer(models, await _trains(http, address))


async def _once(http: HttpClient, address: Address, method: str, url: str, body: Any = None) -> Any:
    return await http.request(
        method, url, token=address.token, headers=address.headers, json=body, patience=_PATIENCE, retry=False
    )


async def _chats(http: HttpClient, address: Address) -> bool:
    """Whether chats are answered there; that the model is not known, or the request otherwise wrong, is an answer."""
    asked = {"model": "none", "messages": [{"role": "user", "content": "?"}], "max_tokens": 1}
    try:
        await _once(http, address, "POST", f"{address.inference_base_url}/chat/completions", asked)
    except NotOfferedError:
        return False
    except NotFoundError:
        return True
    except RefusedError as error:
        return error.status >= 400
    return True


async def _trains(http: HttpClient, address: Address) -> bool:
    """Whether jobs can be created there: a service that does not list them says 405.

    One that says 404 to that is sent a job without anything, which it can only refuse.
    """
    url = f"{address.base_url}/v1/preview/training-jobs"
    try:
        await _once(http, address, "GET", url)
    except NotOfferedError as error:
        return error.status == 405 or await _refuses_an_empty_job(http, address, url)
    except NotFoundError:
        return await _refuses_an_empty_job(http, address, url)
    except RefusedError:
        return True
    return True


async def _refuses_an_empty_job(http: HttpClient, address: Address, url: str) -> bool:
    try:
        await _once(http, address, "POST", url, {})
    except RefusedError as error:
        return error.status in {400, 422}
    except (NotFoundError, ServiceError):
        return False
    return False


def _no_such_service(url: str, said: str) -> ServiceError:
    return ServiceError(
        f"what answers at {url.removesuffix('/v1/models')} is no such service: {said} (GET {url})",
        hint="%connect URL --inference URL, where chat completions have an address of their own",
    )
