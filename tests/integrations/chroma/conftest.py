"""A Chroma on a real socket whose answers a test decides."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rolloutlab.api.http.client import HttpClient

BASE = "/api/v2/tenants/default_tenant/databases/default_database/collections"
COLLECTION = {
    "id": "0-1",
    "name": "rollouts",
    "dimension": 2,
    "configuration_json": {"hnsw": {"space": "cosine"}, "spann": None, "embedding_function": None},
}
HEARTBEAT = {"nanosecond heartbeat": 1}

Answer = tuple[int, Any]


def refusal(status: int, error: str, message: str) -> Answer:
    return status, {"error": error, "message": message}


class Served:
    """Answers by path, to be changed: a status and a JSON value (or text), or what makes them from a request's body."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer | Callable[[Any], Answer]] = {
            "/api/v2/heartbeat": (200, HEARTBEAT),
            f"{BASE}?limit=1000": (200, [{"name": "rollouts"}, {"name": "answers"}]),
            f"{BASE}/rollouts": (200, COLLECTION),
            f"{BASE}/0-1/search": refusal(501, "ChromaError", "Search operation is not implemented for local executor"),
            f"{BASE}/0-1/count": (200, 3),
        }
        self.asked: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def bodies(self, call: str) -> list[Any]:
        """What was posted to one call of the collection, in order."""
        return [body for path, body in self.asked if path == f"{BASE}/0-1/{call}"]

    def on(self, call: str, answer: Answer | Callable[[Any], Answer]) -> None:
        self.answers[f"{BASE}/0-1/{call}"] = answer

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                served.asked.append((self.path, body))
                served.headers.append({name.lower(): value for name, value in self.headers.items()})
                missing = refusal(404, "NotFoundError", "Collection does not exist")
                answer = served.answers.get(self.path, missing)
                status, value = answer(body) if callable(answer) else answer
                sent = value.encode() if isinstance(value, str) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


@pytest.fixture
def http() -> Iterator[HttpClient]:
    http = HttpClient(backoff=0)
    yield http
    http.close()
