"""Connection of a session: the service in use, its token, and `%connect` to another."""

import getpass
import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import cached_property

from rolloutlab.api import health
from rolloutlab.api.dialect import dialect_of
from rolloutlab.api.embedded import Embedded
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.http.ip_scope import on_this_machine
from rolloutlab.api.prices import Amount, amount_of
from rolloutlab.api.prices import shown as in_dollars
from rolloutlab.api.refused_fields import RefusedFields
from rolloutlab.api.wire.engine import EngineStatus
from rolloutlab.auth.api_keys import forget_key, keep_key, read_key
from rolloutlab.auth.prompt import UserPrompt
from rolloutlab.auth.session import OAuthSessions
from rolloutlab.auth.sign_in import drop_key
from rolloutlab.auth.urls import check_server
from rolloutlab.errors import InputError, NotFoundError, RolloutlabError, ServiceError, SignInError, UnreachableError
from rolloutlab.hints import as_hint
from rolloutlab.objective.preflight import count
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.settings import EMBEDDED, Address, Served, Settings, profile_address, read_settings, vendor_of, vendors
from rolloutlab.settings.connected import connect_settings
from rolloutlab.widgets.html import code, for_notebook
from rolloutlab.widgets.kit.parts import chip, foot, head, hints, panel
from rolloutlab.widgets.kit.table import Heading, TableRow, table

_PATIENCE = 0.3
"""Seconds of waiting after which a line says what for."""
_SHORTEST_KEY = 8
"""Keys with fewer characters are not searched for in the values of variables, where they would occur by chance."""
_NO_LIST = "it does not list its models: %model NAME_OR_UUID selects one"
_SELECT = "%model PROJECT/NAME --base BASE selects one"
_COLUMNS = (Heading("setting"), Heading("value"), Heading("from", middle=True))


