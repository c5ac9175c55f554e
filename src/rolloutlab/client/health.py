"""What answers at an address."""

from dataclasses import dataclass

from rolloutlab.errors import NotFoundError, RefusedError, ServiceError
from rolloutlab.http import Http
from rolloutlab.settings import Address

_PATIENCE = 10.0


@dataclass(frozen=True)
class Offer:
    """What a service offers: the models that can be sampled by name, and whether it trains."""

    models: tuple[str, ...]
    trains: bool


async def ask(http: Http, address: Address) -> Offer:
    """GET {inference_base_url}/models, and whether {base_url} knows of training jobs; each is asked once.

    Raises:
        UnreachableError: nothing answers. SignInError: it wants a key, or another one.
        ServiceError: what answers is no such service.
    """
    url = f"{address.inference_base_url}/models"
    try:
        body = await http.request(
            "GET", url, token=address.token, headers=address.headers, patience=_PATIENCE, retry=False
        )
    except (NotFoundError, RefusedError) as error:
        raise _no_such_service(url, error.message) from error
    listed = body.get("data") if isinstance(body, dict) else None
    if not isinstance(listed, list):
        raise _no_such_service(url, "it lists no models")
    models = tuple(str(card["id"]) for card in listed if isinstance(card, dict) and "id" in card)
    return Offer(models, await _trains(http, address))


async def _trains(http: Http, address: Address) -> bool:
    """Jobs can be created there: a service that does not list them says 405, one that has none 404."""
    url = f"{address.base_url}/v1/preview/training-jobs"
    try:
        await http.request("GET", url, token=address.token, headers=address.headers, patience=_PATIENCE, retry=False)
    except NotFoundError:
        return False
    except RefusedError:
        return True
    return True


def _no_such_service(url: str, said: str) -> ServiceError:
    return ServiceError(
        f"what answers at {url.removesuffix('/v1/models')} is no such service: {said} (GET {url})",
        hint="%connect URL --inference URL, where chat completions have an address of their own",
    )
