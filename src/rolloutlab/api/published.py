"""Addresses and token that the embedded service publishes in its folder, and the check that it is that service."""

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.http.secrecy import proves
from rolloutlab.errors import RolloutlabError, UnreachableError

_TIMEOUT = 15.0


@dataclass(frozen=True)
class Published:
    """A running service. instance: differs with every start."""

    base_url: str
    inference_base_url: str
    policy: str
    pid: int
    instance: str
    token: str = field(repr=False)

    async def answers(self, http: HttpClient, timeout: float = _TIMEOUT) -> bool:
        """Whether the process at the address proves that it knows the token; RolloutlabError without JSON."""
        nonce, url = secrets.token_hex(16), f"{self.base_url}/v1/health"
        health = await http.request("GET", url, params={"nonce": nonce}, timeout=timeout, retry=False)
        return proves(health, self.token, nonce, self.base_url) and health.get("instance") == self.instance


def read_published(folder: Path) -> Published | None:
    """The service published in a folder; None without one, or while its files are being written."""
    try:
        document = dict(json.loads((folder / "service.json").read_text()))
        texts = {name: str(document[name]) for name in ("base_url", "inference_base_url", "policy", "instance")}
        return Published(**texts, pid=int(document["pid"]), token=(folder / "token").read_text())
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass
class FolderToken:
    """The token of an embedded service. After a 401 the folder is read again, as the service may have been restarted.

    A new token is used only once the service has proved that it knows it.
    """

    folder: Path
    base_url: str
    current: str = field(repr=False, compare=False)
    http: HttpClient = field(repr=False, compare=False)

    def of(self, url: str) -> "FolderToken | None":
        """Itself for URLs of the service; see `Bearers`."""
        return self if url.startswith(f"{self.base_url}/") else None

    async def token(self) -> str | None:
        """The token as it was last read."""
        return self.current

    async def after(self, status: int, headers: Iterable[tuple[str, str]], operation: str, token: str | None) -> bool:  # noqa: ARG002
        """Whether the token was refused and there is a new one; see `TokenSource`.

        Raises:
            UnreachableError: the service of this token has ended, and another program refused it.
        """
        if status != 401:
            return False
        if token == self.current:
            await self._reload()
        return token != self.current  # a concurrent request may have reloaded it

    async def _reload(self) -> None:
        published = read_published(self.folder)
        try:
            proved = published and published.base_url == self.base_url and await published.answers(self.http)
        except RolloutlabError:
            proved = False
        if not (published and proved):
            raise UnreachableError(
                f"the embedded service at {self.base_url} has ended during the request; another program, or a service "
                "that is still starting, answers there now",
                hint="run the cell again, or %%chat NAME --resume where some completions had arrived",
            )
        self.current = published.token
