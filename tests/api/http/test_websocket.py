"""A WebSocket connection: who does not answer the handshake is not waited for."""

import asyncio
import socket

import pytest

from rolloutlab.api.http.websocket import JsonSocket
from rolloutlab.errors import UnreachableError

PATIENCE = 10.0


def test_a_server_that_accepts_a_connection_and_never_answers_is_unreachable():
    async def connect(port: int) -> None:
        async with asyncio.timeout(PATIENCE):
            await JsonSocket.connect(f"http://127.0.0.1:{port}/ws", timeout=0.1)

    said = r"no WebSocket at http://127\.0\.0\.1:\d+: no answer within 0\.1 s"
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(UnreachableError, match=said):
        asyncio.run(connect(server.getsockname()[1]))