@dataclass(frozen=True)
class Connection:
    """The service in use.

    Attributes:
        settings: The settings in force.
        state: Whether the service answers, in words.
        models: The models that it listed.
        trains: Whether it trains models; None if that is not known.
        engine: The engine that samples and trains for it; None if that is not known.
        spent: How much of its budget is spent; None without a budget.
        is_silent: Whether it does not answer. `state` is then the error.
    """

    settings: Settings
    state: str
    models: tuple[str, ...] = ()
    trains: bool | None = None
    engine: EngineStatus | None = None
    spent: Amount | None = None
    is_silent: bool = False

    @property
    def address(self) -> Address | None:
        """The service; None for the embedded one."""
        return self.settings.service

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value and origin of each setting."""
        settings, address = self.settings, self.settings.service
        shown = [("service", address.base_url if address else EMBEDDED)]
        if address and address.kind != "rolloutlab":
            shown += [("kind", address.kind)]
        if address:
            shown += [("inference", address.inference_base_url), ("key", _describe_key(address))]
        shown += [("project", (address.project if address else settings.project) or "none")]
        shown += [("lab", str(settings.home)), ("search", settings.search.url if settings.search else "the lab")]
        if address and address.budget is not None:
            spent = "" if self.spent is None else f", of which {in_dollars(self.spent)} is spent"
            shown.append(("budget", f"{in_dollars(amount_of(address.budget))}{spent}"))
        if not address:
            shown += [("policy", settings.policy), ("linger", f"{settings.linger:g} s")]
            shown += [(name, str(value)) for name, value in settings.model.model_dump(exclude_defaults=True).items()]
        origins = {**settings.origins, "lab": settings.origins.get("home", "")}
        if address and address.project != settings.project:
            origins["project"] = origins.get("service", "")
        return [(name, value, origins.get(name, "")) for name, value in shown]

    @property
    def profiles(self) -> str:
        """Names that `%connect` takes."""
        known = ", ".join([EMBEDDED, *self.settings.profiles])
        return f"profiles: {known} (settings file: {self.settings.file})"

    def __repr__(self) -> str:
        named = max(9, *(len(name) for name, _, _ in self.rows))
        wide = max(len(value) for _, value, _ in self.rows)
        lines = [
            f"  {name:{named}}  {value:{wide}}  {origin and f'({origin})'}".rstrip()
            for name, value, origin in self.rows
        ]
        return escape_control_chars("\n".join([self.state, *lines, self.profiles]))

    def _repr_html_(self) -> str:
        name = self.address.base_url if self.address else "embedded service"
        first, *notes = _with_fixes(self.state)
        about = "" if self.is_silent else first.removeprefix(name).removeprefix("the embedded service").strip()
        does = {True: [chip("samples and trains", "ok")], False: [chip("samples only", "out")], None: []}
        state = [chip("no answer", "bad")] if self.is_silent else does[self.trains]
        wrong = [as_hint(first, "bad")] if self.is_silent else []
        rows = [TableRow([code(setting), value, origin]) for setting, value, origin in self.rows]
        shown = panel(
            head(name, about, *state),
            hints([*wrong, *map(as_hint, notes)]),
            table(_COLUMNS, rows, "settings"),
            foot(self.profiles),
        )
        return for_notebook(shown)


def _with_fixes(state: str) -> list[str]:
    """Split a state into lines. A hint on a line of its own is joined to the line before it."""
    return re.sub(r"\n +-> ", " -> ", state).splitlines() or [""]


def inspect(
    http: HttpClient, embedded: Embedded, settings: Settings, note: Callable[[str], None] = lambda _: None
) -> Connection:
    """Ask the service of these settings what it offers. The embedded service is not started. Raises as `health.ask`.

    note: called with a text about the wait if an answer takes long.
    """
    if (address := settings.service) is None:
        running = embedded.running()
        if running is None:
            return Connection(settings, "the embedded service is not running; it starts when it is needed")
        engine = _engine(http, running)
        other = f"\n{message} -> %service stop" if (message := embedded.other_policy()) else ""
        state = f"the embedded service runs at {running.base_url}{_engine_lines(engine)}{other}"
        return Connection(settings, state, engine=engine)
    offer = http.run(health.ask(http, address), lambda: note(f"asking {address.base_url} what it serves"), _PATIENCE)
    does = "samples and trains" if offer.trains else "samples, but does not train"
    listed = f"{count(len(offer.models), 'model')} by name" if offer.models is not None else _NO_LIST
    listed = listed if dialect_of(address).lists_models or not offer.trains else _SELECT
    engine = _engine(http, address) if offer.own else None
    state = f"{address.base_url} answers: it {does}; {listed}{_engine_lines(engine)}"
    return Connection(settings, state, offer.models or (), offer.trains, engine)


def _engine(http: HttpClient, address: Address) -> EngineStatus | None:
    """Ask a service of rolloutlab for its engine; None if it does not report it."""
    with suppress(RolloutlabError):
        return http.run(health.engine_of(http, address, own=True))
    return None


def _engine_lines(engine: EngineStatus | None) -> str:
    """Describe an engine: its name, what it does not honour, and its notes; only the notes of the engine `local`."""
    lines = engine.lines() if engine and engine.name != "local" else engine.notes if engine else []
    return "\n".join(["", *lines]) if lines else ""


def describe(
    http: HttpClient, embedded: Embedded, settings: Settings, note: Callable[[str], None] = lambda _: None
) -> Connection:
    """Do what `inspect` does; if the service does not answer, return a connection whose state is the error."""
    try:
        return inspect(http, embedded, settings, note)
    except ServiceError as error:
        return Connection(settings, "\n".join(error._render_traceback_()), is_silent=True)


def _describe_key(address: Address) -> str:
    """Say where the key of a service is, and whether it is sent unencrypted."""
    given = isinstance(address.token, str)
    encrypted = all(
        url.startswith("https://") or on_this_machine(url) for url in (address.base_url, address.inference_base_url)
    )
    if address.key_keyring:
        key = "in the keyring of this machine"
    elif address.key_env:
        key = address.key_env if given else f"{address.key_env}, which is not set"
    elif given:
        key = "given"
    else:
        key = "none; %login signs in" if encrypted else "none"
    return key if encrypted or not given else f"{key}; sent unencrypted"


def _connect_target(address: Address) -> str:
    """Return what a user types after `%connect` for a service."""
    return dialect_of(address).typed(address)


class Connector:
    """The service of a session: settings in force, HTTP client, OAuth tokens, embedded service, former addresses.

    Args:
        settings: None reads the environment and the settings file on first use.
        http: the client.
        prompt: asks a person to sign in.
        can_ask: whether this front end can ask a person for an API key.
        waiting: makes a context that shows what is waited for.
    """

    def __init__(
        self,
        settings: Settings | None,
        http: HttpClient,
        prompt: UserPrompt,
        can_ask: Callable[[], bool],
        waiting: Callable[[], AbstractContextManager[Callable[[str], None]]],
    ) -> None:
        if settings:
            self.settings = settings
        self.http = http
        self.former: list[Address] = []
        """Services before the present one, newest first."""
        self.refused = RefusedFields()
        self._engines: dict[str, EngineStatus | None] = {}
        self._noted: set[str] = set()
        """Policies whose notes were shown."""
        self.model_ids: dict[tuple[str, str], str] = {}
        """Ids of models by service and name, once this session has registered them."""
        self.key_variables: set[str] = set()
        """Variables that were named for a key in this session, besides those of the present settings."""
        self._prompt = prompt
        self._can_ask = can_ask
        self._waiting = waiting

    @cached_property
    def settings(self) -> Settings:
        """The present settings, which `connect` replaces."""
        settings = read_settings()
        # made absolute, so that later sessions and commands use the same lab even from another working folder
        for name, path in (("ROLLOUTLAB_HOME", settings.home), ("ROLLOUTLAB_SETTINGS", settings.file)):
            if os.environ.get(name):
                os.environ[name] = str(path)
        return settings

    @cached_property
    def embedded(self) -> Embedded:
        """The embedded service of the lab folder."""
        return Embedded(self.settings, self.http)

    @cached_property
    def oauth(self) -> OAuthSessions:
        """The OAuth session of each server."""
        return OAuthSessions(self._prompt, self.settings.sign_in_folder)

    @cached_property
    def _configured(self) -> Settings:
        """The settings before the first `connect`. Each named service starts from them, not from the one before it."""
        return self.settings

    def reread_policy(self) -> Settings:
        """Update the policy from the environment and the settings file, and return the present settings.

        So `%env ROLLOUTLAB_POLICY=...` has an effect in a kernel that was used before. If the service still runs with
        another policy, `Embedded.address` raises an error that says so.
        """
        origin = self.settings.origins.get("policy", "%")  # no origin: a caller gave the settings, which stay
        if self.settings.service is None and not origin.startswith("%"):  # %: `%connect tinker:MODEL` set the policy
            now = read_settings()
            if (now.policy, now.model) != (self.settings.policy, self.settings.model):
                self.settings = replace(self.settings, policy=now.policy, model=now.model, origins=now.origins)
                self.embedded.settings = self.settings
        return self.settings

    @property
    def name(self) -> str:
        """The present service as the lab records it with a job: its address, or `embedded`."""
        return self.settings.service.base_url if self.settings.service else EMBEDDED

    def close(self) -> None:
        """Close the HTTP client and detach from the embedded service."""
        self.http.close()
        if "embedded" in self.__dict__:
            self.__dict__.pop("embedded").close()

    def address(self, progress: Callable[[str], None] | None = None, *, start_empty: bool = False) -> Address:
        """Return the present service with its token; start the embedded one if it does not run.

        progress: called with a note again and again while the service starts; by default the notes are shown.
        start_empty: as of `Embedded.address`.
        """
        if service := self.reread_policy().service:
            return self.with_token(service)
        return replace(self._start_embedded(progress, start_empty=start_empty), project=self.settings.project)

    def _start_embedded(self, progress: Callable[[str], None] | None = None, *, start_empty: bool = False) -> Address:
        if progress:
            return self.embedded.address(progress, start_empty=start_empty)
        with self._waiting() as note:
            return self.embedded.address(note, start_empty=start_empty)

    def running(self) -> Address | None:
        """Return the present service, starting nothing; None if it is the embedded one and does not run or answer."""
        service = self.settings.service
        with suppress(UnreachableError):
            return self.with_token(service) if service else self.embedded.running()
        return None

    def program_variables(self) -> dict[str, str]:
        """Return the environment variables for programs: those of this process but `ROLLOUTLAB_...` and keys.

        Left out are the keys of the settings and of every service that this session has connected to or named, and any
        variable whose value contains such a key.
        """
        known = [address for address in (self.settings.service, *self.former) if address]
        named = {address.key_env for address in known if address.key_env}
        names = self.settings.key_variables | self.key_variables | named
        keys = [*map(os.environ.get, names), *(address.token for address in known)]
        secrets = [key for key in keys if isinstance(key, str) and len(key) >= _SHORTEST_KEY]
        return {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("ROLLOUTLAB_") and name not in names and not any(key in value for key in secrets)
        }

    def engine(self, address: Address, *, again: bool = False) -> EngineStatus | None:
        """Ask a service for its engine, once or, with `again`, each time; None if it is not known."""
        url = address.base_url
        if again or url not in self._engines:
            # a service that has reported an engine before is rolloutlab's own
            own = self.settings.service is None or self._engines.get(url) is not None
            with suppress(RolloutlabError):
                self._engines[url] = self.http.run(health.engine_of(self.http, address, own=own))
        return self._engines.get(url)

    def policy_notes(self) -> list[str]:
        """Return notes about the embedded service's policy, once for each. `%connect` shows those of other services."""
        policy = self.settings.policy
        if self.settings.service is not None or policy in self._noted or (running := self.running()) is None:
            return []
        self._noted.add(policy)
        engine = self.engine(running)
        return engine.notes if engine else []

    def address_of(self, base_url: str, *, start: bool, hint: str) -> Address:
        """Find a service by its address or `embedded`, as the lab records it.

        The embedded service has another port each time it starts, so any address on this machine may mean it.

        Args:
            base_url: the address.
            start: start the embedded service if it does not run.
            hint: what to type, for the error if it does not run and is not started.

        Raises:
            NotFoundError: the address is neither known nor on this machine.
            UnreachableError: the embedded service does not run, and `start` is False.
        """
        if service := self.known_address(base_url):
            return self.with_token(service)
        self.reread_policy()
        running = self._start_embedded() if start else self.embedded.running()
        if running is None:
            raise UnreachableError("the embedded service does not run", hint=hint)
        return replace(running, project=self.settings.project)

    def known_address(self, base_url: str) -> Address | None:
        """Find a service, with its key, by its address; None is the embedded one.

        Raises:
            NotFoundError: this session does not know the address, and it is not on this machine.
        """
        settings = self.settings
        profiles = [profile_address(profile, os.environ, settings.project) for profile in settings.profiles.values()]
        for address in (settings.service, *self.former, *profiles):
            if address and address.base_url == base_url:
                return address
        if base_url == EMBEDDED or on_this_machine(base_url):
            return None
        typed = {vendor.url: f"{kind}:ENTITY/PROJECT" for kind, vendor in vendors().items()}
        hint = f"%connect {typed.get(base_url, base_url)}"
        raise NotFoundError(f"the job was sent to {base_url}, which is not connected", hint=hint)

    def with_token(self, address: Address) -> Address:
        """Give an address the tokens of OAuth sessions, if it has no token of its own."""
        if address.token is not None:
            return address
        for url in (f"{address.base_url}/v1", address.inference_base_url):
            with suppress(InputError):  # without https no token is sent, and none may be needed
                self.oauth.at(url)
        return replace(address, token=self.oauth)

    def mcp_url(self, server: str) -> str:
        """Return the URL of an MCP server; `embedded` is that of the embedded service, which is started for it."""
        if server != EMBEDDED:
            return server
        self.reread_policy()
        return f"{self._start_embedded().base_url}/context"

    def running_mcp_url(self, server: str) -> str:
        """Do what `mcp_url` does, starting nothing; NotFoundError if the embedded service does not run."""
        if server != EMBEDDED:
            return server
        if running := self.embedded.running():
            return f"{running.base_url}/context"
        raise NotFoundError("the embedded service does not run; name its address as %whoami does", hint="%whoami")

    def sign_in_url(self, server: str | None) -> str:
        """Return the URL to sign in to, of a server or of the present service.

        Raises:
            InputError: it is not encrypted, or the present service is the embedded one, which needs no sign-in.
        """
        if server:
            return check_server(self.mcp_url(server))
        if self.settings.service is None:
            raise InputError("the embedded service needs no sign-in, its context server does", hint="%login embedded")
        return f"{self.settings.service.base_url}/v1"

    def forget_key(self, server: str) -> bool:
        """Remove the API key of a service from the keyring and from here; False with an OAuth session, or no key."""
        url = server if server == EMBEDDED else check_server(server)
        if url == EMBEDDED or self.oauth.at(url).status or not forget_key(url):
            return False
        self.former = [drop_key(address, url) for address in self.former]
        if self.settings.service:
            self.settings = replace(self.settings, service=drop_key(self.settings.service, url))
        return True

    def search_at(self, served: Served | None) -> Connection:
        """Set what `search` queries from now on; None is the lab."""
        self.key_variables |= self.settings.key_variables
        self.settings = replace(self.settings, search=served)
        return describe(self.http, self.embedded, self._with_token(self.settings))

    def connect(
        self, service: str | None, options: Mapping[str, str | bool | None], *, insecure_http: bool = False
    ) -> Connection:
        """Change to another service, once it has answered; options: as of `connected`. Raises as `Session.connect`.

        Without a service and options nothing changes, and the present connection is described.
        """
        if service is None and not any(options.values()) and not insecure_http:
            with self._waiting() as note:
                return describe(self.http, self.embedded, self._with_token(self.settings), note)
        target = replace(
            connect_settings(self._configured, self.settings, service, options), search=self.settings.search
        )
        self.key_variables |= self.settings.key_variables | target.key_variables
        self._check_encrypted(target.service, insecure_http=insecure_http)
        target, typed = self._with_key(target)
        same = (target.policy, target.model) == (self.settings.policy, self.settings.model)
        embedded = self.embedded if same else Embedded(target, self.http)
        try:
            with self._waiting() as note:
                connection = inspect(self.http, embedded, self._with_token(target), note)
        except SignInError as error:
            if target.service and target.service.key_keyring:
                again = f"%connect {_connect_target(target.service)} --key-keyring"
                hint = again if typed else f"%logout {target.service.base_url}"
                raise SignInError(error.message, hint=hint) from None
            if target.service and vendor_of(target.service.kind):
                hint = f"%env {target.service.key_env}=, or %connect {_connect_target(target.service)} --key-keyring"
                raise SignInError(error.message, hint=hint) from None
            raise
        if typed and target.service:
            keep_key(target.service, typed)  # only now: a key that the service refuses is not kept
        if target.service:
            self._engines.pop(target.service.base_url, None)
            self._engines |= {target.service.base_url: connection.engine} if connection.engine else {}
        if not same:
            self.embedded.close()
            self.embedded = embedded
        before, self.settings = self.settings.service, target
        if before:
            self.former.insert(0, before)
        return connection

    def _check_encrypted(self, address: Address | None, *, insecure_http: bool) -> None:
        """Raise InputError if the key of a service would be sent unencrypted, before it is asked for or sent."""
        for url in {address.base_url, address.inference_base_url} if address else ():
            if insecure_http:
                self.http.unencrypted.allow(url)
            if address and (address.token or address.key_keyring):
                self.http.unencrypted.check(url)

    def _with_key(self, settings: Settings) -> tuple[Settings, str | None]:
        """Read the key from the keyring, or prompt for it. Returns the settings with it, and what was typed, if any."""
        address = settings.service
        if address is None or not address.key_keyring:
            return settings, None
        stored = read_key(address)
        typed = None if stored else self._ask_key(address.base_url, _connect_target(address))
        return replace(settings, service=replace(address, token=stored or typed)), typed

    def _ask_key(self, url: str, service: str) -> str:
        hint = f"%connect {service} --key-env ROLLOUTLAB_API_KEY"
        if not self._can_ask():
            raise InputError(f"the keyring has no key for {url}, and this front end cannot ask for it", hint=hint)
        typed = getpass.getpass(f"API key of {url} (it is not shown): ").strip()
        if not typed:
            raise InputError("no key was typed", hint=f"%connect {service} --key-keyring")
        return typed

    def _with_token(self, settings: Settings) -> Settings:
        return replace(settings, service=self.with_token(settings.service)) if settings.service else settings
