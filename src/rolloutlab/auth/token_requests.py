"""Token and revocation requests (RFC 6749, 4.1.3 and 6; RFC 7009; RFC 8707), and checks of their responses."""

from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import quote_plus, urlencode

from pydantic import ValidationError

from rolloutlab.auth.discovery import ServerMetadata, TokenAnswer
from rolloutlab.auth.registration import RegisteredClient
from rolloutlab.auth.sans_io import Request, Response
from rolloutlab.auth.urls import host
from rolloutlab.errors import SignInError


class TokenRefusedError(SignInError):
    """The token endpoint issued no token. code: its error code (RFC 6749, 5.2), if any."""

    def __init__(self, message: str, code: str | None) -> None:
        super().__init__(message)
        self.code = code


def code_request(
    authority: ServerMetadata, client: RegisteredClient, code: str, *, redirect_uri: str, resource: str, verifier: str
) -> Request:
    """The exchange of a code for tokens (RFC 6749, 4.1.3; RFC 7636, 4.5; RFC 8707, 2.2)."""
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect_uri,
        "code_verifier": verifier,
        "resource": resource,
    }
    return _post(authority.token_endpoint, client, form)


def refresh_request(token_endpoint: str, client: RegisteredClient, refresh_token: str, *, resource: str) -> Request:
    """A refresh (RFC 6749, 6), with unchanged scope."""
    form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": resource}
    return _post(token_endpoint, client, form)


def revocation_request(endpoint: str, client: RegisteredClient, token: str, kind: str) -> Request:
    """A revocation (RFC 7009, 2.1). kind: `refresh_token` or `access_token`."""
    return _post(endpoint, client, {"token": token, "token_type_hint": kind})


def tokens_of(endpoint: str, response: Response) -> TokenAnswer:
    """The tokens of a response; TokenRefusedError when it has none."""
    try:
        tokens = TokenAnswer.model_validate(response.document())
    except ValidationError:
        code = response.error()
        reason = code or f"status {response.status}"
        raise TokenRefusedError(f"{host(endpoint)} issued no token: {reason}", code) from None
    if not all("!" <= character <= "~" for character in tokens.access_token):  # RFC 6749, A.12
        raise TokenRefusedError(f"{host(endpoint)} issued a token that no header can contain", None)
    if tokens.token_type.lower() != "bearer":
        raise TokenRefusedError(f"{host(endpoint)} issued a token that is not a bearer token", None)
    return tokens


def _post(endpoint: str, client: RegisteredClient, form: Mapping[str, str]) -> Request:
    """A form with client authentication (RFC 6749, 2.3.1)."""
    headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
    fields = dict(form)
    if client.method == "client_secret_basic":
        pair = f"{quote_plus(client.id)}:{quote_plus(client.secret or '')}"
        headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    else:
        fields["client_id"] = client.id
        if client.method == "client_secret_post":
            fields["client_secret"] = client.secret or ""
    return Request("POST", endpoint, headers, urlencode(fields).encode())
