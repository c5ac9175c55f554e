"""Our context client as the conformance suite starts it: with the address of its server, signed in without a person.

The suite's authorization pages answer at once with a redirect, which is read instead of followed.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

import httpx

from rolloutlab.auth.authorization import SignInOptions
from rolloutlab.auth.prompt import Prepare
from rolloutlab.auth.registration import RegisteredClient
from rolloutlab.auth.session import OAuthSession
from rolloutlab.auth.token_store import MemoryStore
from rolloutlab.errors import SignInError
from rolloutlab.sampling.mcp.client import McpConnection

REDIRECT = "http://127.0.0.1:3000/callback"
DOCUMENT = "https://conformance-test.local/client-metadata.json"
"""The client ID metadata document that the suite knows."""


class Allows:
    """Somebody who allows everything."""

    async def __call__(self, _server: str, prepare: Prepare, _port: int | None = None) -> Mapping[str, str]:
        pending = await prepare(REDIRECT)
        async with httpx.AsyncClient() as browser:
            response = await browser.get(pending.url)
        return dict(parse_qsl(urlsplit(response.headers["location"]).query))

    def show_outcome(self, server: str, well: bool, note: str) -> None:
        """The suite sees what came of it."""


def registered(context: Mapping[str, str]) -> RegisteredClient | None:
    """The client that a scenario has registered before."""
    if "client_id" not in context:
        return None
    secret = context.get("client_secret")
    return RegisteredClient(context["client_id"], secret, "client_secret_basic" if secret else "none")


async def main(url: str) -> None:
    """List the tools, signing in where that is asked for, and call each of them."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    access = OAuthSession(url, Allows(), MemoryStore(), SignInOptions(client=registered(context), document=DOCUMENT))
    server = McpConnection(url, access)
    try:
        try:
            tools = await server.tools()
        except SignInError:
            await access.sign_in()
            tools = await server.tools()
        for tool in tools:
            await tool.call({})
    finally:
        await server.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
