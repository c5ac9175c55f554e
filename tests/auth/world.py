"""A protected resource and its authorization server on 127.0.0.1, that do as a test says; and somebody who consents."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx

from rolloutlab.auth.authorization import challenge_of

TLS = httpx.create_ssl_context()
"""Made once: it takes a while."""
REDIRECT = "http://127.0.0.1:9/callback"


Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


class World:
    """Answers any request by `routes[path]`, a function of the request's form or query; counts them."""

    def __init__(self) -> None:
        self.lifetime: float = 600
        self.scopes: dict[str, str] = {}
        """Of each access token that is good."""
        self.needs: dict[str, str] = {"read": "lab:read", "write": "lab:write"}
        """The scope that each operation needs."""
        self.granting: Callable[[str], str] = lambda asked: asked
        self.denies = False
        self.one_session = False
        """Whether to revoke any token ends all of its client."""
        self.method = ""
        """Of the request that is answered now."""
        self.renews = True
        """Whether refresh tokens are given."""
        self.codes: dict[str, dict[str, str]] = {}
        self.refreshes: dict[str, str] = {}
        self.clients: set[str] = set()
        self.seen: Counter[str] = Counter()
        self.tokens_sent: list[str] = []
        self.made = 0
        self.replaced: dict[str, Answer] = {}
        """Answers by path that take the place of ours."""
        self.held: dict[str, threading.Event] = {}
        """Answers by path that are given, but not sent before somebody lets them go."""
        self.reached = threading.Event()
        self.moved: dict[str, str] = {}
        """Where what has a usual path is instead."""
        self.path = ""
        self.changed: dict[str, Any] = {}
        """Members of the authorization server's metadata that are otherwise."""
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.origin = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.url = f"{self.origin}/mcp"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def revoke_all(self) -> None:
        """No access token is good any more."""
        self.scopes.clear()

    def answer(self, path: str, asked: dict[str, str], headers: Any) -> Answer:
        answer = self._answer(path, asked, headers)
        if path in self.held:
            self.reached.set()
            assert self.held[path].wait(240)
        return answer

    def _answer(self, path: str, asked: dict[str, str], headers: Any) -> Answer:
        with self._lock:
            self.seen[path] += 1
            self.path = path
            if path in self.moved:
                return 404, {}, b""
            path = next((usual for usual, other in self.moved.items() if other == path), path)
            if path in self.replaced:
                return self.replaced[path]
            at = {
                "/.well-known/oauth-protected-resource/mcp": self._resource,
                "/.well-known/oauth-authorization-server": self._authority,
                "/register": self._register,
                "/authorize": self._authorize,
                "/token": self._token,
                "/revoke": self._revoke,
            }.get(path)
            if at:
                return at(asked)
            if path.startswith("/mcp"):
                return self._protected(path.removeprefix("/mcp").strip("/") or "read", headers)
            return 404, {}, b""

    def _resource(self, _asked: dict[str, str]) -> Answer:
        return _json({"resource": self.url, "authorization_servers": [self.origin], "scopes_supported": ["lab:read"]})

    def _authority(self, _asked: dict[str, str]) -> Answer:
        told = {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "revocation_endpoint": f"{self.origin}/revoke",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none"],
            "authorization_response_iss_parameter_supported": True,
        }
        return _json({**told, **self.changed})

    def _register(self, _asked: dict[str, str]) -> Answer:
        self.clients.add(name := self._new("client"))
        return _json({"client_id": name}, 201)

    def _authorize(self, asked: dict[str, str]) -> Answer:
        assert asked["client_id"] in self.clients
        told = {"state": asked["state"], "iss": self.origin}
        if self.denies:
            told["error"] = "access_denied"
        else:
            told["code"] = self._new("code")
            self.codes[told["code"]] = asked
        return 302, {"Location": f"{asked['redirect_uri']}?{urlencode(told)}"}, b""

    def _token(self, asked: dict[str, str]) -> Answer:
        if asked["client_id"] not in self.clients:
            return _json({"error": "invalid_client"}, 401)
        assert asked["resource"] == self.url
        if asked["grant_type"] == "refresh_token":
            scope = self.refreshes.pop(asked["refresh_token"], None)
            if scope is None:
                return _json({"error": "invalid_grant"}, 400)
        else:
            of = self.codes.pop(asked["code"])
            assert challenge_of(asked["code_verifier"]) == of["code_challenge"]
            assert asked["redirect_uri"] == of["redirect_uri"]
            scope = self.granting(of.get("scope", ""))
        access, refresh = self._new("access"), self._new("refresh")
        self.scopes[access], self.refreshes[refresh] = scope, scope
        tokens = {"access_token": access, "token_type": "Bearer", "expires_in": self.lifetime, "scope": scope}
        return _json({**tokens, **({"refresh_token": refresh} if self.renews else {})})

    def _revoke(self, asked: dict[str, str]) -> Answer:
        if self.one_session:
            self.scopes.clear()
            self.refreshes.clear()
        self.scopes.pop(asked["token"], None)
        self.refreshes.pop(asked["token"], None)
        return 200, {}, b""

    def _protected(self, operation: str, headers: Any) -> Answer:
        token = headers.get("Authorization", "").removeprefix("Bearer ")
        self.tokens_sent.append(token)
        usual = "/.well-known/oauth-protected-resource/mcp"
        there = f'resource_metadata="{self.origin}{self.moved.get(usual, usual)}"'
        if token not in self.scopes:
            return 401, {"WWW-Authenticate": f'Bearer {there}, scope="lab:read"'}, b""
        needed = self.needs.get(operation, "lab:read")
        if needed not in self.scopes[token].split():
            said = f'Bearer error="insufficient_scope", scope="{needed}", {there}'
            return 403, {"WWW-Authenticate": said}, b""
        return _json({"done": operation})

    def _new(self, kind: str) -> str:
        self.made += 1
        return f"{kind}-{self.made}-{self._server.server_address[1]}"


class Person:
    """Opens the page, which the world answers at once."""

    def __init__(self) -> None:
        self.questions: list[Any] = []
        self.ports: list[int | None] = []
        """Where answers had to come to."""
        self.changes: dict[str, str] = {}
        """Parameters of the answer that are otherwise than the world gave them."""

    async def __call__(self, server: str, prepare: Any, port: int | None = None) -> dict[str, str]:
        pending = await prepare(REDIRECT)
        self.ports.append(port)
        self.questions.append(pending.question)
        async with httpx.AsyncClient(verify=TLS, timeout=240) as browser:
            response = await browser.get(pending.url)
        answer = dict(parse_qsl(urlsplit(response.headers["location"]).query))
        assert answer["state"] == pending.state
        return {**answer, **self.changes}

    def show_outcome(self, server: str, well: bool, note: str) -> None:
        """What came of it is seen elsewhere."""


def _json(document: Any, status: int = 200) -> Answer:
    return status, {"Content-Type": "application/json"}, json.dumps(document).encode()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # as many as come at once

    def handle_error(self, *_told: Any) -> None:
        """A client that has gone is none of ours; one that is there misses its answer."""


def _handler(world: World) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            query, form = (
                {name: value for name, [value] in parse_qs(text, keep_blank_values=True).items()}
                for text in (parts.query, "" if body.startswith("{") else body)
            )
            world.method = self.command
            status, headers, content = world.answer(parts.path, form or query, self.headers)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_told: Any) -> None:
            pass

    return Handler
