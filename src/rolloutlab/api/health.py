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

    Attributes:
        models: The names that it lists; None without a list.
        trains: Whether it trains models; None if that is not known.
        own: Whether it is rolloutlab's own.
    """

    models: tuple[str, ...] | None
    trains: bool | None
    own: bool = False


async def ask(http: HttpClient, address: Address) -> Offer:
    """Ask a service what it offers: at {inference_base_url} models, else chats; at {base_url} training jobs.

    Raises:
        UnreachableError: there is no connection.
        SignInError: it requires a key, or another one.
        ServiceError: it is no service for chat completions.
    """
    url = f"{address.inference_base_url}/models"
    if not dialect_of(address).lists_models:
        if await _chats(http, address):
            return Offer(None, dialect_of(address).trains)
        raise _no_such_service(url.replace("/models", "/chat/completions"), "Not Found")
    listed = await _try_once(http, address, "GET", url)
    if (cards := model_cards(listed.body)) is not None:
        return Offer(tuple(card.id for card in cards), await _trains(http, address), _is_own(cards))
    if isinstance(listed.error, SignInError) and listed.error.status == 401:
        raise listed.error
    if await _chats(http, address):
        return Offer(None, await _trains(http, address))
    if isinstance(listed.error, ServiceError) and not isinstance(listed.error, RefusedError):
        raise listed.error
    raise _no_such_service(url, listed.words or "it lists no models")


_OLDER = "this service is older than the option"


async def engine_of(http: HttpClient, address: Address, *, own: bool = False) -> EngineStatus | None:
    """Find the engine of a service, which rolloutlab's own reports and a vendor's dialect has; None for any other.

    own: whether the service is known to be rolloutlab's. Otherwise its list of models is read first, to find out.

    Raises:
        RolloutlabError: the service does not answer.
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
class _Reply:
    """What a service answered to a request: a body, or an error."""

    body: Any = None
    error: RolloutlabError | None = None

    @property
    def words(self) -> str:
        """The message of an error, or one in the body."""
        return self.error.message if self.error else message_of(self.body)

    def equals(self, other: "_Reply", path: str, other_path: str) -> bool:
        """Whether another path got the same reply. The paths themselves, which an error may name, do not count."""
        here, there = self.error, other.error
        if here is None or there is None:
            return here is there and self.body == other.body
        words = self.words.replace(path, ""), other.words.replace(other_path, "")
        return (
            type(here) is type(there) and vars(here).get("status") == vars(there).get("status") and words[0] == words[1]
        )


async def _try_once(http: HttpClient, address: Address, method: str, url: str, body: Any = None) -> _Reply:
    """Send a request once, and return its answer or its error. Only UnreachableError is raised."""
    try:
        return _Reply(await _once(http, address, method, url, body))
    except UnreachableError:
        raise
    except (ServiceError, NotFoundError) as error:
        return _Reply(error=error)


async def _replies_at_any_path(
    http: HttpClient, address: Address, method: str, url: str, reply: _Reply, body: Any = None
) -> bool:
    """Whether a service replies the same at any path, as gateways do: a page, a redirect, 400, 403, 404 or 500."""
    other = f"{url.rpartition('/')[0]}/no-such-endpoint"
    return reply.equals(await _try_once(http, address, method, other, body), urlsplit(url).path, urlsplit(other).path)


async def _chats(http: HttpClient, address: Address) -> bool:
    """Whether a service has chat completions. An error about the model or the request means that it does.

    Raises:
        SignInError: the service requires a key.
    """
    url = f"{address.inference_base_url}/chat/completions"
    body = {"model": "none", "messages": [{"role": "user", "content": "?"}], "max_tokens": 1}
    reply = await _try_once(http, address, "POST", url, body)
    if isinstance(reply.body, dict) and "choices" in reply.body:
        return True
    if isinstance(reply.error, NotOfferedError):
        return False
    if isinstance(reply.error, NotFoundError) and names_a_thing(reply.words):
        return True
    if isinstance(reply.error, SignInError) and (reply.error.status == 401 or not names_a_thing(reply.words)):
        raise reply.error
    return not await _replies_at_any_path(http, address, "POST", url, reply, body)


async def _trains(http: HttpClient, address: Address) -> bool | None:
    """Whether a service accepts training jobs; None if that is not known.

    GET is tried first. An empty job, which a service should refuse, is then sent in two cases: after a 404, and after
    a 405 that the service gives at any path. A 405 of this path alone means that jobs can be created, but not listed.
    """
    if (known := dialect_of(address).trains) is not None:
        return known
    url = f"{address.base_url}/v1/preview/training-jobs"
    reply = await _try_once(http, address, "GET", url)
    if isinstance(reply.error, NotOfferedError) and reply.error.status == 405:
        if not await _replies_at_any_path(http, address, "GET", url, reply):
            return True
    elif not isinstance(reply.error, NotFoundError):
        if await _replies_at_any_path(http, address, "GET", url, reply):
            return False
        if isinstance(reply.error, SignInError):
            raise reply.error
        if reply.error is None:
            return not (isinstance(reply.body, dict) and "error" in reply.body)  # LM Studio answers 200 to any path
        return True if isinstance(reply.error, RefusedError) and reply.error.status >= 400 else None
    created = (await _try_once(http, address, "POST", url, {})).error
    if isinstance(created, NotFoundError):
        return False
    # None also if the service accepts the empty job
    return created.status in {400, 422} if isinstance(created, RefusedError) else None


def _no_such_service(url: str, reason: str) -> ServiceError:
    hint = "%connect URL --inference URL, where chat completions have an address of their own"
    return ServiceError(f"{url.removesuffix('/v1/models')} is not such a service: {reason} (GET {url})", hint=hint)
