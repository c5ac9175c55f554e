"""The settings file: what it may hold, and where it is wrong, by its line."""

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rolloutlab.errors import InputError

EMBEDDED = "embedded"
"""What the embedded service is called: its address changes from start to start."""

_SECRET = re.compile(r"(api_?)?key|token|secret|password|bearer", re.IGNORECASE)
_KEY_ENV = 'api_key_env = "ROLLOUTLAB_API_KEY"'


@dataclass(frozen=True)
class Price:
    """What a model's tokens cost, in dollars per million."""

    prompt: float
    completion: float


@dataclass(frozen=True)
class Profile:
    """A service by name. `api_key_env` is the environment variable that holds its key."""

    url: str
    inference_url: str | None = None
    api_key_env: str | None = None
    project: str | None = None


@dataclass(frozen=True)
class SettingsFile:
    """What a settings file says; an absent one says nothing. values: those of `CHECKS`."""

    path: Path
    values: Mapping[str, Any] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)


def some_text(value: Any) -> str:
    """A text with something in it."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{value!r} is no text", hint="...")
    return value.strip()


def seconds(value: Any) -> float:
    """A number of seconds, from 0 on."""
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value):
        value = float(value)
    return _amount(value, "number of seconds", "60")


def dollars(value: Any) -> float:
    """A price in dollars, from 0 on."""
    return _amount(value, "number of dollars", "0.5")


def service_url(value: Any) -> str:
    """The address of a service, without the spaces, slashes and /v1 that may end it.

    Raises:
        InputError: it is no http or https address, or holds a password; the hint is one that would do.
    """
    url = str(value).strip()
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if host and "@" in parts.netloc:
        raise InputError("an address must not hold a user name or password", hint=f"https://{host}")
    if "://" not in url and re.fullmatch(r"[\w.-]+(:\d+)?(/\S*)?", url):
        scheme = "http" if re.match(r"localhost|127\.", url) else "https"
        raise InputError(f"{url!r} does not say http:// or https://", hint=f"{scheme}://{url}")
    if not host or parts.scheme not in {"http", "https"} or re.search(r"[\s?#]", url):
        raise InputError(f"{url!r} is no address of a service", hint="https://train.example")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def inference_url(value: Any) -> str:
    """The address that chat completions are below; it ends in /v1, which may be left out."""
    return f"{service_url(value)}/v1"


def variable_name(value: Any) -> str:
    """The name of an environment variable. What is none may be the key itself: no message shows it."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Z_][A-Z0-9_]*", value):
        raise InputError(
            "a key is given by the name of the environment variable that holds it, in capitals; that is no such name",
            hint="ROLLOUTLAB_API_KEY",
        )
    return value


def project_name(value: Any) -> str:
    """TEAM/PROJECT."""
    if not isinstance(value, str) or not re.fullmatch(r"[\w.-]+/[\w.-]+", value.strip(), re.ASCII):
        raise InputError(f"{value!r} is no project", hint="TEAM/PROJECT")
    return value.strip()


def document_url(value: Any) -> str:
    """The https address of a document, with a path."""
    parts = urlsplit(some_text(value))
    if parts.scheme != "https" or not parts.hostname or len(parts.path) < 2 or parts.fragment or parts.username:
        raise InputError(f"{value!r} is no https address of a document", hint="https://lab.example/rolloutlab.json")
    return parts.geturl()


CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "home": some_text,
    "policy": some_text,
    "linger": seconds,
    "project": project_name,
    "profile": some_text,
    "embedding": some_text,
    "embedding_model": some_text,
    "embedding_key_env": variable_name,
    "search": some_text,
    "search_key_env": variable_name,
    "client_metadata_url": document_url,
}
"""The settings that the file and the environment share."""

_PROFILE: Mapping[str, Callable[[Any], Any]] = {
    "url": service_url,
    "inference_url": inference_url,
    "api_key_env": variable_name,
    "project": project_name,
}
_PRICE: Mapping[str, Callable[[Any], Any]] = {"prompt": dollars, "completion": dollars}


def unknown_profile(name: str, profiles: Mapping[str, Profile]) -> InputError:
    """There is no profile of that name; the hint is the closest, or what the file lacks."""
    close = get_close_matches(str(name), [*profiles, EMBEDDED], n=1)
    return InputError(f"there is no profile {name!r}", hint=close[0] if close else f"[profiles.{name}] in the file")


