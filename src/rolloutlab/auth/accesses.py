"""The servers that a notebook is signed in to, each with its own tokens."""

from pathlib import Path

from rolloutlab.auth.addresses import checked_server, covers
from rolloutlab.auth.bearer import Access, Standing
from rolloutlab.auth.consent import Consent
from rolloutlab.auth.kept import Either, kept_servers
from rolloutlab.errors import LabError, NotFoundError
from rolloutlab.resource import canonical


class Accesses:
    """One way in per server.

    folder: where grants are kept that outlive the kernel, once somebody has asked for that.
    """

    def __init__(self, consent: Consent, folder: Path) -> None:
        self._consent = consent
        self._folder = folder
        self._known: dict[str, Access] = {}

    def servers(self) -> list[str]:
        """Addresses that somebody has used here, and those that something is kept for; no keyring is opened for it."""
        return list(dict.fromkeys([*self._known, *kept_servers(self._folder)]))

    def standings(self) -> tuple[list[Standing], list[LabError]]:
        """Where one is signed in; and why grants that were kept are not used: others may read them, or nobody can."""
        found: list[Standing] = []
        unused: list[LabError] = []
        for server in self.servers():
            try:
                standing = self.at(server).standing
            except LabError as error:
                unused.append(error)
            else:
                found += [standing] if standing else []
        return found, unused

    def of(self, url: str) -> Access | None:
        """The way in whose token requests to an address may carry: the one that covers least beside it."""
        found = [(resource, access) for access in self._known.values() if covers(resource := _resource(access), url)]
        return max(found, key=lambda each: len(each[0]), default=(None, None))[1]

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


def _resource(access: Access) -> str:
    """What a token is for; a grant that cannot be used is told to who asks its own server, and stops nobody else."""
    try:
        return access.resource
    except LabError:
        return access.server
