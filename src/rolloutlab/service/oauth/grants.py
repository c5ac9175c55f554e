"""What was granted: codes and tokens, of which only hashes are kept, and how one leads to the next.

A grant is one consent. Everything that comes of it falls with it: that is how a code or a refresh token that is used
twice, by two parties of which one is a thief, helps neither (OAuth 2.1, 4.1.3 and 4.3.1).
"""

import base64
import hashlib
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from sqlite3 import Connection

from rolloutlab.service.oauth.errors import OAuthRefusal
from rolloutlab.service.oauth.metadata import in_order
from rolloutlab.store.sqlite import Database, Row


def digest(secret: str) -> str:
    """What is kept of a secret: 64 hexadecimal digits."""
    return hashlib.sha256(secret.encode()).hexdigest()


CODE, ACCESS, REFRESH = "code", "access", "refresh"

_CODE_LIFETIME = 60.0
_REFRESH_LIFETIME = 30 * 86400.0

_FIND = """
    SELECT t.*, g.client_id, g.client_name, g.resource, g.renews, g.redirect_uri, g.challenge FROM oauth_tokens t
    JOIN oauth_grants g ON g.id = t.grant_id WHERE t.hash = ? AND t.kind = ?
"""


@dataclass(frozen=True)
class Consented:
    """What a person agreed to, and how the code is bound (RFC 7636: challenge)."""

    client_id: str
    client_name: str
    resource: str
    scopes: tuple[str, ...]
    redirect_uri: str
    challenge: str
    renews: bool


@dataclass(frozen=True)
class Issued:
    """Tokens as they are told once. refresh: None where the client does not renew."""

    access: str
    refresh: str | None
    lifetime: int
    scopes: tuple[str, ...]


@dataclass(frozen=True)
class TokenInfo:
    """What a valid access token allows, and whom."""

    client_id: str
    client_name: str
    scopes: tuple[str, ...]


