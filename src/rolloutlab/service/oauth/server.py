"""The authorization server, put together: its parts over one database, and their routes."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rolloutlab.service.oauth.authorize import Authorize
from rolloutlab.service.oauth.bearer import Guard
from rolloutlab.service.oauth.client_documents import Documents, is_public
from rolloutlab.service.oauth.clients import Register
from rolloutlab.service.oauth.consent import ConsentPage
from rolloutlab.service.oauth.grants import Grants
from rolloutlab.service.oauth.metadata import (
    AUTHORIZE,
    CONSENT,
    PATHS,
    REGISTER,
    REVOKE,
    TOKEN,
    api,
    context_server,
    metadata,
)
from rolloutlab.service.oauth.page import Pages
from rolloutlab.service.oauth.token import TokenEndpoint
from rolloutlab.store.sqlite import Database


class AuthorizationServer:
    """Issues tokens for the two resources of a lab, and knows who guards them.

    issuer: the origin of the service. key: what clients' ids are signed with; with another, none is known any more.
    read_passcode: the lab's passcode as it is now. lifetime: seconds of an access token. reachable: which IP
    addresses are asked for client ID metadata documents. clock: seconds since 1970.
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
        self._context, self._api = context_server(issuer), api(issuer)
        self._resources = (self._context, self._api)
        self._grants = Grants(database, lifetime, clock)
        self._register = Register(key, clock)
        self._pages = Pages()
        self._consent = ConsentPage(issuer, self._grants, read_passcode, self._pages, clock)
        self._documents = Documents(reachable, clock)

    def guards_api(self, key: str) -> Guard:
        """The guard of the training and chat API, where the folder's own token is good too."""
        return Guard(self._api, self._grants, key)

    def guards_context(self) -> Guard:
        """The guard of the context server."""
        return Guard(self._context, self._grants)

    def routes(self) -> list[Route]:
        """Where clients and browsers come."""
        given = (self._resources, self._register, self._documents, self._consent, self._pages)
        authorize = Authorize(self.issuer, *given)
        token = TokenEndpoint(self._resources, self._register, self._grants)
        said = metadata(self.issuer, self._resources)
        documents = [(path, said) for path in PATHS]
        documents += [(resource.metadata_path, resource.metadata()) for resource in self._resources]
        return [
            *(Route(path, _says(document), methods=["GET"]) for path, document in documents),
            Route(AUTHORIZE, authorize.answer, methods=["GET"]),
            Route(CONSENT, self._consent.answer, methods=["POST"]),
            Route(TOKEN, token.answer, methods=["POST"]),
            Route(REVOKE, token.revoke, methods=["POST"]),
            Route(REGISTER, self._register.answer, methods=["POST"]),
        ]


def _says(document: dict[str, Any]) -> Callable[[Request], Awaitable[Response]]:
    async def say(_request: Request) -> Response:
        return JSONResponse(document)

    return say
