"""The servers that a notebook is signed in to, each with its own tokens."""

from pathlib import Path

from rolloutlab.api.http.urls import canonical_resource
from rolloutlab.auth.prompt import UserPrompt
from rolloutlab.auth.session import OAuthSession, SignInStatus
from rolloutlab.auth.token_store import TieredStore, kept_servers
from rolloutlab.auth.urls import checked_server, covers
from rolloutlab.errors import LabError, NotFoundError


class OAuthSessions:
    """One way in per server.

    folder: where grants are kept that outlive the kernel, once somebody has asked for that.
    """

    def __init__(self, consent: UserPrompt, folder: Path) -> None:
        self._consent = consent
        self._folder = folder
        self._known: dict[str, OAuthSession] = {}

    def servers(self) -> list[str]:
        """Addresses that somebody has used here, and those that something is kept for; no keyring is opened for it."""
        return list(dict.fromkeys([*self._known, *kept_servers(self._folder)]))

    def standings(self) -> tuple[list[SignInStatus], list[LabError]]:
        """Where one is signed in; and why grants that were kept are not used: others may read them, or nobody can."""
        found: list[SignInStatus] = []
        unused: list[LabError] = []
        for server in self.servers():
            try:
                standing = self.at(server).standing
            except LabError as error:
                unused.append(error)
            else:
                found += [standing] if standing else []
        return found, unused

    def of(self, url: str) -> OAuthSession | None:
        """The way in whose token requests to an address may carry: the one that covers least beside it."""
        found = [(resource, access) for access in self._known.values() if covers(resource := _resource(access), url)]
        return max(found, key=lambda each: len(each[0]), default=(None, None))[1]

    def at(self, server: str) -> OAuthSession:
        """The way in to a server; one that was kept is used without asking.

        Raises:
            InputError: it is no address of a server that can be signed in to.
        """
        address = checked_server(server)
        if address not in self._known:
            self._known[address] = OAuthSession(address, self._consent, TieredStore(self._folder))
        return self._known[address]

    def signed_in(self, server: str) -> OAuthSession:
        """The way in to a server that one is signed in to; NotFoundError when one is not."""
        access = self._known.get(canonical_resource(server)) or self.at(server)
        if access.standing is None:
            raise NotFoundError(f"you are not signed in to {access.server}", hint=f"%login {access.server}")
        return access

    def signed_in_everywhere(self) -> list[OAuthSession]:
        """The OAuth session of each server that one is signed in to."""
        return [self.at(each.server) for each in self.standings()[0]]


def _resource(access: OAuthSession) -> str:
    """What a token is for; a grant that cannot be used is told to who asks its own server, and stops nobody else."""
    try:
        return access.resource
    except LabError:
        return access.server
