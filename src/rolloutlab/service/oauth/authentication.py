"""How a client shows at the token endpoint that it is the one it says (RFC 6749, 2.3.1; RFC 7591, 2)."""

import base64
import binascii
import secrets
from collections.abc import Mapping
from urllib.parse import unquote_plus

from starlette.requests import Request

from rolloutlab.service.oauth.documents import is_document_url
from rolloutlab.service.oauth.refusal import OAuthRefusal
from rolloutlab.service.oauth.registration import Register


def authenticate(request: Request, said: Mapping[str, str], register: Register) -> str:
    """The id of the client that a request comes from.

    The id of a client with a document is taken as it is: it has no secret, and what it redeems is bound to that id.

    Raises:
        OAuthRefusal: invalid_client (401): it is unknown, or does not authenticate as it registered; invalid_request:
            it does so in two ways.
    """
    header = request.headers.get("authorization")
    basic = _basic(header) if header else None
    if basic and "client_secret" in said:
        raise OAuthRefusal("invalid_request", "the client authenticates in two ways")
    if basic and said.get("client_id", basic[0]) != basic[0]:
        raise OAuthRefusal("invalid_request", "client_id is not the one of the header")
    client_id, secret = basic or (said.get("client_id", ""), said.get("client_secret"))
    method = "client_secret_basic" if basic else "client_secret_post" if secret else "none"
    if method == "none" and is_document_url(client_id):
        return client_id
    client = register.get(client_id)
    if client is None or method != client.auth_method:
        raise _unknown(basic is not None)
    if method != "none" and not secrets.compare_digest((secret or "").encode(), register.secret(client.id).encode()):
        raise _unknown(basic is not None)
    return client.id


def _basic(header: str) -> tuple[str, str]:
    """Id and secret of an Authorization header, each encoded as in a form (RFC 6749, 2.3.1)."""
    scheme, _, given = header.partition(" ")
    try:
        client_id, colon, secret = base64.b64decode(given.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError) as error:
        raise _unknown(basic=True) from error
    if scheme.lower() != "basic" or not colon:
        raise _unknown(basic=True)
    return unquote_plus(client_id), unquote_plus(secret)


def _unknown(basic: bool) -> OAuthRefusal:
    headers = {"WWW-Authenticate": 'Basic realm="rolloutlab"'} if basic else {}
    return OAuthRefusal("invalid_client", "the client is unknown, or did not authenticate", 401, headers)
