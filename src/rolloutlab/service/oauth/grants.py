"""Authorization codes, access tokens and refresh tokens, stored as SHA-256 hashes.

A grant is one consent, and all codes and tokens that come of it are deleted with it. If a code or a refresh token is
used twice, one of the two users has stolen it, so the grant is deleted (OAuth 2.1, 4.1.3 and 4.3.1).
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from sqlite3 import Connection

from rolloutlab.service.oauth.clients import Client
from rolloutlab.service.oauth.errors import OAuthError
from rolloutlab.service.oauth.metadata import sort_scopes
from rolloutlab.service.oauth.signing import base64url
from rolloutlab.store.sqlite import Database, Row

Scopes = tuple[str, ...]
CODE, ACCESS, REFRESH = "code", "access", "refresh"
_NAMES = {CODE: "code", REFRESH: "refresh token"}
_CODE_LIFETIME = 60.0
_REFRESH_LIFETIME = 30 * 86400.0
_FIND = """
    SELECT t.*, g.client_id, g.client_name, g.resource, g.renews, g.redirect_uri, g.challenge FROM oauth_tokens t
    JOIN oauth_grants g ON g.id = t.grant_id WHERE t.hash = ? AND t.kind = ?
"""


@dataclass(frozen=True)
class Issued:
    """The tokens of one response. refresh: None when the client does not use refresh tokens."""

    access: str
    refresh: str | None
    lifetime: int
    scopes: tuple[str, ...]


@dataclass(frozen=True)
class TokenInfo:
    """What a valid access token allows which client."""

    client_id: str
    client_name: str
    scopes: tuple[str, ...]


class Grants:
    """Issues and checks codes and tokens. lifetime: seconds of an access token. clock: returns seconds since 1970."""

    def __init__(self, database: Database, lifetime: float = 600.0, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._lifetime = lifetime
        self._clock = clock

    def grant(self, client: Client, *, resource: str, scopes: Scopes, redirect_uri: str, challenge: str) -> str:
        """Issue a code for what the owner has allowed. It is valid for a minute, and bound to the arguments.

        Args:
            client: The client that has asked.
            resource: The resource that tokens are for.
            scopes: The allowed scopes.
            redirect_uri: Where the code is sent.
            challenge: The S256 challenge, whose verifier redeems the code.
        """
        with self._database.write() as connection:
            self._delete_expired(connection)
            cursor = connection.execute(
                "INSERT INTO oauth_grants (client_id, client_name, resource, redirect_uri, challenge, renews)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (client.id, client.name, resource, redirect_uri, challenge, client.renews),
            )
            return self._insert_token(connection, int(cursor.lastrowid or 0), CODE, scopes, _CODE_LIFETIME)

    def redeem(self, code: str, client_id: str, verifier: str, redirect_uri: str | None, resource: str) -> Issued:
        """Issue tokens for a code.

        Args:
            code: The code.
            client_id: The client that redeems it.
            verifier: The PKCE verifier.
            redirect_uri: The redirect URI of the authorization request; None if the client does not repeat it.
            resource: The resource that tokens are for.

        Raises:
            OAuthError: invalid_grant: the code is not valid, or client, redirect URI or verifier differ;
                invalid_target: the resource differs.
        """
        row = self._find_unused(code, CODE)
        if row["client_id"] != client_id:
            raise OAuthError("invalid_grant", "the code was issued to another client")
        if redirect_uri is not None and redirect_uri != row["redirect_uri"]:
            raise OAuthError("invalid_grant", "redirect_uri differs from that of the authorization request")
        challenge = base64url(hashlib.sha256(verifier.encode()).digest())  # S256 (RFC 7636, 4.2)
        if not secrets.compare_digest(challenge, row["challenge"]):
            raise OAuthError("invalid_grant", "code_verifier does not match the code_challenge")
        if resource != row["resource"]:
            raise OAuthError("invalid_target", "the code was issued for another resource")
        return self._exchange(row, tuple(row["scope"].split()))

    def refresh(self, token: str, client_id: str, scopes: Iterable[str] | None, resource: str | None) -> Issued:
        """Issue new tokens for a refresh token, which can be used once. scopes: some of those granted, None for all.

        Raises:
            OAuthError: invalid_grant: the token is not valid, or of another client; invalid_target: it is for another
                resource; invalid_scope: a scope was not granted.
        """
        row = self._find_unused(token, REFRESH)
        granted = tuple(row["scope"].split())
        requested = granted if scopes is None else sort_scopes(scopes)
        if row["client_id"] != client_id:
            raise OAuthError("invalid_grant", "the refresh token was issued to another client")
        if resource is not None and resource != row["resource"]:
            raise OAuthError("invalid_target", "the refresh token was issued for another resource")
        if scopes is not None and (not requested or not set(scopes) <= set(granted)):
            raise OAuthError("invalid_scope", f"the granted scopes are {' '.join(granted)}")
        return self._exchange(row, requested, refresh_scopes=granted)

    def access(self, token: str, resource: str) -> TokenInfo | None:
        """Return what an access token allows; None if it is unknown, expired, or for another resource."""
        rows = self._database.read(_FIND, sha256(token), ACCESS)
        if not rows or rows[0]["resource"] != resource or rows[0]["expires_at"] <= self._clock():
            return None
        return TokenInfo(rows[0]["client_id"], rows[0]["client_name"], tuple(rows[0]["scope"].split()))

    def revoke(self, token: str, client_id: str) -> None:
        """Revoke a client's own token (RFC 7009, 2.1), a refresh token with its whole grant."""
        with self._database.write() as connection:
            for row in connection.execute(_FIND, (sha256(token), REFRESH)).fetchall():
                if row["client_id"] == client_id:
                    connection.execute("DELETE FROM oauth_grants WHERE id = ?", (row["grant_id"],))
            own = "SELECT id FROM oauth_grants WHERE client_id = ?"
            sql = f"DELETE FROM oauth_tokens WHERE hash = ? AND kind = ? AND grant_id IN ({own})"
            connection.execute(sql, (sha256(token), ACCESS, client_id))

    def _find_unused(self, secret: str, kind: str) -> Row:
        """Find the row of an unused code or refresh token, or raise. If it has been used, delete its grant."""
        with self._database.write() as connection:
            row: Row | None = connection.execute(_FIND, (sha256(secret), kind)).fetchone()
            if row is not None and row["used"]:
                connection.execute("DELETE FROM oauth_grants WHERE id = ?", (row["grant_id"],))
        if row is None or row["used"] or row["expires_at"] <= self._clock():
            raise OAuthError("invalid_grant", f"the {_NAMES[kind]} is unknown, expired or already used")
        return row

    def _exchange(self, row: Row, scopes: tuple[str, ...], refresh_scopes: tuple[str, ...] | None = None) -> Issued:
        """Mark a code or refresh token as used, and issue new tokens."""
        grant_id, access, refresh = row["grant_id"], None, None
        with self._database.write() as connection:
            used = connection.execute("UPDATE oauth_tokens SET used = 1 WHERE hash = ? AND used = 0", (row["hash"],))
            if used.rowcount:
                access = self._insert_token(connection, grant_id, ACCESS, scopes, self._lifetime)
                if row["renews"]:
                    refresh = self._insert_token(
                        connection, grant_id, REFRESH, refresh_scopes or scopes, _REFRESH_LIFETIME
                    )
            else:  # a concurrent request has used it since `_find_unused`
                connection.execute("DELETE FROM oauth_grants WHERE id = ?", (grant_id,))
        if access is None:
            raise OAuthError("invalid_grant", f"the {_NAMES[row['kind']]} is already used")
        return Issued(access, refresh, int(self._lifetime), scopes)

    def _insert_token(
        self, connection: Connection, grant_id: int, kind: str, scopes: tuple[str, ...], lifetime: float
    ) -> str:
        secret = secrets.token_urlsafe(32)
        connection.execute(
            "INSERT INTO oauth_tokens (hash, grant_id, kind, scope, expires_at) VALUES (?, ?, ?, ?, ?)",
            (sha256(secret), grant_id, kind, " ".join(scopes), self._clock() + lifetime),
        )
        return secret

    def _delete_expired(self, connection: Connection) -> None:
        """Delete expired tokens and finished grants. Used codes of live grants stay, so that reuse is noticed."""
        now = self._clock()
        connection.execute("DELETE FROM oauth_tokens WHERE kind != ? AND expires_at <= ?", (CODE, now))
        live = "SELECT grant_id FROM oauth_tokens WHERE expires_at > ? AND used = 0"
        connection.execute(f"DELETE FROM oauth_grants WHERE id NOT IN ({live})", (now,))


def sha256(secret: str) -> str:
    """Hash a secret for storage, to 64 hexadecimal digits."""
    return hashlib.sha256(secret.encode()).hexdigest()
