"""The authorization server: its endpoints over one database, and their routes."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolloutlab.service.oauth import metadata
from rolloutlab.service.oauth.authorize import AuthorizationEndpoint
from rolloutlab.service.oauth.bearer import Guard
from rolloutlab.service.oauth.client_documents import ClientDocuments, is_public
from rolloutlab.service.oauth.clients import ClientRegistration
from rolloutlab.service.oauth.consent import ConsentPage
from rolloutlab.service.oauth.grants import Grants
from rolloutlab.service.oauth.page import Pages
from rolloutlab.service.oauth.token import TokenEndpoint
from rolloutlab.store.sqlite import Database


class AuthorizationServer:
    """Issues and checks tokens for the two resources of a lab.

    Args:
        issuer: The origin of the service.
        database: The service's database.
        key: Signs client ids. A new key invalidates every registration.
        read_passcode: Returns the lab's current passcode.
        lifetime: The lifetime of an access token, in seconds.
        reachable: Tells which IP addresses may be contacted for client ID metadata documents.
        clock: Returns seconds since 1970.
    """

    def __init__(
        self,
        issuer: str,
        database: Database,
        key: bytes,
        read_passcode: Callable[[], str],
        *,
        lifetime: float = 600.0,
        reachable: Callable[[str], bool] = is_public,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.issuer = issuer
        self._context, self._api = metadata.context_server(issuer), metadata.api(issuer)
        self._resources = (self._context, self._api)
        self._grants = Grants(database, lifetime, clock)
        self._registration = ClientRegistration(key, clock)
        self._pages = Pages()
        self._consent = ConsentPage(issuer, self._grants, read_passcode, self._pages, clock)
        self._documents = ClientDocuments(reachable, clock)

    def api_guard(self, key: str) -> Guard:
        """Make the guard of the training and chat API. key: the service's own token, which it accepts as well."""
        return Guard(self._api, self._grants, key)

    def context_guard(self) -> Guard:
        """Make the guard of the MCP server."""
        return Guard(self._context, self._grants)

    def routes(self) -> list[Route]:
        parts = (self._resources, self._registration, self._documents, self._consent, self._pages)
        authorization = AuthorizationEndpoint(self.issuer, *parts)
        token = TokenEndpoint(self._resources, self._registration, self._grants)
        server = metadata.metadata(self.issuer, self._resources)
        documents = [(path, server) for path in metadata.PATHS]
        documents += [(resource.metadata_path, resource.metadata()) for resource in self._resources]
        return [
            *(Route(path, _serve(document), methods=["GET"]) for path, document in documents),
            Route(metadata.AUTHORIZE, authorization.authorize, methods=["GET"]),
            Route(metadata.CONSENT, self._consent.decide, methods=["POST"]),
            Route(metadata.TOKEN, token.issue, methods=["POST"]),
            Route(metadata.REVOKE, token.revoke, methods=["POST"]),
            Route(metadata.REGISTER, self._registration.register, methods=["POST"]),
        ]


def _serve(document: dict[str, Any]) -> Callable[[Request], Awaitable[Response]]:
    async def serve(_request: Request) -> Response:
        return JSONResponse(document)

    return serve
