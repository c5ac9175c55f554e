"""Authorization endpoint (RFC 6749, 4.1.1 and 4.1.2): the URL of a request, and the checks of its response."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode, urlsplit

from rolloutlab.auth.discovery import ServerMetadata
from rolloutlab.auth.pkce import METHOD, challenge_of
from rolloutlab.auth.registration import RegisteredClient
from rolloutlab.auth.sans_io import error_code
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


def _reason(error: str | None) -> str:
    """An error of an authorization response in our own words, as anyone may have written its text."""
    if not error:
        return "the response has no code"
    if error in _ERRORS:
        return f"{error}, {_ERRORS[error]}"
    code = error_code(error)
    return f"error {code[:_MAX_CODE]!r}" if code else "an unknown error"
