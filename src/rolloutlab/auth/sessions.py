"""OAuth sessions of a notebook, one per server."""

from pathlib import Path

from rolloutlab.api.http.urls import canonical_resource
from rolloutlab.auth.prompt import UserPrompt
from rolloutlab.auth.session import OAuthSession, SignInStatus
from rolloutlab.auth.token_store import TieredStore, kept_servers
from rolloutlab.auth.urls import checked_server, covers
from rolloutlab.errors import LabError, NotFoundError


class OAuthSessions:
    """The OAuth session of each server. folder: for grants that are kept beyond the kernel."""

    def __init__(self, prompt: UserPrompt, folder: Path) -> None:
        self._prompt = prompt
        self._folder = folder
        self._known: dict[str, OAuthSession] = {}

    def servers(self) -> list[str]:
        """URLs of servers used in this notebook and of stored grants; opens no keyring."""
        return list(dict.fromkeys([*self._known, *kept_servers(self._folder)]))

    def statuses(self) -> tuple[list[SignInStatus], list[LabError]]:
        """The present sign-ins, and the errors of stored grants that cannot be used."""
        statuses: list[SignInStatus] = []
        errors: list[LabError] = []
        for server in self.servers():
            try:
                status = self.at(server).status
            except LabError as error:
                errors.append(error)
            else:
                statuses += [status] if status else []
        return statuses, errors

    def of(self, url: str) -> OAuthSession | None:
        """The session whose token a request to a URL may carry: the one with the most specific resource."""
        matches = [(resource, each) for each in self._known.values() if covers(resource := _resource(each), url)]
        return max(matches, key=lambda each: len(each[0]), default=(None, None))[1]

    def at(self, server: str) -> OAuthSession:
        """The session of a server, with a stored grant if there is one; InputError when it is no such URL."""
        address = checked_server(server)
        if address not in self._known:
            self._known[address] = OAuthSession(address, self._prompt, TieredStore(self._folder))
        return self._known[address]

    def signed_in(self, server: str) -> OAuthSession:
        """The session of a server that one is signed in to; NotFoundError without a sign-in."""
        session = self._known.get(canonical_resource(server)) or self.at(server)
        if session.status is None:
            raise NotFoundError(f"you are not signed in to {session.server}", hint=f"%login {session.server}")
        return session

    def signed_in_everywhere(self) -> list[OAuthSession]:
        """The OAuth session of each server that one is signed in to."""
        return [self.at(each.server) for each in self.statuses()[0]]


def _resource(session: OAuthSession) -> str:
    try:
        return session.resource
    except LabError:  # an unusable grant must not break requests to other servers; its own report the error
        return session.server
