"""Dynamic client registration (RFC 7591): a client says what it is and gets an id, and a secret where it wants one.

What it says is its id, sealed (RFC 7591, A.5.2), and its secret is derived from that. So nothing is kept of clients:
anybody may register as many as they like, and none has to be forgotten for the next.
"""

import secrets
import time
from collections.abc import Callable
from typing import Any

from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolloutlab.service.oauth.clients import Client, read_client
from rolloutlab.service.oauth.form import body, is_json
from rolloutlab.service.oauth.refusal import NOT_KEPT, OAuthRefusal
from rolloutlab.service.oauth.seal import Seal

_LONGEST = 4000
"""Characters of an id, which is part of addresses."""


class Register:
    """Makes ids of clients, and reads them. key: who has it can make them too, and knows the clients' secrets."""

    def __init__(self, key: bytes, clock: Callable[[], float] = time.time) -> None:
        self._seal = Seal(key, "client")
        self._clock = clock

    async def answer(self, request: Request) -> Response:
        """The registration endpoint."""
        if not is_json(request):
            raise OAuthRefusal("invalid_client_metadata", "the body is no application/json")
        try:
            said = from_json(await body(request))
        except ValueError as error:
            raise OAuthRefusal("invalid_client_metadata", f"the body is no JSON: {error}") from error
        if not isinstance(said, dict):
            raise OAuthRefusal("invalid_client_metadata", "the body is no JSON object")
        return JSONResponse(self.add(said), 201, headers=NOT_KEPT)

    def add(self, said: dict[str, Any]) -> dict[str, Any]:
        """What a client is told: its id, its secret, and all that was understood of it.

        A scope that it names is not understood, on purpose: it may ask for another one later (step-up).

        Raises:
            OAuthRefusal: invalid_redirect_uri, or invalid_client_metadata.
        """
        client = read_client("", said)
        nonce = secrets.token_urlsafe(12)  # who says the same is not the same
        content = [nonce, client.name, client.redirect_uris, client.auth_method, client.renews]
        client_id = self._seal.closed(to_json(content))
        if len(client_id) > _LONGEST:
            raise OAuthRefusal("invalid_redirect_uri", "redirect_uris are too long, or too many")
        now = int(self._clock())
        has_secret = client.auth_method != "none"
        issued = {"client_secret": self.secret(client_id), "client_secret_expires_at": 0} if has_secret else {}
        return {
            "client_id": client_id,
            "client_id_issued_at": now,
            **issued,
            "client_name": client.name,
            "redirect_uris": list(client.redirect_uris),
            "grant_types": ["authorization_code", *(["refresh_token"] if client.renews else [])],
            "response_types": ["code"],
            "token_endpoint_auth_method": client.auth_method,
        }

    def get(self, client_id: str) -> Client | None:
        """A client that registered here."""
        content = self._seal.opened(client_id)
        if content is None:
            return None
        _, name, redirect_uris, auth_method, renews = from_json(content)
        return Client(client_id, name, tuple(redirect_uris), auth_method, renews)

    def secret(self, client_id: str) -> str:
        """The secret of a client that has one."""
        return self._seal.mark(f"secret {client_id}")
