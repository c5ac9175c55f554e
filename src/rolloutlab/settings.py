"""Where the lab lives and which service it talks to; from the environment, then the settings file, then defaults."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import platformdirs

from rolloutlab.errors import InputError
from rolloutlab.settings_file import (
    CHECKS,
    EMBEDDED,
    Price,
    Profile,
    SettingsFile,
    inference_url,
    read_file,
    service_url,
    unknown_profile,
)

_DEFAULTS: Mapping[str, Any] = {"policy": "practice", "linger": 60.0, "project": None, "profile": EMBEDDED}


class TokenSource(Protocol):
    """A token that may be renewed while requests are under way."""

    async def token(self) -> str | None:
        """The token as it is now; None before a sign-in."""

    async def after(self, status: int, headers: Iterable[tuple[str, str]], operation: str, token: str | None) -> bool:
        """Whether, after this answer to a request that bore a token, it is to be sent once more."""


class Bearers(Protocol):
    """Tokens of several servers."""

    def of(self, url: str) -> TokenSource | None:
        """The one that requests to an address may carry."""


@dataclass(frozen=True)
class Address:
    """A service: `base_url` excludes /v1, `inference_base_url` ends in it. `token`: the bearer token, or who has it.

    project: TEAM/PROJECT, under which the service counts tokens. key_env: where the token came from. key_keyring: or
    whether the keyring of this machine holds it.
    """

    base_url: str
    inference_base_url: str
    token: str | Bearers | None = None
    project: str | None = None
    key_env: str | None = field(default=None, compare=False)
    key_keyring: bool = field(default=False, compare=False)

    @property
    def headers(self) -> dict[str, str]:
        """What every request says besides its token.

        The specification leaves the brand out of the project header's name; the clients of OpenAI write it so.
        """
        return {"Vendor-Project": self.project, "OpenAI-Project": self.project} if self.project else {}

    def __repr__(self) -> str:
        return f"Address({self.base_url!r}, {self.inference_base_url!r})"


@dataclass(frozen=True)
class Embedding:
    """An embedding model: an address, with the model's `name` there, or what sentence-transformers loads."""

    model: str
    name: str | None = None
    key_env: str | None = None


@dataclass(frozen=True)
class Served:
    """A collection of a Chroma, where `%search` looks. key_env: the variable that holds its key."""

    url: str
    key_env: str | None = None


@dataclass(frozen=True)
class Settings:
    """What one process works with.

    home: the lab folder. service: an address, or None for the embedded service. policy: what the embedded service
    loads. linger: seconds that the embedded service goes on without anyone attached. project: what tokens are counted
    under, unless the service has its own. embedding: by what texts are compared. search: where `%search` looks, None
    for the lab. client_metadata_url: where our client ID metadata document is, for servers to read who signs in.
    prices: by model, in dollars per million tokens. profiles: services by name. file: the settings file,
    whether there is one or not. origins: where each setting came from, in a word.
    """

    home: Path
    service: Address | None = None
    policy: str = "practice"
    linger: float = 60.0
    project: str | None = None
    embedding: Embedding | None = None
    search: Served | None = None
    client_metadata_url: str | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    file: Path | None = field(default=None, compare=False)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def database(self) -> Path:
        return self.home / "lab.db"

    @property
    def search_database(self) -> Path:
        return self.home / "search.db"

    @property
    def sign_in_folder(self) -> Path:
        return self.home / "sign-in"

    @property
    def service_folder(self) -> Path:
        return self.home / "service"


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Settings from the variables ROLLOUTLAB_..., whose table is in the README, and from the settings file.

    Raises:
        InputError: a variable or the file is wrong; the message names the one, or file and line of the other.
    """
    named = environment.get("ROLLOUTLAB_SETTINGS")
    path = Path(named or Path(platformdirs.user_config_dir("rolloutlab")) / "settings.toml").expanduser().absolute()
    file = read_file(path, needed=bool(named))
    read = {name: _setting(name, environment, file) for name in CHECKS}
    home, policy, linger, project = (read[name][0] for name in ("home", "policy", "linger", "project"))
    service, origin = _service(environment, file, read)
    embedding, model, key_env = (read[name][0] for name in ("embedding", "embedding_model", "embedding_key_env"))
    search, search_key_env = (read[name][0] for name in ("search", "search_key_env"))
    return Settings(
        home=home,
        service=service,
        policy=policy,
        linger=linger,
        project=project,
        embedding=Embedding(embedding, model, key_env) if embedding else None,
        search=Served(search, search_key_env) if search else None,
        client_metadata_url=read["client_metadata_url"][0],
        prices=file.prices,
        profiles=file.profiles,
        file=path,
        origins={name: origin for name, (_, origin) in read.items() if name != "profile"} | {"service": origin},
    )


def profile_address(profile: Profile, environment: Mapping[str, str], project: str | None = None) -> Address:
    """The address that a profile names, with the key that its variable holds now; `project` where it has none."""
    key = environment.get(profile.api_key_env) if profile.api_key_env else None
    inference = profile.inference_url or f"{profile.url}/v1"
    return Address(profile.url, inference, key or None, profile.project or project, profile.api_key_env)


def named_policy(name: str) -> str:
    """A policy's name in full: a folder by its real path, anything else as it is."""
    path = Path(name).expanduser()
    return str(path.resolve()) if name != "practice" and path.is_dir() else name


def _setting(name: str, environment: Mapping[str, str], file: SettingsFile) -> tuple[Any, str]:
    """A setting and where it came from."""
    variable = f"ROLLOUTLAB_{name.upper()}"
    if environment.get(variable):
        value, origin = _checked(variable, environment, CHECKS[name]), variable
    elif name in file.values:
        value, origin = file.values[name], str(file.path)
    else:
        value, origin = _DEFAULTS.get(name), "default"
    if name == "home":
        folder = Path.cwd() if origin == variable else file.path.parent
        value = folder / Path(value or platformdirs.user_data_dir("rolloutlab")).expanduser()
    return value, origin


def _service(
    environment: Mapping[str, str], file: SettingsFile, read: Mapping[str, tuple[Any, str]]
) -> tuple[Address | None, str]:
    """The service to talk to, None for the embedded one, and what set it."""
    project, set_by = read["project"]
    if environment.get("ROLLOUTLAB_URL", "").strip():
        url = _checked("ROLLOUTLAB_URL", environment, service_url)
        asked = environment.get("ROLLOUTLAB_INFERENCE_URL", "").strip()
        inference = _checked("ROLLOUTLAB_INFERENCE_URL", environment, inference_url) if asked else f"{url}/v1"
        token = environment.get("ROLLOUTLAB_API_KEY") or None
        return Address(url, inference, token, project, "ROLLOUTLAB_API_KEY" if token else None), "ROLLOUTLAB_URL"
    name, origin = read["profile"]
    if name == EMBEDDED:
        return None, origin
    if name not in file.profiles:
        raise unknown_profile(name, file.profiles)
    profile = file.profiles[name]
    if set_by.startswith("ROLLOUTLAB_"):  # the environment wins over the file
        profile = replace(profile, project=project)
    return profile_address(profile, environment, project), f"profile {name}, {origin}"


def _checked(variable: str, environment: Mapping[str, str], check: Callable[[Any], Any]) -> Any:
    try:
        return check(environment[variable])
    except InputError as error:
        raise InputError(f"{variable}: {error.message}", hint=f"{variable}={error.hint}") from None
