"""The authorization endpoint: what is asked is checked before anybody is shown it (OAuth 2.1, 4.1)."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rolloutlab.service.oauth.authorization_request import answer_url, read_request
from rolloutlab.service.oauth.client_documents import Documents
from rolloutlab.service.oauth.clients import Client, Register
from rolloutlab.service.oauth.consent import ConsentPage
from rolloutlab.service.oauth.errors import OAuthRefusal
from rolloutlab.service.oauth.metadata import Resource
from rolloutlab.service.oauth.page import Pages
from rolloutlab.service.oauth.params import first, pairs

_LONGEST = 1 << 14
"""Characters of a request, which has to fit into a form."""


class Authorize:
    """Takes requests of browsers. Who asks and where the answer goes is settled first; other errors are told there."""

    def __init__(
        self,
        issuer: str,
        resources: tuple[Resource, ...],
        register: Register,
        documents: Documents,
        consent: ConsentPage,
        pages: Pages,
    ) -> None:
        self._issuer = issuer
        self._resources = resources
        self._register = register
        self._documents = documents
        self._consent = consent
        self._pages = pages

    async def answer(self, request: Request) -> Response:
        """The page that asks the owner, or what is wrong, on a page or at the client's address."""
        query = request.url.query
        try:
            client = await self._client(query)
            redirect_uri = client.check_redirect(first(query, "redirect_uri"))
        except OAuthRefusal as refusal:
            return self._pages.refused(refusal)
        try:
            asked = read_request(pairs(query), client, redirect_uri, self._resources)
        except OAuthRefusal as refusal:
            said = {"error": refusal.error, "error_description": refusal.description}
            url = answer_url(redirect_uri, self._issuer, first(query, "state"), **said)
            return RedirectResponse(url, 303, headers={"Cache-Control": "no-store"})
        return self._consent.ask(asked)

    async def _client(self, query: str) -> Client:
        if len(query) > _LONGEST:
            raise OAuthRefusal("invalid_request", "the address is too long")
        client_id = first(query, "client_id")
        if client_id is None:
            raise OAuthRefusal("invalid_request", "the parameter client_id is missing")
        if client_id.startswith("https:"):
            return await self._documents.get(client_id)
        found = self._register.get(client_id)
        if found is None:
            raise OAuthRefusal("invalid_client", "no client of that id has registered here")
        return found
