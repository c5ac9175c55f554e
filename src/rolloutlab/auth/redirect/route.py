"""Route of the authorization response back to the kernel, by front end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

from rolloutlab.api.http.ip_scope import on_this_machine

_PATH = "rolloutlab/callback"


class RedirectRoute(Enum):
    """The way of the response. PAGE: under the URL of the notebook's Jupyter server. LOOPBACK: to a listener here.

    PASTE: by hand only. NONE: no person can be asked. A URL can be pasted in all but the last.
    """

    PAGE = "page"
    LOOPBACK = "loopback"
    PASTE = "paste"
    NONE = "none"


@dataclass(frozen=True)
class FrontEndContext:
    """The front end of this process.

    Attributes:
        kernel: Whether this process is a kernel.
        asks: Whether a person can be asked: the kernel's client allows stdin, or there is a terminal.
        environment: The environment variables.
        names: Variables that the front end put into the notebook's namespace.
        console: Whether the kernel's client is a console.
    """

    kernel: bool
    asks: bool
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    names: frozenset[str] = frozenset()
    console: bool = False


def choose_route(context: FrontEndContext) -> RedirectRoute:
    """Choose the route for a front end."""
    if not context.asks:
        return RedirectRoute.NONE
    if any(name.startswith("COLAB_") for name in context.environment):
        return RedirectRoute.PASTE
    # VS Code may use a Jupyter server too, whose kernels have JPY_SESSION_NAME, but its page cannot reach the server
    if context.kernel and "JPY_SESSION_NAME" in context.environment and "__vsc_ipynb_file__" not in context.names:
        return RedirectRoute.PAGE
    return RedirectRoute.LOOPBACK


def redirect_uri(origin: str, base_url: str) -> str | None:
    """Make the redirect URI under a Jupyter server; None unless it is https or on this machine (OAuth 2.1, 2.3.1)."""
    try:
        parts = urlsplit(origin)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    plain = f"{parts.scheme}://{parts.netloc}" == origin and "@" not in origin and port != 0
    safe = parts.scheme == "https" or (parts.scheme == "http" and on_this_machine(origin))
    rooted = base_url.startswith("/") and base_url.endswith("/") and not base_url.startswith("//")
    bare = not set(base_url) & set("?#\\ ") and base_url.isprintable()
    return f"{origin}{base_url}{_PATH}" if host and plain and safe and rooted and bare else None
