"""Sign-in and sign-out of `%login` and `%logout`: options, the call, warnings, keys."""

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace

from rolloutlab.api.http.client import HttpClient
from rolloutlab.auth.authorization import SignInOptions
from rolloutlab.auth.redirect.broker import Broker
from rolloutlab.auth.registration import RegisteredClient
from rolloutlab.auth.session import OAuthSession, OAuthSessions, SignInStatus
from rolloutlab.auth.urls import origin
from rolloutlab.errors import InputError
from rolloutlab.settings import Address


def sign_in_options(
    issuer: str | None,
    client_id: str | None,
    secret_env: str | None,
    document: str | None,
    port: int | None,
    without_pkce: bool,
    environment: Mapping[str, str] = os.environ,
) -> SignInOptions:
    """Make the options of a sign-in from those of `Session.login`.

    Args:
        issuer: The authorization server.
        client_id: The id of a client that is registered there.
        secret_env: The environment variable with the client's secret.
        document: The URL of our client ID metadata document.
        port: The port of the registered redirect URI.
        without_pkce: Whether to continue if the authorization server does not declare PKCE.
        environment: The environment variables.

    Raises:
        InputError: the port is invalid, a secret has no client, or the variable of the secret is not set.
    """
    if port is not None and not 0 < port < 65536:
        raise InputError(f"the port must be an integer from 1 to 65535, not {port}", hint="--redirect-port 8765")
    client = _make_client(client_id, secret_env, environment)
    return SignInOptions(issuer, client, document, without_pkce, port)


def sign_in(
    http: HttpClient,
    session: OAuthSession,
    broker: Broker,
    options: SignInOptions,
    *,
    keep: bool | None,
    tick: Callable[[], None] | None = None,
) -> SignInStatus:
    """Sign in through the person's browser. Raises as `Session.login`.

    Args:
        http: Runs the sign-in.
        session: The session of the server.
        broker: Shows the prompt.
        options: The options.
        keep: Whether the grant is kept beyond the end of the kernel; None leaves that as it is.
        tick: Called again and again while this thread waits. By default it is the broker's, which shows the prompt.
    """
    try:
        status = http.run(session.sign_in(options, keep=keep, prompt=broker), tick or broker.tick)
    finally:
        broker.tick()  # shows the outcome
    assert status, "a sign-in without a status raises"
    return status


def sign_out(http: HttpClient, sessions: OAuthSessions, server: str | None) -> None:
    """Revoke the tokens of a server, or of all, and forget them. Warns if a server does not confirm the revocation.

    Raises:
        NotFoundError: this notebook is not signed in to that server.
    """
    known = (
        [sessions.require_sign_in(server)] if server else [sessions.at(each.server) for each in sessions.statuses()[0]]
    )
    for session in known:
        if not http.run(session.sign_out()):
            unconfirmed = f"{session.server} did not confirm that it revoked the tokens"
            warnings.warn(f"{unconfirmed}; they are deleted here, and expire", stacklevel=3)


def drop_key(address: Address, server: str) -> Address:
    """Return the service without its API key, if the key is the one of this server in the keyring."""
    same = address.key_keyring and origin(address.base_url) == origin(server)
    return replace(address, token=None, key_keyring=False) if same else address


def _make_client(
    client_id: str | None, secret_env: str | None, environment: Mapping[str, str]
) -> RegisteredClient | None:
    if client_id is None:
        if secret_env:
            raise InputError("a secret belongs to a client", hint=f"--client-id ID --secret-env {secret_env}")
        return None
    secret = environment.get(secret_env) if secret_env else None
    if secret_env and not secret:
        raise InputError(f"the environment variable {secret_env} is not set", hint=f"%env {secret_env}=")
    return RegisteredClient(client_id, secret, "client_secret_basic" if secret else "none")
