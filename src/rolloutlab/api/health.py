"""Capabilities of a service: its models, and whether it trains."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from rolloutlab.api.dialect import dialect_of
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.http.errors import message_of, names_a_thing
from rolloutlab.api.model_list import model_cards
from rolloutlab.api.wire.engine import EngineStatus
from rolloutlab.api.wire.levels import OF_STEPS
from rolloutlab.api.wire.training import ModelCard
from rolloutlab.errors import (
    NotFoundError,
    NotOfferedError,
    RefusedError,
    RolloutlabError,
    ServiceError,
    SignInError,
    UnreachableError,
)
from rolloutlab.settings import Address

_TIMEOUT = 10.0


@dataclass(frozen=True)
class Offer:
    """What a service offers.

    models: the names that it lists; None without a list. trains: whether it trains; None if that is not known. own:
    whether it is rolloutlab's own.
    """

    models: tuple[str, ...] | None
    trains: bool | None
    own: bool = False


async def ask(http: HttpClient, address: Address) -> Offer:
    """Ask a service what it offers: GET {inference_base_url}/models, else a chat; then training jobs at {base_url}.

    Raises:
        UnreachableError: no connection. SignInError: it requires a key, or another one. ServiceError: it is no service
            for chat completions.
    """
    url = f"{address.inference_base_url}/models"
    if not dialect_of(address).lists_models:
        if await _chats(http, address):
            return Offer(None, dialect_of(address).trains)
        raise _not_such(url.replace("/models", "/chat/completions"), "Not Found")
    listed = await _asked(http, address, "GET", url)
    if (cards := model_cards(listed.body)) is not None:
        return Offer(tuple(card.id for card in cards), await _trains(http, address), _is_own(cards))
    if isinstance(listed.error, SignInError) and listed.error.status == 401:
        raise listed.error
    if await _chats(http, address):
        return Offer(None, await _trains(http, address))
    if isinstance(listed.error, ServiceError) and not isinstance(listed.error, RefusedError):
        raise listed.error
    raise _not_such(url, listed.words or "it lists no models")


_OLDER = "this service is older than the option"


async def engine_of(http: HttpClient, address: Address, *, own: bool = False) -> EngineStatus | None:
    """The engine of a service: rolloutlab's own reports it, the dialect of a vendor has it; None if neither is so.

    own: whether it is known to be rolloutlab's. Otherwise its list of models is read first, to see whose it is.

    Raises:
        RolloutlabError: it does not answer.
    """
    if (known := dialect_of(address)).endpoints is not None:
        return known.engine
    try:
        if not own:
            body = await _once(http, address, "GET", f"{address.inference_base_url}/models")
            if not _is_own(model_cards(body) or ()):
                return None
        engine = EngineStatus.model_validate(await _once(http, address, "GET", f"{address.base_url}/v1/preview/engine"))
        return engine.without(OF_STEPS, _OLDER) if engine.groups_per_step is None else engine
    except (NotFoundError, RefusedError, ValidationError):
        return None


def _is_own(cards: Iterable[ModelCard]) -> bool:
    """Whether a list of models is of rolloutlab's own service, which lists at least its base."""
    return any(card.owned_by == "rolloutlab" for card in cards)


async def _once(http: HttpClient, address: Address, method: str, url: str, body: Any = None) -> Any:
    return await http.request(
        method, url, token=address.token, headers=address.headers, json=body, timeout=_TIMEOUT, retry=False
    )


@dataclass(frozen=True)
class _Asked:
    """What a service answered to a request: a body, or an error."""

    body: Any = None
    error: RolloutlabError | None = None

    @property
    def words(self) -> str:
        """Its reason, where it did not do what it was asked for."""
        return self.error.message if self.error else message_of(self.body)

    def is_as(self, other: "_Asked", path: str, other_path: str) -> bool:
        """Whether it answered the same at another path; an error may name the path."""
        here, there = self.error, other.error
        if here is None or there is None:
            return here is there and self.body == other.body
        words = self.words.replace(path, ""), other.words.replace(other_path, "")
        return (
            type(here) is type(there) and vars(here).get("status") == vars(there).get("status") and words[0] == words[1]
        )


async def _asked(http: HttpClient, address: Address, method: str, url: str, body: Any = None) -> _Asked:
    """The answer to a request; raises UnreachableError alone."""
    try:
        return _Asked(await _once(http, address, method, url, body))
    except UnreachableError:
        raise
    except (ServiceError, NotFoundError) as error:
        return _Asked(error=error)


async def _any_path(http: HttpClient, address: Address, method: str, url: str, asked: _Asked, body: Any = None) -> bool:
    """Whether a service answers the same at any path. Gateways do: a page, a redirect, 400, 403, 404 or 500."""
    other = f"{url.rpartition('/')[0]}/no-such-endpoint"
    return asked.is_as(await _asked(http, address, method, other, body), urlsplit(url).path, urlsplit(other).path)


async def _chats(http: HttpClient, address: Address) -> bool:
    """Whether it has chat completions; an error about the model or the request means that it does.

    Raises:
        SignInError: it requires a key.
    """
    url = f"{address.inference_base_url}/chat/completions"
    body = {"model": "none", "messages": [{"role": "user", "content": "?"}], "max_tokens": 1}
    asked = await _asked(http, address, "POST", url, body)
    if isinstance(asked.body, dict) and "choices" in asked.body:
        return True
    if isinstance(asked.error, NotOfferedError):
        return False
    if isinstance(asked.error, NotFoundError) and names_a_thing(asked.words):
        return True
    if isinstance(asked.error, SignInError) and (asked.error.status == 401 or not names_a_thing(asked.words)):
        raise asked.error
    return not await _any_path(http, address, "POST", url, asked, body)


async def _trains(http: HttpClient, address: Address) -> bool | None:
    """Whether a service accepts training jobs; None if that is not known.

    GET is tried first. An empty job, which a service should refuse, is then sent in two cases: after a 404, and after
    a 405 that the service gives at any path. A 405 of this path alone means that jobs can be created, but not listed.
    """
    if (known := dialect_of(address).trains) is not None:
        return known
    url = f"{address.base_url}/v1/preview/training-jobs"
    asked = await _asked(http, address, "GET", url)
    if isinstance(asked.error, NotOfferedError) and asked.error.status == 405:
        if not await _any_path(http, address, "GET", url, asked):
            return True
    elif not isinstance(asked.error, NotFoundError):
        if await _any_path(http, address, "GET", url, asked):
            return False
        if isinstance(asked.error, SignInError):
            raise asked.error
        if asked.error is None:
            return not (isinstance(asked.body, dict) and "error" in asked.body)  # LM Studio answers 200 to any path
        return True if isinstance(asked.error, RefusedError) and asked.error.status >= 400 else None
    created = (await _asked(http, address, "POST", url, {})).error
    if isinstance(created, NotFoundError):
        return False
    # None also if the service accepts the empty job
    return created.status in {400, 422} if isinstance(created, RefusedError) else None


def _not_such(url: str, reason: str) -> ServiceError:
    hint = "%connect URL --inference URL, where chat completions have an address of their own"
    return ServiceError(f"{url.removesuffix('/v1/models')} is not such a service: {reason} (GET {url})", hint=hint)
