"""The requests of a sign-in (RFC 6749, RFC 8707) and what their answers mean (RFC 9207)."""

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

_LONGEST = 40
_ENDED = {
    "invalid_request": "it does not understand what it was asked",
    "unauthorized_client": "it lets no client like this one ask",
    "unsupported_response_type": "it gives no codes",
    "invalid_scope": "it does not give the scopes that were asked for",
    "invalid_target": "it does not sign in for this server",
    "server_error": "something went wrong there",
    "temporarily_unavailable": "it is busy",
}
"""What ends a sign-in (RFC 6749, 4.1.2.1; RFC 8707, 2), in words."""


class Denied(SignInError):  # noqa: N818 - an error's name says what happened
    """Somebody said no."""


class TokenRefused(SignInError):  # noqa: N818 - an error's name says what happened
    """The token endpoint refused. code: its error code (RFC 6749, 5.2), where it gave one."""

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
    """Where a browser goes (RFC 6749, 4.1.1): with the proof's challenge, and the resource though few read it."""
    asked = {
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
        asked["prompt"] = "consent"  # OpenID Connect Core, 11: without it the scope may be ignored
    there = authority.authorization_endpoint
    return f"{there}{'&' if urlsplit(there).query else '?'}{urlencode(asked)}"


def code_of(authority: ServerMetadata, answer: Mapping[str, str], server: str) -> str:
    """The code of an answer whose state was right, from the authorization server that was asked.

    server: the one to sign in to.

    Raises:
        Denied: somebody said no. SignInError: the server said something else, or another server answered.
    """
    told = answer.get("iss")
    if told != authority.issuer and (told is not None or authority.authorization_response_iss_parameter_supported):
        raise SignInError(f"the answer to the sign-in did not come from {host(authority.issuer)}, which was asked")
    if answer.get("error") == "access_denied":
        raise Denied(f"{host(authority.issuer)} was told not to let us in", hint=f"%login {server}")
    if answer.get("error") or not answer.get("code"):
        raise SignInError(f"{host(authority.issuer)} ended the sign-in: {_why(answer.get('error'))}")
    return answer["code"]


def code_request(
    authority: ServerMetadata, client: RegisteredClient, code: str, *, redirect_uri: str, resource: str, verifier: str
) -> Request:
    """The code for tokens (RFC 6749, 4.1.3; RFC 7636, 4.5; RFC 8707, 2.2)."""
    asked = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": redirect_uri,
        "code_verifier": verifier,
        "resource": resource,
    }
    return _posted(authority.token_endpoint, client, asked)


def refresh_request(token_endpoint: str, client: RegisteredClient, refresh_token: str, *, resource: str) -> Request:
    """New tokens for an old one (RFC 6749, 6); the scope stays what it is."""
    asked = {"grant_type": "refresh_token", "refresh_token": refresh_token, "resource": resource}
    return _posted(token_endpoint, client, asked)


def revocation_request(endpoint: str, client: RegisteredClient, token: str, kind: str) -> Request:
    """The end of a token (RFC 7009, 2.1). kind: `refresh_token` or `access_token`."""
    return _posted(endpoint, client, {"token": token, "token_type_hint": kind})


def tokens_of(endpoint: str, response: Response) -> TokenAnswer:
    """The tokens of an answer.

    Raises:
        TokenRefused: it has none.
    """
    try:
        answer = TokenAnswer.model_validate(response.document())
    except ValidationError:
        code = response.error()
        raise TokenRefused(f"{host(endpoint)} gave no token: {code or f'status {response.status}'}", code) from None
    if not all("!" <= character <= "~" for character in answer.access_token):  # RFC 6749, A.12
        raise TokenRefused(f"{host(endpoint)} gave a token that no header can carry", None)
    if answer.token_type.lower() != "bearer":
        raise TokenRefused(f"{host(endpoint)} gave a token that is no bearer token", None)
    return answer


def _why(error: str | None) -> str:
    """Why a sign-in ended, in our words: those of an answer may be anybody's."""
    if not error:
        return "no code came"
    if error in _ENDED:
        return f"{error}, {_ENDED[error]}"
    code = error_code(error)
    return f"an error that it calls {code[:_LONGEST]!r}" if code else "an unknown error"


def _posted(endpoint: str, client: RegisteredClient, form: Mapping[str, str]) -> Request:
    """A form with what says who the client is (RFC 6749, 2.3.1)."""
    headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
    told = dict(form)
    if client.method == "client_secret_basic":
        pair = f"{quote_plus(client.id)}:{quote_plus(client.secret or '')}"
        headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    else:
        told["client_id"] = client.id
        if client.method == "client_secret_post":
            told["client_secret"] = client.secret or ""
    return Request("POST", endpoint, headers, urlencode(told).encode())
