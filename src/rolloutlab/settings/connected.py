"""The settings in force after `%connect`: decided here, without asking a service or the keyring."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rolloutlab.errors import InputError
from rolloutlab.settings.model import EMBEDDED, Address, Profile, Settings
from rolloutlab.settings.read import profile_address, unknown_profile
from rolloutlab.settings.values import inference_url, project_name, service_url, variable_name
from rolloutlab.settings.vendors import connectable, engine_plugin, vendor_of, vendors


def connect_settings(
    configured: Settings,
    now: Settings,
    service: str | None,
    options: Mapping[str, str | bool | None],
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """Return the settings in force after `%connect SERVICE` with options.

    Args:
        configured: The settings as first read.
        now: The present settings, which a call without a service changes.
        service: A profile, a URL, `embedded`, or a name of a plug-in with what it connects to; None keeps the service.
        options: `inference`, `key_env`, `key_keyring` and `project`; None for those without a value. A key in the
            keyring is not read here.
        environment: The environment variables.

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
        return _with_address(now, _change_address(now.service, given, environment), given, "")
    engine, _, rest = str(service).partition(":")
    is_engine = service not in configured.profiles and engine in connectable()
    if service is None or service == EMBEDDED or is_engine:
        for name in given.keys() - {"project"}:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} is for a service elsewhere", hint="%connect embedded --project TEAM/PROJECT")
        if service is None or service == EMBEDDED:
            return _with_address(configured, None, given, EMBEDDED)
        return _with_address(engine_plugin(engine).connect(rest, configured, environment), None, given, service)
    address = profile_address(_find_profile(configured, service), environment, configured.project)
    address = _change_address(address, given, environment)
    vendor = vendor_of(address.kind)
    if vendor and vendor.names_hold_project and not address.project:
        hint = f"%connect {address.kind}:ENTITY/PROJECT"
        raise InputError(f"{address.kind} needs the entity and the project of the models", hint=hint)
    return _with_address(configured, address, given, service)


def _change_address(address: Address, given: Mapping[str, Any], environment: Mapping[str, str]) -> Address:
    """Change an address by options, or raise InputError if the variable that should hold its key is not set."""
    is_vendors = vendor_of(address.kind) is not None
    if is_vendors and given.get("inference", address.inference_base_url) != address.inference_base_url:
        raise InputError("the key of this service goes to its own addresses alone", hint="leave out --inference")
    key_keyring = "key_env" not in given and given.get("key_keyring", address.key_keyring)
    key_env = None if key_keyring else given.get("key_env", address.key_env)
    if key_env and not environment.get(key_env):
        message = f"the environment variable {key_env}, which should hold the key, is not set"
        other = f"%connect {address.kind}:{address.project} --key-keyring" if is_vendors else None
        raise InputError(message, hint=other or f"%env {key_env}=")
    return replace(
        address,
        inference_base_url=given.get("inference", address.inference_base_url),
        token=environment[key_env] if key_env else None if key_keyring else address.token,
        key_env=key_env,
        key_keyring=key_keyring,
        project=given.get("project", address.project),
    )


def _find_profile(configured: Settings, service: str) -> Profile:
    """Find the profile of a name, or make one of a URL or of `wandb:ENTITY/PROJECT`."""
    if service not in configured.profiles:
        kind, _, project = str(service).partition(":")
        if kind in vendors():
            vendor = vendors()[kind]
            try:
                named = project_name(project)
            except InputError as error:
                raise InputError(error.message, hint=f"%connect {kind}:ENTITY/PROJECT") from None
            return Profile(vendor.url, None, vendor.api_key_env, named, kind=kind)
        if re.fullmatch(r"[a-z]\w*:[^/\d][^/]*/[^/]+", str(service), re.ASCII):
            message = f"the address of {kind!r} is not known here; of a service with Tinker's API it can be given"
            raise InputError(message, hint="rolloutlab serve --engine tinker --engine-url URL, and %connect to that")
        if re.search(r"[/.:]", str(service)):
            profile = Profile(service_url(service))
            for kind, vendor in vendors().items():
                if profile.url == vendor.url:
                    raise InputError(f"{profile.url} is of the kind {kind}", hint=f"%connect {kind}:ENTITY/PROJECT")
            return profile
        raise unknown_profile(service, configured.profiles)
    profile = configured.profiles[service]
    wins = configured.origins.get("project", "").startswith("ROLLOUTLAB_")  # the environment wins over the file
    return replace(profile, project=configured.project if wins else profile.project)


def _with_address(settings: Settings, address: Address | None, given: Mapping[str, Any], service: str) -> Settings:
    """Put an address and its origin into settings. service: what was typed; empty if the service stays the same."""
    origins = dict(settings.origins)
    if service:
        origins["service"] = f"%connect {service}"
    if "project" in given:
        origins["project"] = "%connect --project"
    return replace(settings, service=address, project=given.get("project", settings.project), origins=origins)
