"""By which way the answer of a sign-in comes back: decided by where the browser is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

from rolloutlab.api.http.ip_scope import on_this_machine

_PATH = "rolloutlab/callback"


class RedirectRoute(Enum):
    """PAGE: under the address of the notebook's own Jupyter server. LOOPBACK: to a listener of this process.

    PASTE: nothing can come back by itself. NONE: there is nobody to ask. An address can be pasted in all but the last.
    """

    PAGE = "page"
    LOOPBACK = "loopback"
    PASTE = "paste"
    NONE = "none"


@dataclass(frozen=True)
class FrontEndContext:
    """What there is to decide by. kernel: whether a notebook or a console talks to this process. console: a console.

    asks: whether somebody can be asked: the front end of a kernel takes questions, or a terminal is there. environment:
    the variables. names: what the front end put into the notebook's namespace.
    """

    kernel: bool
    asks: bool
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    names: frozenset[str] = frozenset()
    console: bool = False


def choose_route(around: FrontEndContext) -> RedirectRoute:
    """The way for these surroundings.

    VS Code says so in the namespace, as it may also talk to a Jupyter server, whose kernels have JPY_SESSION_NAME.
    """
    if not around.asks:
        return RedirectRoute.NONE
    if any(name.startswith("COLAB_") for name in around.environment):
        return RedirectRoute.PASTE
    if around.kernel and "JPY_SESSION_NAME" in around.environment and "__vsc_ipynb_file__" not in around.names:
        return RedirectRoute.PAGE
    return RedirectRoute.LOOPBACK


def redirect_uri(origin: str, base_url: str) -> str | None:
    """The redirect URI under the address of a Jupyter server; None where none may be.

    It has to be https or on this machine (OAuth 2.1, 2.3.1): a notebook that is served unprotected to other machines
    gets its answers another way.
    """
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
