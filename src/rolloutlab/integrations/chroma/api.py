"""Client of a Chroma database (HTTP API v2) with rolloutlab's errors."""

import json
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter, ValidationError

from rolloutlab import errors
from rolloutlab.api.http.client import HttpClient

T = TypeVar("T")
TENANT, DATABASE = "default_tenant", "default_database"
"""Chroma's default tenant and database."""
CONNECT = "%connect --search URL"
_NAMES = 1000
_TIMEOUT = 120.0


class _Configured(BaseModel):
    space: str | None = None


class _Configuration(BaseModel):
    hnsw: _Configured | None = None
    spann: _Configured | None = None


class _Described(BaseModel):
    id: str
    name: str
    dimension: int | None = None
    configuration_json: _Configuration = _Configuration()


class _Named(BaseModel):
    name: str


_LISTED = TypeAdapter(list[_Named])


@dataclass(frozen=True)
class ServedCollection:
    """A collection of a server. space: cosine, l2 or ip. dimension: None while it has no vectors."""

    id: str
    name: str
    space: str
    dimension: int | None


@dataclass(frozen=True)
class Chroma:
    """A Chroma database.

    origin: such as `http://127.0.0.1:8000`. key: sent with every request, redacted in errors.
    """

    http: HttpClient
    origin: str
    tenant: str = TENANT
    database: str = DATABASE
    key: str | None = field(default=None, repr=False)

    def collection(self, name: str) -> ServedCollection:
        """Find a collection by name.

        Raises:
            NotFoundError: there is none. ServiceError: the response is not a collection. Others: as `ask`.
        """
        described = self.read(_Described, self.ask("GET", f"collections/{quote(name, safe='')}"))
        configuration = described.configuration_json
        configured = configuration.hnsw or configuration.spann or _Configured()
        return ServedCollection(described.id, described.name, configured.space or "l2", described.dimension)

    def names(self) -> list[str]:
        """List the names of the collections; empty if the server refuses to."""
        try:
            listed = self.read(_LISTED, self.ask("GET", f"collections?limit={_NAMES}"))
        except (errors.NotFoundError, errors.ServiceError):
            return []
        return [collection.name for collection in listed]

    def is_one(self) -> bool:
        """Whether the origin is a Chroma server.

        Raises:
            UnreachableError: no connection. SignInError: it needs a key, or another one.
        """
        try:
            body = self._request("GET", f"{self.origin}/api/v2/heartbeat", None, retry=True)
        except (errors.UnreachableError, errors.SignInError):
            raise
        except (errors.NotFoundError, errors.ServiceError):
            return False
        return isinstance(body, dict) and "nanosecond heartbeat" in body

    def post(self, collection: ServedCollection, call: str, body: Any, *, retry: bool = True) -> Any:
        """Request `get`, `query` or `search` of a collection. They only read, so they are retried."""
        return self.ask("POST", f"collections/{collection.id}/{call}", body, retry=retry)

    def ask(self, method: str, path: str, body: Any = None, *, retry: bool = True) -> Any:
        """Send a request below this database; return the JSON response.

        Raises:
            UnreachableError: no connection. SignInError: it needs a key, or another one. NotFoundError: 404.
            RefusedError: the request is invalid. ServiceError: it fails, or the response is not JSON.
        """
        tenant, database = quote(self.tenant, safe=""), quote(self.database, safe="")
        url = f"{self.origin}/api/v2/tenants/{tenant}/databases/{database}/{path}"
        return self._request(method, url, body, retry=retry)

    def read(self, kind: type[T] | TypeAdapter[T], answer: Any) -> T:
        """Validate a response. Raises ServiceError if it is not valid."""
        adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
        try:
            return adapter.validate_python(answer)
        except ValidationError as error:
            first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        problem = f"{where}: {first['msg']}"
        # outside of the handler: an error of validation quotes the body, which may repeat the key
        raise errors.ServiceError(f"{self.origin} did not respond as Chroma does: {problem}")

    def _request(self, method: str, url: str, body: Any, *, retry: bool) -> Any:
        content = None if body is None else json.dumps(body)  # lone surrogates too: the server refuses them
        headers = self._headers()
        request = self.http.request(method, url, content=content, headers=headers, timeout=_TIMEOUT, retry=retry)
        try:
            return self.http.run(request)
        except errors.RolloutlabError as error:
            raise self._without_key(error) from None  # the cause may contain the key

    def _headers(self) -> dict[str, str]:
        if not self.key:
            return {}
        if not (self.key.isascii() and self.key.isprintable()):
            hint = f"{CONNECT} --key-env NAME"
            raise errors.SignInError("the key has characters that are not allowed in an HTTP header", hint=hint)
        return {"x-chroma-token": self.key}

    def _without_key(self, error: errors.RolloutlabError) -> errors.RolloutlabError:
        """Return an error with the key redacted, and with hints for a search."""
        message = error.message.replace(self.key, "...") if self.key else error.message
        if isinstance(error, errors.UnreachableError):
            slow = isinstance(error, errors.BrokenOffError)
            return type(error)(message, hint=CONNECT if slow else f"chroma run --port 8000 starts one; {CONNECT}")
        if isinstance(error, errors.SignInError):
            words = message.partition(": ")[2]
            verb = "refused the key" if self.key else "wants a key"
            return errors.SignInError(f"{self.origin} {verb}: {words}", hint=f"{CONNECT} --key-env NAME")
        return type(error)(message, hint=error.hint)
