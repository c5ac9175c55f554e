"""Authorization endpoint (OAuth 2.1, 4.1; RFC 7636, 8707): validates a request before the consent page shows it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rolloutlab.service.oauth.client_documents import ClientDocuments
from rolloutlab.service.oauth.clients import Client, ClientRegistration
from rolloutlab.service.oauth.consent import AuthorizationRequest, ConsentPage, response_url
from rolloutlab.service.oauth.errors import OAuthError
from rolloutlab.service.oauth.metadata import Resource, select_resource
from rolloutlab.service.oauth.page import Pages
from rolloutlab.service.oauth.params import parse_params, single_param

_S256_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
_MAX_QUERY = 1 << 14
"""Characters: the consent form carries the whole request."""


@dataclass(frozen=True)
class AuthorizationEndpoint:
    """Checks client and redirect URI first; only then may an error be sent to that URI (OAuth 2.1, 4.1.2.1)."""

    issuer: str
    resources: tuple[Resource, ...]
    registration: ClientRegistration
    documents: ClientDocuments
    consent: ConsentPage
    pages: Pages

    async def authorize(self, request: Request) -> Response:
        """Answer with the consent page, an error page, or a redirect with an error."""
        query = request.url.query
        try:
            client = await self._find_client(query)
            redirect_uri = client.check_redirect(single_param(query, "redirect_uri"))
        except OAuthError as error:
            return self.pages.error(error)
        try:
            authorization = parse_authorization(parse_params(query), client, redirect_uri, self.resources)
        except OAuthError as error:
            params = {"error": error.error, "error_description": error.description}
            url = response_url(redirect_uri, self.issuer, single_param(query, "state"), **params)
            return RedirectResponse(url, 303, headers={"Cache-Control": "no-store"})
        return self.consent.show(authorization)

    async def _find_client(self, query: str) -> Client:
        if len(query) > _MAX_QUERY:
            raise OAuthError("invalid_request", "the URL is too long")
        if (client_id := single_param(query, "client_id")) is None:
            raise OAuthError("invalid_request", "the parameter client_id is missing")
        if client_id.startswith("https:"):
            return await self.documents.get(client_id)
        if client := self.registration.get(client_id):
            return client
        raise OAuthError("invalid_client", "no client with this id is registered here")


def parse_authorization(
    params: Mapping[str, str], client: Client, redirect_uri: str, resources: Iterable[Resource]
) -> AuthorizationRequest:
    """Read the request of a client whose redirect URI has been checked.

    Raises:
        OAuthError: the request is refused. The error is to be sent to the redirect URI.
    """
    if "request" in params or "request_uri" in params:
        raise OAuthError("request_not_supported", "request objects are not supported")
    if (response_type := params.get("response_type")) != "code":
        error = "unsupported_response_type" if response_type else "invalid_request"
        raise OAuthError(error, "response_type must be code")
    if params.get("response_mode", "query") != "query":
        raise OAuthError("invalid_request", "response_mode must be query")
    if "code_challenge" not in params:
        raise OAuthError("invalid_request", "code_challenge is missing: PKCE is required")
    if params.get("code_challenge_method") != "S256":
        raise OAuthError("invalid_request", "code_challenge_method must be S256")
    if not _S256_CHALLENGE.fullmatch(params["code_challenge"]):
        raise OAuthError("invalid_request", "code_challenge is not an S256 challenge")
    resource = select_resource(resources, params.get("resource"))
    scopes = resource.requested_scopes(params.get("scope"))
    return AuthorizationRequest(client, redirect_uri, resource, scopes, params["code_challenge"], params.get("state"))
