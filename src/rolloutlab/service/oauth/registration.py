"""Dynamic client registration (RFC 7591): a client says what it is and gets an id, and a secret where it wants one."""

import json
import secrets
import time
from collections.abc import Callable
from typing import Any

from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolloutlab.service.oauth.clients import Client, read_client
from rolloutlab.service.oauth.digest import digest
from rolloutlab.service.oauth.form import body, is_json
from rolloutlab.service.oauth.refusal import NOT_KEPT, OAuthRefusal
from rolloutlab.store.sqlite import Database

_MOST_UNUSED = 100
"""Clients without a grant that are remembered; anybody on this machine may register as many as they like."""

_FORGET = """
    DELETE FROM oauth_clients WHERE id NOT IN (SELECT client_id FROM oauth_grants) AND number <=
        (SELECT max(number) FROM oauth_clients) - ?
"""


class Register:
    """The clients that registered here."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
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
        return JSONResponse(await run_in_threadpool(self.add, said), 201, headers=NOT_KEPT)

    def add(self, said: dict[str, Any]) -> dict[str, Any]:
        """Remember a client; what it is told: its id, its secret, and all that was understood of it.

        A scope that it names is not understood, on purpose: it may ask for another one later (step-up).
        """
        client = read_client(secrets.token_urlsafe(16), said)
        secret = None if client.auth_method == "none" else secrets.token_urlsafe(32)
        grants = ["authorization_code", *(["refresh_token"] if client.renews else [])]
        known = {
            "client_name": client.name,
            "redirect_uris": list(client.redirect_uris),
            "grant_types": grants,
            "response_types": ["code"],
            "token_endpoint_auth_method": client.auth_method,
        }
        now = int(self._clock())
        with self._database.write() as connection:
            connection.execute(
                "INSERT INTO oauth_clients (id, secret_hash, metadata, created_at) VALUES (?, ?, ?, ?)",
                (client.id, digest(secret) if secret else None, json.dumps(known), now),
            )
            connection.execute(_FORGET, (_MOST_UNUSED,))
        issued = {"client_secret": secret, "client_secret_expires_at": 0} if secret else {}
        return {"client_id": client.id, "client_id_issued_at": now, **issued, **known}

    def get(self, client_id: str) -> Client | None:
        """A client that registered here."""
        rows = self._database.read("SELECT secret_hash, metadata FROM oauth_clients WHERE id = ?", client_id)
        if not rows:
            return None
        said = json.loads(rows[0]["metadata"])
        return Client(
            id=client_id,
            name=said["client_name"],
            redirect_uris=tuple(said["redirect_uris"]),
            auth_method=said["token_endpoint_auth_method"],
            renews="refresh_token" in said["grant_types"],
            secret_hash=rows[0]["secret_hash"],
        )
