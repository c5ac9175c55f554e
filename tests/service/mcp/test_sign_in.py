"""The official SDK's own OAuth client against the context server: it signs in, goes on, and steps up."""

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest
from httpx2 import AsyncClient
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken


@dataclass
class Owner:
    """Opens what a client asks to be opened, and allows it. asked: the scopes, each time."""

    visitor: Any
    asked: list[str] = field(default_factory=list)
    answers: list[dict[str, list[str]]] = field(default_factory=list)

    async def opens(self, url: str) -> None:
        self.asked.append(parse_qs(urlsplit(url).query)["scope"][0])
        page = await anyio.to_thread.run_sync(self.visitor.browser.get, url)
        answer = await anyio.to_thread.run_sync(self.visitor.decides, page)
        self.answers.append(parse_qs(urlsplit(answer.headers["location"]).query))

    async def answered(self) -> AuthorizationCodeResult:
        params = {name: value for name, (value,) in self.answers.pop().items()}
        return AuthorizationCodeResult(**params)


@dataclass
class Memory:
    """Where a client keeps its tokens."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


@pytest.mark.clause("A2")
@pytest.mark.parametrize("method", ["none", "client_secret_basic", "client_secret_post"])
def test_the_official_client_signs_in_refreshes_and_steps_up(visitor, method):
    owner, memory = Owner(visitor), Memory()
    metadata = OAuthClientMetadata(
        client_name="the official client",
        redirect_uris=["http://127.0.0.1:7777/callback"],
        grant_types=["authorization_code", "refresh_token"],
        token_endpoint_auth_method=method,
    )

    async def use() -> list[str]:
        auth = OAuthClientProvider(visitor.context, metadata, memory, owner.opens, owner.answered)
        async with (
            AsyncClient(auth=auth) as http,
            streamable_http_client(visitor.context, http_client=http) as (reading, writing),
            ClientSession(reading, writing) as session,
        ):
            await session.initialize()
            first = memory.tokens.access_token
            visitor.clock.now += 601
            auth.context.token_expiry_time = 1.0
            await session.list_tools()
            second = memory.tokens.access_token
            messages = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]
            added = await session.call_tool("add_trajectory", {"into": "sums", "messages": messages})
            assert json.loads(added.content[0].text)["id"] == "sums:1/0/0"
            return [first, second, memory.tokens.access_token]

    assert len(set(anyio.run(use))) == 3
    assert owner.asked == ["lab:read", "lab:read lab:write"]
