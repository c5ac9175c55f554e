"""Which service a notebook talks to, and how it comes to talk to another."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from rolloutlab.client import health
from rolloutlab.client.embedded import Embedded
from rolloutlab.errors import InputError, NotFoundError, ServiceError
from rolloutlab.http import Http
from rolloutlab.objective.preflight import count
from rolloutlab.reach import on_this_machine
from rolloutlab.settings import Address, Settings, profile_address
from rolloutlab.settings_file import (
    EMBEDDED,
    Profile,
    inference_url,
    project_name,
    service_url,
    unknown_profile,
    variable_name,
)
from rolloutlab.visible import as_written, visible

_NO_LIST = "it does not list its models: %model UUID selects one by its id"


@dataclass(frozen=True)
class Connection:
    """What a notebook talks to: `settings` as they are in force, in words whether it answers, and `models` it names."""

    settings: Settings
    state: str
    models: tuple[str, ...] = ()

    @property
    def address(self) -> Address | None:
        """The service's; None for the embedded one."""
        return self.settings.service

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value and origin of each setting."""
        settings, address = self.settings, self.settings.service
        open_ = "; sent unencrypted" if address and not _sealed(address) else ""
        shown = [("service", address.base_url if address else EMBEDDED)]
        if address:
            shown += [
                ("inference", address.inference_base_url),
                ("key", _key(address) + (open_ if address.token else "")),
            ]
        shown += [("project", (address.project if address else settings.project) or "none")]
        shown += [("lab", str(settings.home)), ("search", settings.search.url if settings.search else "the lab")]
        if not address:
            shown += [("policy", settings.policy), ("linger", f"{settings.linger:g} s")]
        origins = {**settings.origins, "lab": settings.origins.get("home", "")}
        if address and address.project != settings.project:
            origins["project"] = origins.get("service", "")
        return [(name, value, origins.get(name, "")) for name, value in shown]

    @property
    def profiles(self) -> str:
        """What else `%connect` knows by name."""
        known = ", ".join([EMBEDDED, *self.settings.profiles])
        return f"profiles: {known} (settings file: {self.settings.file})"

    def __repr__(self) -> str:
        wide = max(len(value) for _, value, _ in self.rows)
        lines = [
            f"  {name:9}  {value:{wide}}  {origin and f'({origin})'}".rstrip() for name, value, origin in self.rows
        ]
        return visible("\n".join([self.state, *lines, self.profiles]))

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        head = "<tr><th>setting</th><th>value</th><th>from</th></tr>"
        return as_written(f"<p>{escape(self.state)}</p><table>{head}{rows}</table><p>{escape(self.profiles)}</p>")


def connected(
    configured: Settings,
    now: Settings,
    service: str | None,
    options: Mapping[str, str | bool | None],
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """The settings in force after `%connect SERVICE` with options.

    configured: as read at first. now: as in force, which a call without a service goes on from. options: `inference`,
    `key_env`, `key_keyring` and `project`; None where they are not given. A key of the keyring is left to be read.

    Raises:
        InputError: there is no such profile, an option is wrong, or the variable that should hold the key is not set.
    """
    checks: Mapping[str, Callable[[Any], Any]] = {
        "inference": inference_url,
        "key_env": variable_name,
        "key_keyring": bool,
        "project": project_name,
    }
    given = {name: checks[name](value) for name, value in options.items() if value is not None}
    if given.keys() >= {"key_env", "key_keyring"}:
        raise InputError("a key is in a variable or in the keyring", hint=f"%connect {service or ''} --key-keyring")
    if service is None and now.service:
        return _settled(now, _changed(now.service, given, environment), given, "")
    if service is None or service == EMBEDDED:
        for name in given.keys() - {"project"}:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} is for a service elsewhere", hint="%connect embedded --project TEAM/PROJECT")
        return _settled(configured, None, given, EMBEDDED)
    address = profile_address(_profile(configured, service), environment, configured.project)
    return _settled(configured, _changed(address, given, environment), given, service)


def _changed(address: Address, given: Mapping[str, Any], environment: Mapping[str, str]) -> Address:
    """The address with what was given for it; InputError when the variable that should hold its key is not set."""
    key_keyring = "key_env" not in given and given.get("key_keyring", address.key_keyring)
    key_env = None if key_keyring else given.get("key_env", address.key_env)
    if key_env and not environment.get(key_env):
        raise InputError(
            f"the environment variable {key_env}, which should hold the key, is not set", hint=f"%env {key_env}="
        )
    return replace(
        address,
        inference_base_url=given.get("inference", address.inference_base_url),
        token=environment[key_env] if key_env else None if key_keyring else address.token,
        key_env=key_env,
        key_keyring=key_keyring,
        project=given.get("project", address.project),
    )


def inspect(http: Http, embedded: Embedded, settings: Settings) -> Connection:
    """What answers where the settings point; all that `health.ask` raises. The embedded service is not started."""
    address = settings.service
    if address is None:
        running = embedded.running()
        where = f"runs at {running.base_url}" if running else "is not running; it starts when it is needed"
        return Connection(settings, f"the embedded service {where}")
    offer = http.run(health.ask(http, address))
    does = "samples and trains" if offer.trains else "samples, but does not train"
    listed = f"{count(len(offer.models), 'model')} by name" if offer.models is not None else _NO_LIST
    return Connection(settings, f"{address.base_url} answers: it {does}; {listed}", offer.models or ())


def described(http: Http, embedded: Embedded, settings: Settings) -> Connection:
    """The same, where a service that does not answer is said to be so."""
    try:
        return inspect(http, embedded, settings)
    except ServiceError as error:
        return Connection(settings, "\n".join(error._render_traceback_()))


def known_address(base_url: str, settings: Settings, former: Sequence[Address]) -> Address | None:
    """The service with that address, with the key for it; None is the embedded one.

    former: what the notebook talked to before.

    Raises:
        NotFoundError: it is neither known nor on this machine.
    """
    profiles = [profile_address(profile, os.environ, settings.project) for profile in settings.profiles.values()]
    for address in (settings.service, *former, *profiles):
        if address and address.base_url == base_url:
            return address
    if base_url == EMBEDDED or on_this_machine(base_url):
        return None
    raise NotFoundError(f"the job was sent to {base_url}, which is not connected", hint=f"%connect {base_url}")


def _profile(configured: Settings, service: str) -> Profile:
    """What is asked for, as a profile: one by its name, or an address."""
    if service not in configured.profiles:
        if re.search(r"[/.:]", str(service)):
            return Profile(service_url(service))
        raise unknown_profile(service, configured.profiles)
    profile = configured.profiles[service]
    wins = configured.origins.get("project", "").startswith("ROLLOUTLAB_")  # the environment wins over the file
    return replace(profile, project=configured.project if wins else profile.project)


def _settled(settings: Settings, address: Address | None, given: Mapping[str, Any], service: str) -> Settings:
    """The settings with that service, and with who asked for it; `service` is empty where it stays the same."""
    origins = dict(settings.origins)
    if service:
        origins["service"] = f"%connect {service}"
    if "project" in given:
        origins["project"] = "%connect --project"
    return replace(settings, service=address, project=given.get("project", settings.project), origins=origins)


def _sealed(address: Address) -> bool:
    """Whether what goes to a service is read on no other machine."""
    urls = address.base_url, address.inference_base_url
    return all(url.startswith("https://") or on_this_machine(url) for url in urls)


def _key(address: Address) -> str:
    if address.key_keyring:
        return "in the keyring of this machine"
    if not address.key_env:
        return "given" if isinstance(address.token, str) else "none; %login signs in"
    return address.key_env if address.token else f"{address.key_env}, which is not set"
