"""Capabilities of a service: its models, and whether it trains."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.kinds import kind_of
from rolloutlab.api.model_list import model_cards
from rolloutlab.api.wire.engine import EngineStatus
from rolloutlab.api.wire.training import ModelCard
from rolloutlab.errors import NotFoundError, NotOfferedError, RefusedError, ServiceError
from rolloutlab.settings import Address

_TIMEOUT = 10.0


@dataclass(frozen=True)
class Offer:
    """What a service offers. models: names that it lists, None without a list. trains: None where it is not known.

    own: see `_is_own`.
    """

    models: tuple[str, ...] | None
    trains: bool | None
    own: bool = False


async def ask(http: HttpClient, address: Address) -> Offer:
    """GET {inference_base_url}/models, else a try of chat completions; and a try of training jobs at {base_url}.

    Raises:
        UnreachableError: no connection. SignInError: it requires a key, or another one. ServiceError: it is no service
            for chat completions.
    """
    url = f"{address.inference_base_url}/models"
    if not kind_of(address).lists_models:
        if await _chats(http, address):
            return Offer(None, kind_of(address).trains)
        raise _not_such(url.replace("/models", "/chat/completions"), "Not Found")
    try:
        body = await _once(http, address, "GET", url)
        reason = "it lists no models"
    except (NotFoundError, RefusedError) as error:
        body, reason = None, error.message
    if (cards := model_cards(body)) is None:
        if await _chats(http, address):
            return Offer(None, await _trains(http, address))
        raise _not_such(url, reason)
    return Offer(tuple(card.id for card in cards), await _trains(http, address), _is_own(cards))


async def engine_of(http: HttpClient, address: Address, *, own: bool = False) -> EngineStatus | None:
    """What computes below a service of rolloutlab; None below another, or an older one that has no such endpoint.

    own: it is known to be rolloutlab's; else its list of models shows it, and a service of others is asked no more.

    Raises:
        RolloutlabError: it does not answer.
    """
    if (known := kind_of(address)).endpoints is not None:
        return known.engine
    try:
        if not own:
            body = await _once(http, address, "GET", f"{address.inference_base_url}/models")
            if not _is_own(model_cards(body) or ()):
                return None
        return EngineStatus.model_validate(await _once(http, address, "GET", f"{address.base_url}/v1/preview/engine"))
    except (NotFoundError, RefusedError, ValidationError):
        return None


def _is_own(cards: Iterable[ModelCard]) -> bool:
    """Whether a list of models is of rolloutlab's own service, which lists at least its base."""
    return any(card.owned_by == "rolloutlab" for card in cards)


async def _once(http: HttpClient, address: Address, method: str, url: str, body: Any = None) -> Any:
    return await http.request(
        method, url, token=address.token, headers=address.headers, json=body, timeout=_TIMEOUT, retry=False
    )


async def _chats(http: HttpClient, address: Address) -> bool:
    """Whether it has chat completions; an error about the model or the request means that it does."""
    body = {"model": "none", "messages": [{"role": "user", "content": "?"}], "max_tokens": 1}
    try:
        answer = await _once(http, address, "POST", f"{address.inference_base_url}/chat/completions", body)
    except NotOfferedError:
        return False
    except NotFoundError:
        return True
    except RefusedError as error:
        return error.status >= 400
    return isinstance(answer, dict) and "choices" in answer


async def _trains(http: HttpClient, address: Address) -> bool | None:
    """Whether jobs can be created; tried by GET, then, after 404, by an empty job, which cannot be accepted."""
    if (known := kind_of(address).trains) is not None:
        return known
    url = f"{address.base_url}/v1/preview/training-jobs"
    try:
        body = await _once(http, address, "GET", url)
    except NotFoundError as error:
        if isinstance(error, NotOfferedError) and error.status == 405:  # jobs can be created, but not listed
            return True
    except RefusedError:
        return True
    else:
        return not (isinstance(body, dict) and "error" in body)  # LM Studio answers 200 to any path
    try:
        await _once(http, address, "POST", url, {})
    except RefusedError as error:
        return error.status in {400, 422}
    except NotFoundError:
        return False
    except ServiceError:
        return None
    return None  # it accepted a job without anything in it: not this specification


def _not_such(url: str, reason: str) -> ServiceError:
    hint = "%connect URL --inference URL, where chat completions have an address of their own"
    return ServiceError(f"{url.removesuffix('/v1/models')} is not such a service: {reason} (GET {url})", hint=hint)
