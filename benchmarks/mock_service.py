"""A chat service that costs next to nothing, to measure its clients: the same 50 tokens for everyone, after 200 ms.

    mock_service.py

prints its port and serves on 127.0.0.1 until its standard input ends. Hand-written, because an HTTP framework would be
the limit of the fastest client.
"""

import asyncio
import json
import sys
from typing import Any

LATENCY = 0.2
TOKENS = 50


def completion() -> dict[str, Any]:
    """One completion of `TOKENS` tokens with logprobs, as OpenAI's service words it."""
    texts = [f" tok{i:02}" for i in range(TOKENS)]
    tokens = [
        {"token": text, "bytes": list(text.encode()), "logprob": -0.123456789 - i / 37, "top_logprobs": []}
        for i, text in enumerate(texts)
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(texts), "refusal": None},
        "logprobs": {"content": tokens, "refusal": None},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 12, "completion_tokens": TOKENS, "total_tokens": 12 + TOKENS}
    record = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "mock"}
    return {**record, "choices": [choice], "usage": usage}


def answer() -> bytes:
    body = json.dumps(completion(), separators=(",", ":")).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Connection(asyncio.Protocol):
    """One client's connection; requests follow each other on it."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._came = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._came += data
        while (size := self._whole_request()) is not None:
            self._came = self._came[size:]
            asyncio.get_running_loop().call_later(LATENCY, self._transport.write, self._reply)

    def _whole_request(self) -> int | None:
        """How many bytes the first request has, when all of them are here."""
        head, found, body = self._came.partition(b"\r\n\r\n")
        if not found:
            return None
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        expected = int(lengths[0].partition(b":")[2]) if lengths else 0
        return len(head) + 4 + expected if len(body) >= expected else None


async def main() -> None:
    loop, reply = asyncio.get_running_loop(), answer()
    server = await loop.create_server(lambda: Connection(reply), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