class Grants:
    """Codes, access tokens and refresh tokens. lifetime: seconds of an access token; clock: seconds since 1970."""

    def __init__(self, database: Database, lifetime: float = 600.0, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._lifetime = lifetime
        self._clock = clock

    def grant(self, what: Consented) -> str:
        """A code for a consent; it holds for a minute."""
        with self._database.write() as connection:
            self._sweep(connection)
            cursor = connection.execute(
                "INSERT INTO oauth_grants (client_id, client_name, resource, redirect_uri, challenge, renews)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (what.client_id, what.client_name, what.resource, what.redirect_uri, what.challenge, what.renews),
            )
            return self._token(connection, int(cursor.lastrowid or 0), CODE, what.scopes, _CODE_LIFETIME)

    def redeem(self, code: str, client_id: str, verifier: str, redirect_uri: str | None, resource: str) -> Issued:
        """Tokens for a code.

        Raises:
            OAuthRefusal: invalid_grant: it is none, was used, is too old, or another client's, address's or verifier's;
                invalid_target: it was given for another resource.
        """
        row = self._only_once(code, CODE)
        if row["client_id"] != client_id:
            raise OAuthRefusal("invalid_grant", "the code was given to another client")
        if redirect_uri is not None and redirect_uri != row["redirect_uri"]:
            raise OAuthRefusal("invalid_grant", "redirect_uri is not the one that the code was sent to")
        if not secrets.compare_digest(_challenge(verifier), row["challenge"]):
            raise OAuthRefusal("invalid_grant", "code_verifier does not fit the code_challenge")
        if resource != row["resource"]:
            raise OAuthRefusal("invalid_target", "the code was given for another resource")
        return self._next(row, tuple(row["scope"].split()))

    def refresh(self, token: str, client_id: str, scopes: Iterable[str] | None, resource: str | None) -> Issued:
        """New tokens for a refresh token, which is used up by that. scopes: fewer than before, None for the same.

        Raises:
            OAuthRefusal: invalid_grant, invalid_target, or invalid_scope: one was not granted.
        """
        row = self._only_once(token, REFRESH)
        had = tuple(row["scope"].split())
        wanted = had if scopes is None else in_order(scopes)
        if row["client_id"] != client_id:
            raise OAuthRefusal("invalid_grant", "the refresh token was given to another client")
        if resource is not None and resource != row["resource"]:
            raise OAuthRefusal("invalid_target", "the refresh token was given for another resource")
        if scopes is not None and (not wanted or not set(scopes) <= set(had)):
            raise OAuthRefusal("invalid_scope", f"granted was {' '.join(had)}")
        return self._next(row, wanted, keeps=had)

    def access(self, token: str, resource: str) -> TokenInfo | None:
        """What an access token allows at a resource; None where it is none, too old, or of another resource."""
        rows = self._database.read(_FIND, digest(token), ACCESS)
        if not rows or rows[0]["resource"] != resource or rows[0]["expires_at"] <= self._clock():
            return None
        return TokenInfo(rows[0]["client_id"], rows[0]["client_name"], tuple(rows[0]["scope"].split()))

    def revoke(self, token: str, client_id: str) -> None:
        """Revoke a client's own token (RFC 7009, 2.1); with a refresh token, everything of its grant."""
        with self._database.write() as connection:
            for row in connection.execute(_FIND, (digest(token), REFRESH)).fetchall():
                if row["client_id"] == client_id:
                    connection.execute("DELETE FROM oauth_grants WHERE id = ?", (row["grant_id"],))
            connection.execute(
                "DELETE FROM oauth_tokens WHERE hash = ? AND kind = ?"
                " AND grant_id IN (SELECT id FROM oauth_grants WHERE client_id = ?)",
                (digest(token), ACCESS, client_id),
            )

    def _only_once(self, secret: str, kind: str) -> Row:
        """A code or a refresh token that was not used before; where it was, its grant ends now."""
        with self._database.write() as connection:
            row: Row | None = connection.execute(_FIND, (digest(secret), kind)).fetchone()
            if row is not None and row["used"]:
                connection.execute("DELETE FROM oauth_grants WHERE id = ?", (row["grant_id"],))
        if row is None or row["used"] or row["expires_at"] <= self._clock():
            raise OAuthRefusal("invalid_grant", f"the {_NAMES[kind]} is not valid, too old, or was used before")
        return row

    def _next(self, row: Row, scopes: tuple[str, ...], keeps: tuple[str, ...] | None = None) -> Issued:
        """Use up a code or a refresh token, and give what follows. keeps: the scopes of the next refresh token."""
        with self._database.write() as connection:
            used = connection.execute("UPDATE oauth_tokens SET used = 1 WHERE hash = ? AND used = 0", (row["hash"],))
            if not used.rowcount:  # at the same moment as another
                connection.execute("DELETE FROM oauth_grants WHERE id = ?", (row["grant_id"],))
                access = refresh = None
            else:
                access = self._token(connection, row["grant_id"], ACCESS, scopes, self._lifetime)
                given = (connection, row["grant_id"], REFRESH, keeps or scopes, _REFRESH_LIFETIME)
                refresh = self._token(*given) if row["renews"] else None
        if access is None:
            raise OAuthRefusal("invalid_grant", f"the {_NAMES[row['kind']]} was used before")
        return Issued(access, refresh, int(self._lifetime), scopes)

    def _token(self, connection: Connection, grant_id: int, kind: str, scopes: tuple[str, ...], lifetime: float) -> str:
        secret = secrets.token_urlsafe(32)
        connection.execute(
            "INSERT INTO oauth_tokens (hash, grant_id, kind, scope, expires_at) VALUES (?, ?, ?, ?, ?)",
            (digest(secret), grant_id, kind, " ".join(scopes), self._clock() + lifetime),
        )
        return secret

    def _sweep(self, connection: Connection) -> None:
        """Forget tokens that are over, and grants of which nothing is left to use; codes stay to be known again."""
        now = self._clock()
        connection.execute("DELETE FROM oauth_tokens WHERE kind != ? AND expires_at <= ?", (CODE, now))
        connection.execute(
            "DELETE FROM oauth_grants WHERE id NOT IN"
            " (SELECT grant_id FROM oauth_tokens WHERE expires_at > ? AND used = 0)",
            (now,),
        )


_NAMES = {CODE: "code", REFRESH: "refresh token"}


def _challenge(verifier: str) -> str:
    """RFC 7636, 4.2: S256."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
