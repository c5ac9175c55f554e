"""Plays the servers of a flow: addresses to what they answer."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from rolloutlab.auth.sans_io import Flow, Request, Response

SERVER = "https://tools.example/mcp"
ISSUER = "https://login.example"
RESOURCE = {"resource": SERVER, "authorization_servers": [ISSUER]}
AUTHORITY = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/authorize",
    "token_endpoint": f"{ISSUER}/token",
    "registration_endpoint": f"{ISSUER}/register",
    "code_challenge_methods_supported": ["S256"],
    "token_endpoint_auth_methods_supported": ["none"],
}
AT_RESOURCE = "https://tools.example/.well-known/oauth-protected-resource/mcp"
AT_ROOT = "https://tools.example/.well-known/oauth-protected-resource"
AT_ISSUER = f"{ISSUER}/.well-known/oauth-authorization-server"
USUAL = {AT_RESOURCE: RESOURCE, AT_ISSUER: AUTHORITY}


def answered(status: int, document: Any = None, **headers: str) -> Response:
    return Response(status, tuple(headers.items()), b"" if document is None else json.dumps(document).encode())


def played(flow: Flow[Any], world: Mapping[str, Any]) -> tuple[Any, list[Request]]:
    """What comes of a flow, and what it asked for. Where the world has nothing, the answer is 404."""
    asked: list[Request] = []
    try:
        request = next(flow)
        while True:
            asked.append(request)
            there = world.get(request.url)
            request = flow.send(
                there if isinstance(there, Response) else answered(404 if there is None else 200, there)
            )
    except StopIteration as end:
        return end.value, asked


def form(request: Request) -> dict[str, str]:
    """The fields of a posted form."""
    return {name: value for name, [value] in parse_qs(request.body.decode(), keep_blank_values=True).items()}