def read_file(path: Path, *, needed: bool = False) -> SettingsFile:
    """The settings of a file; none when there is no file, unless it is `needed`.

    Raises:
        InputError: it cannot be read, is not TOML, or holds something unknown, wrong or secret; with the line.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        if needed:
            raise InputError(f"there is no settings file {path}", hint="ROLLOUTLAB_SETTINGS names one") from None
        return SettingsFile(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the settings file {path} cannot be read: {error}", hint="a text file, in UTF-8") from error
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem, _, place = str(error).partition(" (at ")
        line = re.search(r"line (\d+)", place)
        number = line[1] if line else text.count("\n") + 1
        raise InputError(
            f"{path}, line {number}: {problem}", hint='policy = "practice" is how a setting is written'
        ) from None
    return _Reader(path, text).read(parsed)


class _Reader:
    """Checks a parsed file; an error names the line."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._text = text

    def read(self, parsed: dict[str, Any]) -> SettingsFile:
        tables = {name: self._tables(parsed, name) for name in ("profiles", "prices")}
        values = self._checked(parsed, CHECKS, (), extra=tables)
        profiles = {
            name: Profile(**self._checked(table, _PROFILE, ("profiles", name), needed=("url",)))
            for name, table in tables["profiles"].items()
        }
        prices = {
            name: Price(**self._checked(table, _PRICE, ("prices", name), needed=tuple(_PRICE)))
            for name, table in tables["prices"].items()
        }
        if EMBEDDED in profiles:
            raise self._error(
                ("profiles", EMBEDDED), "embedded is the service that comes with rolloutlab", "another name"
            )
        chosen = values.get("profile", EMBEDDED)
        if chosen not in {*profiles, EMBEDDED}:
            error = unknown_profile(chosen, profiles)
            raise self._error(("profile",), error.message, error.hint or "")
        return SettingsFile(self._path, values, profiles, prices)

    def _tables(self, parsed: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
        tables = parsed.get(name, {})
        for path, table in [((name,), tables), *(((name, key), t) for key, t in _items(tables))]:
            if not isinstance(table, dict):
                raise self._error(path, f"{'.'.join(path)} is {table!r}, no table", f"[{name}.NAME]")
        return dict(tables)

    def _checked(
        self,
        table: Mapping[str, Any],
        known: Mapping[str, Callable[[Any], Any]],
        path: tuple[str, ...],
        *,
        extra: Mapping[str, Any] | None = None,
        needed: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        names = [*known, *(extra or {})]
        for name in table:
            if name not in names:
                raise self._unknown((*path, name), names)
        for name in needed:
            if name not in table:
                raise self._error(path, f"{'.'.join(path)} has no {name}", f"{name} = ...")
        return {name: self._value((*path, name), known[name], table[name]) for name in known if name in table}

    def _value(self, path: tuple[str, ...], check: Callable[[Any], Any], value: Any) -> Any:
        try:
            return check(value)
        except InputError as error:
            number = check in {seconds, dollars}
            example = error.hint if number else json.dumps(error.hint)
            raise self._error(path, f"{path[-1]}: {error.message}", f"{path[-1]} = {example}") from None

    def _unknown(self, path: tuple[str, ...], names: list[str]) -> InputError:
        if _SECRET.fullmatch(path[-1]):
            problem = f"{path[-1]}: a key has no place in a file; name the environment variable that holds it"
            return self._error(path, problem, _KEY_ENV)
        close = get_close_matches(path[-1], names, n=1)
        return self._error(path, f"unknown setting {path[-1]!r}", close[0] if close else f"one of {', '.join(names)}")

    def _error(self, path: tuple[str, ...], problem: str, hint: str) -> InputError:
        return InputError(f"{self._path}, line {line_of(self._text, path)}: {problem}", hint=hint)


def line_of(text: str, path: tuple[str, ...]) -> int:
    """The line of a TOML text that sets `path`, or the closest to it: the TOML library does not tell."""
    best = (-1, 0)
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("["):
            here = table = _path(line.strip().strip("[]").join("[]"))
        else:
            here = (*table, *_path(f"{line.partition('=')[0]} = 0"))
        common = takewhile(lambda pair: pair[0] == pair[1], zip(here, path, strict=False))
        best = max(best, (len(list(common)), -number))
    return -best[1] or 1


def _path(toml: str) -> tuple[str, ...]:
    """The names that one line of TOML goes down."""
    try:
        parsed = tomllib.loads(toml)
    except tomllib.TOMLDecodeError:
        return ()
    names = []
    while isinstance(parsed, dict) and parsed:
        name, parsed = next(iter(parsed.items()))
        names.append(name)
    return tuple(names)


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _amount(value: Any, what: str, example: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise InputError(f"{value!r} is no {what}", hint=example)
    return float(value)
