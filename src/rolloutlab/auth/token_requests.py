"""Requests of the authorization code flow (RFC 6749, RFC 8707), and checks of their responses (RFC 9207)."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from urllib.parse import quote_plus, urlencode, urlsplit

from pydantic import ValidationError

from rolloutlab.auth.discovery import ServerMetadata, TokenAnswer
from rolloutlab.auth.pkce import METHOD, challenge_of
from rolloutlab.auth.registration import RegisteredClient
from rolloutlab.auth.sans_io import Request, Response, error_code
from rolloutlab.auth.urls import host
from rolloutlab.errors import SignInError

_MAX_CODE = 40
_ERRORS = {
    "invalid_request": "the request is invalid",
    "unauthorized_client": "this client is not allowed to request codes",
    "unsupported_response_type": "it issues no codes",
    "invalid_scope": "the requested scopes are not available",
    "invalid_target": "it issues no tokens for this server",
    "server_error": "internal error",
    "temporarily_unavailable": "it is overloaded",
}
"""Error codes of authorization responses (RFC 6749, 4.1.2.1; RFC 8707, 2)."""


class DeniedError(SignInError):
    """The person denied the authorization."""


class TokenRefusedError(SignInError):
    """The token endpoint issued no token. code: its error code (RFC 6749, 5.2), if any."""

    def __init__(self, message: str, code: str | None) -> None:
        super().__init__(message)
        self.code = code


def authorization_url(
    authority: ServerMetadata,
    client: RegisteredClient,
    redirect_uri: str,
    *,
    resource: str,
    scopes: Sequence[str],
    state: str,
    verifier: str,
) -> str:
    """The URL for the browser (RFC 6749, 4.1.1), with PKCE challenge and resource."""
    params = {
        "response_type": "code",
        "client_id": client.id,
        "redirect_uri": redirect_uri,
        "state": state,
        "code_challenge": challenge_of(verifier),
        "code_challenge_method": METHOD,
        "resource": resource,
        **({"scope": " ".join(scopes)} if scopes else {}),
    }
    if "offline_access" in scopes:
        params["prompt"] = "consent"  # OpenID Connect Core, 11: without it the scope may be ignored
    endpoint = authority.authorization_endpoint
    return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(params)}"


def code_of(authority: ServerMetadata, response: Mapping[str, str], server: str) -> str:
    """The code of an authorization response whose state was right. server: the one to sign in to.

    Raises:
        DeniedError: the person denied it. SignInError: another error, or a response of another issuer.
    """
    issuer = response.get("iss")  # RFC 9207, against mix-up
    if issuer != authority.issuer and (issuer is not None or authority.authorization_response_iss_parameter_supported):
        raise SignInError(f"the authorization response is not from {host(authority.issuer)}, where the request went")
    if response.get("error") == "access_denied":
        raise DeniedError(f"the sign-in was denied at {host(authority.issuer)}", hint=f"%login {server}")
    if response.get("error") or not response.get("code"):
        raise SignInError(f"{host(authority.issuer)} ended the sign-in: {_reason(response.get('error'))}")
    return response["code"]


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


def _reason(error: str | None) -> str:
    """An error of an authorization response in our own words, as anyone may have written its text."""
    if not error:
        return "the response has no code"
    if error in _ERRORS:
        return f"{error}, {_ERRORS[error]}"
    code = error_code(error)
    return f"error {code[:_MAX_CODE]!r}" if code else "an unknown error"


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
