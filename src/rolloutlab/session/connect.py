"""Which service the notebook talks to."""

import getpass
from dataclasses import replace
from functools import cached_property

from rolloutlab.auth.keys import keep_key, kept_key
from rolloutlab.connection import Connection, connected, described, inspect
from rolloutlab.errors import InputError, SignInError
from rolloutlab.session.base import DEFAULT_MODEL
from rolloutlab.session.search import SearchCalls
from rolloutlab.session.sign_in import SignInCalls
from rolloutlab.settings import Address, Settings
from rolloutlab.views.front_end import surroundings


class ConnectCalls(SearchCalls, SignInCalls):
    """From one service to another."""

    def connect(
        self,
        service: str | None = None,
        *,
        inference: str | None = None,
        key_env: str | None = None,
        key_keyring: bool = False,
        project: str | None = None,
        search: str | None = None,
        insecure_http: bool = False,
    ) -> Connection:
        """Talk to another service, once it has answered; without an argument, say which it is now.

        service: `embedded`, a profile of the settings file, or an address. inference: where chat completions have an
        address of their own. key_env: the environment variable that holds the key. key_keyring: the keyring of this
        machine holds it; where it has none it is asked for, unseen, and kept. project: TEAM/PROJECT.
        search: the address of a collection of a Chroma where `search` looks from now on, or `lab`; the service stays.
        insecure_http: let the key go to an http address inside your own network, unencrypted, until this session ends.

        Raises:
            InputError: no such profile, an argument is wrong, or the key would go unencrypted.
            UnreachableError: nothing answers there.
            SignInError: it wants a key, or another one, or you to sign in first. ServiceError: it is no such service.
            After any of them the notebook talks to the service that it talked to before.
        """
        if search is not None:
            if service or inference or project or key_keyring:
                raise InputError("a service and a place to search are two things", hint=f"%connect --search {search}")
            if insecure_http:
                self._http.unencrypted.allow(search)
            self.settings = self._searching(search, key_env)
            return described(self._http, self.embedded, self._bearing_settings(self.settings))
        options = {
            "inference": inference,
            "key_env": key_env,
            "key_keyring": key_keyring or None,
            "project": project,
        }
        if service is None and not any(options.values()) and not insecure_http:
            return described(self._http, self.embedded, self._bearing_settings(self.settings))
        wanted = replace(connected(self._configured, self.settings, service, options), search=self.settings.search)
        self._check_encrypted(wanted.service, insecure_http=insecure_http)
        wanted, typed = self._with_key(wanted)
        try:
            found = inspect(self._http, self.embedded, self._bearing_settings(wanted))
        except SignInError as error:
            if wanted.service and wanted.service.key_keyring:
                again = f"%connect {wanted.service.base_url} --key-keyring"
                hint = again if typed else f"%logout {wanted.service.base_url}"
                raise SignInError(error.message, hint=hint) from None
            raise
        if typed and wanted.service:
            keep_key(wanted.service, typed)
        before, self.settings = self.settings.service, wanted
        self.seen |= {*found.models}
        if before:
            self._former.insert(0, before)
        if (before and before.base_url) != (found.address and found.address.base_url):
            self._selected = DEFAULT_MODEL
        return found

    def _check_encrypted(self, address: Address | None, *, insecure_http: bool) -> None:
        """InputError where the key of a service would go unencrypted, before it is asked for or sent."""
        for url in {address.base_url, address.inference_base_url} if address else ():
            if insecure_http:
                self._http.unencrypted.allow(url)
            if address and (address.token or address.key_keyring):
                self._http.unencrypted.check(url)

    def _with_key(self, settings: Settings) -> tuple[Settings, str | None]:
        """The settings with the key of the keyring, where it is there, and what was typed where it had none."""
        address = settings.service
        if address is None or not address.key_keyring:
            return settings, None
        kept = kept_key(address)
        typed = None if kept else self._typed_key(address.base_url)
        return replace(settings, service=replace(address, token=kept or typed)), typed

    def _typed_key(self, url: str) -> str:
        from IPython import get_ipython

        hint = f"%connect {url} --key-env ROLLOUTLAB_API_KEY"
        if not surroundings(get_ipython()).asks:
            raise InputError(f"the keyring has no key for {url}, and nobody is here to type it", hint=hint)
        typed = getpass.getpass(f"API key of {url} (it is not shown): ").strip()
        if not typed:
            raise InputError("no key was typed", hint=f"%connect {url} --key-keyring")
        return typed

    def _bearing_settings(self, settings: Settings) -> Settings:
        return replace(settings, service=self._bearing(settings.service)) if settings.service else settings

    @cached_property
    def _configured(self) -> Settings:
        """The settings before the first `connect`, which each starts from."""
        return self.settings
