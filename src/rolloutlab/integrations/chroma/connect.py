"""Connect to the Chroma collection of a URL."""

from difflib import get_close_matches
from urllib.parse import quote, unquote, urlsplit

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import InputError, NotFoundError, RefusedError, ServiceError, SignInError, UnreachableError
from rolloutlab.integrations.chroma.api import CONNECT, DATABASE, TENANT, Chroma, ServedCollection
from rolloutlab.integrations.chroma.cloud import ChromaCloud
from rolloutlab.integrations.chroma.server import ChromaServer

_LISTED = 8
_FORMS = f"{CONNECT}, such as http://127.0.0.1:8000/COLLECTION or https://api.trychroma.com/TENANT/DATABASE/COLLECTION"


def connect_search(http: HttpClient, url: str, key: str | None = None) -> ChromaServer | ChromaCloud:
    """Connect to a collection. Chroma Cloud executes searches; a server answers 501 to them, and the lab executes them.

    url: ORIGIN/COLLECTION or ORIGIN/TENANT/DATABASE/COLLECTION.

    Raises:
        InputError: it is not such a URL. UnreachableError: no connection. SignInError: it needs a key, or another one.
        NotFoundError: no such collection. ServiceError: it is not a Chroma server, or it fails.
    """
    chroma, name = _parts(http, url, key)
    if not name:
        raise InputError(f"{chroma.origin} is not the URL of a collection", hint=_others(chroma, name) or _FORMS)
    try:
        collection = chroma.collection(name)
    except (UnreachableError, SignInError):
        raise
    except (NotFoundError, ServiceError) as error:
        if not chroma.is_one():
            raise ServiceError(f"{chroma.origin} is not a Chroma server: {error}", hint=_FORMS) from error
        if isinstance(error, NotFoundError):
            raise NotFoundError(error.message, hint=_others(chroma, name)) from error
        raise
    return ChromaCloud(chroma, collection) if _searches(chroma, collection) else ChromaServer(chroma, collection)


def _parts(http: HttpClient, url: str, key: str | None) -> tuple[Chroma, str]:
    """Split a URL into the database and the collection's name, which is empty if the URL has none."""
    try:
        split = urlsplit(url.strip())
        port = split.port
    except ValueError as error:
        raise InputError(f"{url} is not a URL: {error}", hint=_FORMS) from error
    if split.username or split.password or split.query or split.fragment:
        raise InputError("the URL of a collection has a host and names only", hint=f"{CONNECT} --key-env NAME")
    path = [unquote(part) for part in split.path.split("/") if part]
    if split.scheme not in {"http", "https"} or not split.hostname or len(path) not in {0, 1, 3}:
        raise InputError(f"{url} is not the URL of a collection", hint=_FORMS)
    host = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
    origin = f"{split.scheme}://{host}" + (f":{port}" if port is not None else "")
    tenant, database = path[:2] if len(path) == 3 else (TENANT, DATABASE)
    return Chroma(http, origin, tenant, database, key), path[-1] if path else ""


def _others(chroma: Chroma, name: str) -> str | None:
    """Write a hint with the URL of the most similar collection, and with the names of others."""
    if not (names := chroma.names()):
        return None
    nearest = get_close_matches(name, names, n=_LISTED, cutoff=0.5) or names[:_LISTED]
    default = (chroma.tenant, chroma.database) == (TENANT, DATABASE)
    path = nearest[:1] if default else [chroma.tenant, chroma.database, nearest[0]]
    address = "/".join([chroma.origin, *(quote(part, safe="") for part in path)])
    are = f"are {', '.join(nearest)}" if len(nearest) > 1 else f"is {nearest[0]}"
    return f"%connect --search {address}; there {are}"


def _searches(chroma: Chroma, collection: ServedCollection) -> bool:
    """Whether the server executes whole searches."""
    try:
        chroma.post(collection, "search", {"searches": [{"limit": {"limit": 1}}]}, retry=False)
    except NotFoundError:  # an old server
        return False
    except ServiceError as error:
        if isinstance(error, RefusedError) or " answered 501 " not in error.message:
            raise
        return False
    return True
