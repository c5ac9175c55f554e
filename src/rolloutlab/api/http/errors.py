"""Errors for HTTP status codes and failed connections."""

import json
import re
import socket
import ssl
from collections.abc import Sequence
from typing import Any

import aiohttp

from rolloutlab.api.http.ip_scope import on_this_machine
from rolloutlab.errors import (
    FullError,
    NotFoundError,
    NotOfferedError,
    RefusedError,
    RolloutlabError,
    ServiceError,
    SignInError,
)
from rolloutlab.fsutil import NONE_LEFT, short_of_descriptors

_OF_PATH = re.compile(r"\b(url|uri|path|route|endpoint|page|cannot (get|post|put|delete))\b|/v1/", re.IGNORECASE)
_OF_WHAT_IS_THERE = re.compile(r"\b(model|deployment|job|checkpoint|step|adapter)s?\b", re.IGNORECASE)
"""What the message of a 404 may name: an unknown path, or a missing thing (a model, a job) at a known path."""
CUT_OFF = "the connection was closed before the end of the response"


def status_error(
    origin: str, status: int, reason: str, body: bytes, secrets: Sequence[str] = (), location: str | None = None
) -> RolloutlabError:
    """Make the error for an unsuccessful response. It never shows the secrets that were sent.

    Args:
        origin: The service, such as `http://127.0.0.1:8000`.
        status: The status code.
        reason: The reason phrase, shown if the body has no message.
        body: The body of the response.
        secrets: The tokens and keys that were sent.
        location: The target of a redirect, which is not followed.
    """
    words = _hide_secrets(secrets, _message_in(body) or reason)
    if status in {401, 403}:
        another = f"%connect {origin} --key-env ROLLOUTLAB_API_KEY"
        hint = f"%service stop, where it is the embedded one; {another}" if on_this_machine(origin) else another
        return SignInError(
            f"{origin} {'refused the token' if secrets else 'wants a token'}: {status} {words}",
            hint=hint,
            status=status,
        )
    if status in {405, 501}:
        return NotOfferedError(f"{origin} answered {status} {words}", status=status)
    if status == 404:
        of_path = words in {reason, "Not Found"} or (_OF_PATH.search(words) and not names_a_thing(words))
        return NotOfferedError(words) if of_path else NotFoundError(words)
    message = f"{origin} answered {status} {words}"
    if status < 400 and location:
        place = _hide_secrets(secrets, location).partition("?")[0]
        return RefusedError(f"{message}: it leads to {place}", hint="%connect that address", status=status)
    if status == 507:
        return FullError(message)
    error = (RefusedError if status < 500 else ServiceError)(message, status=status)
    error.reported = {name: _hide_secrets(secrets, text) for name, text in _read_reported(body).items()} | {
        "message": words
    }
    return error


def _hide_secrets(secrets: Sequence[str], text: str) -> str:
    for secret in sorted(filter(None, secrets), key=len, reverse=True):  # one may begin with another
        text = text.replace(secret, "...")
    return text


def names_a_thing(words: str) -> bool:
    """Whether an error is about a model, a job or the like, and not about the path that was asked for."""
    without_paths = " ".join(word for word in words.split() if "/" not in word)  # `/v1/models` says nothing
    return _OF_WHAT_IS_THERE.search(without_paths) is not None


def root_cause(error: BaseException) -> str | None:
    """Say what first caused the failure of a request; None if that cause does not explain the failure."""
    root, seen = error, {error}
    while (below := root.__cause__ or root.__context__) and below not in seen:  # an error raised twice may be its own
        root = below
        seen.add(root)
    if short_of_descriptors(root):
        return NONE_LEFT
    if isinstance(root, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {root.verify_message}"
    if isinstance(root, ssl.SSLError):
        return "the TLS handshake failed; http:// might be meant"
    if isinstance(root, socket.gaierror):
        return "no host has that name"
    if isinstance(root, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(root, aiohttp.ClientPayloadError | aiohttp.http_exceptions.PayloadEncodingError):
        return CUT_OFF
    if isinstance(root, ConnectionResetError | aiohttp.ServerDisconnectedError):
        return "the connection was closed before a response"
    return None


def connection_hint(url: str) -> str:
    """Return what to type where nothing answers. On this machine it may be the embedded service."""
    return "%service log, where it is the embedded one; %connect" if on_this_machine(url) else "%connect names another"


def _message_in(body: bytes) -> str:
    try:
        return message_of(json.loads(body))
    except (ValueError, RecursionError):
        return ""


def message_of(answer: Any) -> str:
    """Find the message in an error body: OpenAI's `error.message`, Chroma's `message`, the specification's `detail`.

    Google sends OpenAI's form in a list, Mistral the specification's under `message`; gateways have `msg`, `error_msg`
    and `errors`. The message is empty where there is none.
    """
    if isinstance(answer, list) and len(answer) == 1:
        (answer,) = answer
    if not isinstance(answer, dict):
        return ""
    names = ("detail", "message", "error", "errors", "error_msg", "error_message", "msg")
    detail = next((answer[name] for name in names if answer.get(name)), None)
    if isinstance(detail, dict):
        detail = detail.get("message") or detail.get("detail") or detail.get("msg")
    if isinstance(detail, list):
        detail = "; ".join(map(_describe, detail[:3]))
    return str(detail or "")


def _read_reported(body: bytes) -> dict[str, Any]:
    """Read the type, code and parameter of an error in OpenAI's form."""
    try:
        error = json.loads(body)["error"]
        return {name: error[name] for name in ("type", "code", "param") if isinstance(error.get(name), str)}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def _describe(item: Any) -> str:
    if isinstance(item, str):
        return item
    if isinstance(item, dict) and isinstance(item.get("message"), str):
        return str(item["message"])
    if not isinstance(item, dict) or not item.get("msg"):
        return "it does not say why"
    return f"{'.'.join(map(str, item.get('loc') or ['body']))}: {item['msg']}"
