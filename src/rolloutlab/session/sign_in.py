"""Signing in to servers, and what one is signed in to."""

import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from rolloutlab.auth.accesses import Accesses
from rolloutlab.auth.addresses import checked_server, origin
from rolloutlab.auth.asking import Terms
from rolloutlab.auth.broker.broker import Broker
from rolloutlab.auth.broker.brokers import Brokers
from rolloutlab.auth.keys import forget_key
from rolloutlab.auth.registration import Client
from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.session.base import SessionBase
from rolloutlab.settings import Address
from rolloutlab.settings_file import EMBEDDED
from rolloutlab.views.front_end import front_end, surroundings
from rolloutlab.views.standings import Standings


class SignInCalls(SessionBase):
    """OAuth 2.1 with PKCE, through the notebook's own browser."""

    def login(
        self,
        server: str | None = None,
        *,
        keep: bool | None = None,
        paste: bool = False,
        issuer: str | None = None,
        client_id: str | None = None,
        secret_env: str | None = None,
        redirect_port: int | None = None,
        dangerously_without_pkce: bool = False,
    ) -> Standings:
        """Sign in to a server: a context server, or a service; by default the one that is connected.

        `embedded` is the context server of the embedded service, which is started for it.

        A page of its authorization server opens in the browser, which says what is asked for; the cell waits for the
        answer. keep: beyond the end of the kernel, in the keyring of this machine or in a file that only you can read,
        for every kernel of this lab; False is until it ends, None as it was. paste: ask for the address that the
        browser ends on. issuer: the authorization server, where the server does not name it. client_id: as registered
        there for rolloutlab; secret_env: the environment variable that holds its secret. redirect_port: of this
        machine, where that client, or our metadata document, is registered with the address
        http://127.0.0.1:PORT/callback; answers then come there. dangerously_without_pkce: go on where the authorization
        server does not say that it checks a proof of the code, which somebody could then steal.

        Raises:
            SignInError: it was denied, not answered, or the server cannot be trusted; the message says why.
            UnreachableError: nothing answers. InputError: the address is none that can be signed in to.
        """
        address = checked_server(self._meant(server)) if server else self._connected()
        if redirect_port is not None and not 0 < redirect_port < 65536:
            raise InputError(f"{redirect_port} is no port", hint="--redirect-port 8765")
        client, document = self._client(client_id, secret_env), self.settings.client_metadata_url
        terms = Terms(issuer, client, document, dangerously_without_pkce, redirect_port)
        access, broker = self.accesses.at(address), self._brokers.of(paste=paste)
        try:
            standing = self._http.run(access.sign_in(terms, keep=keep, consent=broker), broker.tick)
        finally:
            broker.tick()
        assert standing, "signing in has raised otherwise"
        return Standings([standing])

    def whoami(self) -> Standings:
        """Every server that this notebook is signed in to: as which client, with which scopes, until when."""
        return Standings(*self.accesses.standings())

    def logout(self, server: str | None = None) -> Standings:
        """Give the tokens of a server back and forget them, or of all; what is left.

        Of a server that one is not signed in to the key is forgotten that the keyring holds.

        Raises:
            NotFoundError: you are not signed in there.
        """
        if server and server != EMBEDDED and self._forgotten(server):
            return self.whoami()
        leaving = (
            [self.accesses.signed_in(self._running(server))]
            if server
            else [self.accesses.at(each.server) for each in self.accesses.standings()[0]]
        )
        for access in leaving:
            if not self._http.run(access.sign_out()):
                told = f"{access.server} did not say that it has ended the tokens; they are forgotten here, and expire"
                warnings.warn(told, stacklevel=2)
        return self.whoami()

    @cached_property
    def accesses(self) -> Accesses:
        """The ways in to servers."""
        return Accesses(self._brokers, self.settings.sign_in_folder)

    @cached_property
    def _brokers(self) -> Brokers:
        """Ask the person who sits at this notebook; how it is shown is found out while a cell runs."""
        from IPython import get_ipython

        return Brokers(lambda paste: Broker(front_end(surroundings(get_ipython()), paste=paste)))

    def _show_sign_ins(self) -> None:
        """Called over and over by the thread of a cell that waits for something."""
        self._brokers.tick()

    def _address(self, tick: Callable[[], None] = lambda: None) -> Address:
        return self._bearing(super()._address(tick))

    def _bearing(self, address: Address) -> Address:
        """A service, with the tokens of who signs in where it has no key."""
        if address.token is not None:
            return address
        for url in (f"{address.base_url}/v1", address.inference_base_url):
            with suppress(InputError):  # without https no token is sent, and none may be needed
                self.accesses.at(url)
        return replace(address, token=self.accesses)

    def _meant(self, server: str) -> str:
        """The address that is meant by what was said."""
        return self.embedded.context_server() if server == EMBEDDED else server

    def _forgotten(self, server: str) -> bool:
        """Whether there was a key of that server instead of a sign-in; neither the keyring nor we have it any more."""
        address = checked_server(server)
        if self.accesses.at(address).standing or not forget_key(address):
            return False

        def without(service: Address) -> Address:
            ours = service.key_keyring and origin(service.base_url) == origin(address)
            return replace(service, token=None, key_keyring=False) if ours else service

        self._former = list(map(without, self._former))
        if self.settings.service:
            self.settings = replace(self.settings, service=without(self.settings.service))
        return True

    def _running(self, server: str) -> str:
        """The same, without starting anything.

        Raises:
            NotFoundError: the embedded service is meant and does not run.
        """
        if server != EMBEDDED:
            return server
        if running := self.embedded.running():
            return f"{running.base_url}/context"
        raise NotFoundError("the embedded service does not run; name its address as %whoami does", hint="%whoami")

    def _connected(self) -> str:
        if self.settings.service is None:
            raise InputError("the embedded service needs no sign-in, its context server does", hint="%login embedded")
        return f"{self.settings.service.base_url}/v1"

    @staticmethod
    def _client(client_id: str | None, secret_env: str | None) -> Client | None:
        if client_id is None:
            if secret_env:
                raise InputError("a secret belongs to a client", hint=f"--client-id ID --secret-env {secret_env}")
            return None
        secret = os.environ.get(secret_env) if secret_env else None
        if secret_env and not secret:
            raise InputError(f"the environment variable {secret_env} is not set", hint=f"%env {secret_env}=")
        return Client(client_id, secret, "client_secret_basic" if secret else "none")
