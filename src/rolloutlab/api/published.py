"""What the embedded service publishes in its folder, and whether what answers there is that service."""

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.http.proof import proves
from rolloutlab.errors import RolloutlabError, UnreachableError

_PATIENCE = 15.0


@dataclass(frozen=True)
class Published:
    """The addresses of a service, the policy that it runs, its process, what tells it from others, and its token."""

    base_url: str
    inference_base_url: str
    policy: str
    pid: int
    instance: str
    token: str = field(repr=False)

    async def answers(self, http: HttpClient, patience: float = _PATIENCE) -> bool:
        """Whether the service answers at its address and proves that it knows the token, which is not sent.

        patience: seconds without any byte of an answer. RolloutlabError when nothing answers, or nothing that is JSON.
        """
        nonce, url = secrets.token_hex(16), f"{self.base_url}/v1/health"
        answer = await http.request("GET", url, params={"nonce": nonce}, patience=patience, retry=False)
        return proves(answer, self.token, nonce, self.base_url) and answer.get("instance") == self.instance


def read_published(folder: Path) -> Published | None:
    """What is in a service's folder; None where no service has published itself, or only half is there."""
    try:
        known = dict(json.loads((folder / "service.json").read_text()))
        texts = {name: str(known[name]) for name in ("base_url", "inference_base_url", "policy", "instance")}
        return Published(**texts, pid=int(known["pid"]), token=(folder / "token").read_text())
    except (OSError, ValueError, KeyError, TypeError):
        return None


@dataclass
class FolderToken:
    """The token for one address. Where it is refused the folder is read again: the service may have started anew there.

    Another token is sent only to what has proved that it knows it.
    """

    folder: Path
    base_url: str
    current: str = field(repr=False, compare=False)
    http: HttpClient = field(repr=False, compare=False)

    def of(self, url: str) -> "FolderToken | None":
        """Itself for addresses of the service; see `Bearers`."""
        return self if url.startswith(f"{self.base_url}/") else None

    async def token(self) -> str | None:
        """The token as it was last read."""
        return self.current

    async def after(self, status: int, headers: Iterable[tuple[str, str]], operation: str, token: str | None) -> bool:  # noqa: ARG002
        """Whether the token was refused and there is another one by now; see `Bearer`.

        Raises:
            UnreachableError: what refused it is not the service that it is the token of, which has ended.
        """
        if status != 401:
            return False
        if token == self.current:
            await self._read_again()
        return token != self.current  # another request may have read it meanwhile

    async def _read_again(self) -> None:
        """Take the token of the service that is there now, which may go on to refuse that one."""
        published = read_published(self.folder)
        try:
            proved = published and published.base_url == self.base_url and await published.answers(self.http)
        except RolloutlabError:
            proved = False
        if not (published and proved):
            raise UnreachableError(
                f"the embedded service at {self.base_url} has ended: the request was broken off, and what answers now "
                "is another program, or a service that is still starting",
                hint="run the cell again, or %%chat NAME --resume where some completions had arrived",
            )
        self.current = published.token
