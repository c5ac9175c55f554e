"""Which service the notebook talks to."""

from dataclasses import replace
from functools import cached_property

from rolloutlab.connection import Connection, connected, described, inspect
from rolloutlab.errors import InputError
from rolloutlab.session.base import DEFAULT_MODEL
from rolloutlab.session.search import SearchCalls
from rolloutlab.session.sign_in import SignInCalls
from rolloutlab.settings import Settings


class ConnectCalls(SearchCalls, SignInCalls):
    """From one service to another."""

    def connect(
        self,
        service: str | None = None,
        *,
        inference: str | None = None,
        key_env: str | None = None,
        project: str | None = None,
        search: str | None = None,
    ) -> Connection:
        """Talk to another service, once it has answered; without an argument, say which it is now.

        service: `embedded`, a profile of the settings file, or an address. inference: where chat completions have an
        address of their own. key_env: the environment variable that holds the key. project: TEAM/PROJECT.
        search: the address of a collection of a Chroma where `search` looks from now on, or `lab`; the service stays.

        Raises:
            InputError: no such profile, or an argument is wrong. UnreachableError: nothing answers there.
            SignInError: it wants a key, or another one, or you to sign in first. ServiceError: it is no such service.
            After any of them the notebook talks to the service that it talked to before.
        """
        if search is not None:
            if service or inference or project:
                raise InputError("a service and a place to search are two things", hint=f"%connect --search {search}")
            self.settings = self._searching(search, key_env)
            return described(self._http, self.embedded, self._bearing_settings(self.settings))
        options = {"inference": inference, "key_env": key_env, "project": project}
        if service is None and not any(options.values()):
            return described(self._http, self.embedded, self._bearing_settings(self.settings))
        wanted = replace(connected(self._configured, self.settings, service, options), search=self.settings.search)
        found = inspect(self._http, self.embedded, self._bearing_settings(wanted))
        before, self.settings = self.settings.service, wanted
        self.seen |= {*found.models}
        if before:
            self._former.insert(0, before)
        if (before and before.base_url) != (found.address and found.address.base_url):
            self._selected = DEFAULT_MODEL
        return found

    def _bearing_settings(self, settings: Settings) -> Settings:
        return replace(settings, service=self._bearing(settings.service)) if settings.service else settings

    @cached_property
    def _configured(self) -> Settings:
        """The settings before the first `connect`, which each starts from."""
        return self.settings
