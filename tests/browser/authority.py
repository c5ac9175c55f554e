"""A tiny authorization server's page, which cuts itself off from whoever opened it, as those of large ones do."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlencode, urlsplit

PAGE = """<!doctype html><html lang="en"><title>Authority</title><h1>Allow rolloutlab?</h1>
<p id="opener"></p><script>document.getElementById("opener").textContent = String(window.opener)</script>
<a href="{allow}">Allow</a> <a href="{deny}">Deny</a>"""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        answers = {"allow": {"code": "the-code"}, "deny": {"error": "access_denied"}}
        links = {
            name: f"{asked.get('redirect_uri', '')}?{urlencode({**answer, 'state': asked.get('state', '')})}"
            for name, answer in answers.items()
        }
        body = PAGE.format(**{name: link.replace("&", "&amp;") for name, link in links.items()}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_said: object) -> None:
        """A test says enough."""


@contextmanager
def authority() -> Iterator[str]:
    """The address at which the page is."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/authorize"
    server.shutdown()
    thread.join()
    server.server_close()
