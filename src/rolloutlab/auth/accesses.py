"""The servers that a notebook is signed in to, each with its own tokens."""

from collections.abc import Iterator
from pathlib import Path

from rolloutlab.auth.addresses import checked_server
from rolloutlab.auth.bearer import Access
from rolloutlab.auth.consent import Consent
from rolloutlab.auth.kept import Either, kept_servers
from rolloutlab.errors import NotFoundError
from rolloutlab.resource import canonical


class Accesses:
    """One way in per server.

    folder: where grants are kept that outlive the kernel, once somebody has asked for that.
    """

    def __init__(self, consent: Consent, folder: Path) -> None:
        self._consent = consent
        self._folder = folder
        self._known: dict[str, Access] = {}

    def __iter__(self) -> Iterator[Access]:
        """All that somebody has used, and those whose grants were kept."""
        for server in kept_servers(self._folder):
            self.at(server)
        return iter(list(self._known.values()))

    def of(self, url: str) -> Access | None:
        """The way in whose token requests to an address may carry: the one that covers least beside it."""
        found = [access for access in self._known.values() if access.covers(url)]
        return max(found, key=lambda access: len(access.resource), default=None)

    def at(self, server: str) -> Access:
        """The way in to a server; one that was kept is used without asking.

        Raises:
            InputError: it is no address of a server that can be signed in to.
        """
        address = checked_server(server)
        if address not in self._known:
            self._known[address] = Access(address, self._consent, Either(self._folder))
        return self._known[address]

    def signed_in(self, server: str) -> Access:
        """The way in to a server that one is signed in to; NotFoundError when one is not."""
        access = self._known.get(canonical(server)) or self.at(server)
        if access.standing is None:
            raise NotFoundError(f"you are not signed in to {access.server}", hint=f"%login {access.server}")
        return access
