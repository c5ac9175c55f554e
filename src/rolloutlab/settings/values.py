"""Checks of settings: each takes the value that a user wrote and returns it tidied, or raises with a valid example.

pydantic validates settings by the types at the end.
"""

import math
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from rolloutlab.errors import InputError
from rolloutlab.settings.vendors import KINDS, LOCAL, connectable, engine_plugin, engines, one_of, vendors

MOST_DOLLARS = 100_000
"""The largest price of a million tokens, and the largest budget: sums fit the 64 bits of SQLite."""


def some_text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"must be a non-empty text, not {value!r}", hint="...")
    return value.strip()


def _path(value: Any) -> str:
    if "\0" in (text := some_text(value)):
        raise ValueError("it contains a NUL character")
    Path(text).expanduser()  # raises where there is no such user
    return text


def _amount(value: Any, unit: str, example: str, most: float = math.inf) -> float:
    value = float(value) if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value) else value  # a text
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 <= value <= most:
        limits = "≥ 0" if most == math.inf else f"from 0 to {most:,}"
        raise InputError(f"must be a number of {unit} {limits}, not {value!r}", hint=example)
    return float(value)


def service_url(value: Any) -> str:
    """Return the base URL of a service, without final slashes and /v1. The hint of an error is a URL that would do."""
    host, url = None, str(value).strip()
    with suppress(ValueError):
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    if host and "@" in parts.netloc:
        raise InputError("a service URL must not contain a user name or password", hint=f"https://{host}")
    if "://" not in url and re.fullmatch(r"[\w.-]+(:\d+)?(/\S*)?", url):
        scheme = "http" if re.match(r"localhost|127\.", url) else "https"
        raise InputError(f"{url!r} lacks http:// or https://", hint=f"{scheme}://{url}")
    if not host or parts.scheme not in {"http", "https"} or re.search(r"[\s?#]", url):
        raise InputError(f"{url!r} is not a service URL", hint="https://train.example")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def same_service(url: str) -> str:
    """Spell all URLs of a service in one way: the host without capitals, default port or final dot."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    host = f"[{host}]" if ":" in host else host
    port = "" if parts.port in {None, {"http": 80, "https": 443}.get(parts.scheme)} else f":{parts.port}"
    return parts._replace(netloc=host + port).geturl()


def inference_url(value: Any) -> str:
    """Return the base URL of chat completions. It ends in /v1, which a user may leave out."""
    return f"{service_url(value)}/v1"


def variable_name(value: Any) -> str:
    """Check the name of an environment variable."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Z_][A-Z0-9_]*", value):
        # a wrong value may be the key itself: the message must not quote it
        rule = "a key is given by the name of the environment variable that holds it, in capitals"
        raise InputError(f"{rule}; this is not a name", hint="ROLLOUTLAB_API_KEY")
    return value


def project_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\w.-]+/[\w.-]+", value.strip(), re.ASCII):
        raise InputError(f"{value!r} is not a project name", hint="TEAM/PROJECT")
    return value.strip()


def engine_url(value: Any) -> str:
    """Check where an engine is: an http(s) URL, or HOST:PORT of the head of a cluster."""
    text = some_text(value)
    scheme, separator, _ = text.partition("://")
    if separator and scheme not in {"http", "https"}:
        host = urlsplit(text).hostname or "gpu1.example"
        message = f"the engine joins a cluster at HOST:PORT of its head, without {scheme}://"
        raise InputError(message, hint=f"{host}:6379")
    if separator:
        return service_url(text)
    place = re.fullmatch(r"([\w.-]+|\[[\da-fA-F:]+\]):(\d{1,5})", text, re.ASCII)
    if not place or int(place[2]) not in range(1, 65536):
        raise InputError("this is neither an http(s) URL nor HOST:PORT", hint="gpu1.example:6379")  # it may hold a key
    return text


def _engine_name(value: Any) -> str:
    plugin = engine_plugin(str(value))  # raises if it lacks a package
    if value != LOCAL and not hasattr(plugin, "open_engine"):
        raise InputError(f"must be {one_of(engines())}, not {value!r}", hint=LOCAL)
    return str(value)


def _service_kind(value: Any) -> str:
    kinds = [*KINDS, *vendors()]
    if value not in kinds:
        name = str(value).lower()
        if name in connectable():
            raise InputError(f"must be {one_of(kinds)}, not {value!r}", hint=f'engine = "{name}", without a profile')
        raise InputError(
            f"must be {one_of(kinds)}, not {value!r}", hint=f'kind = "{name if name in kinds else "openai"}"'
        )
    return str(value)


def _document_url(value: Any) -> str:
    parts = urlsplit(some_text(value))
    if parts.scheme != "https" or not parts.hostname or len(parts.path) < 2 or parts.fragment or parts.username:
        raise InputError(f"{value!r} is not the https URL of a document", hint="https://lab.example/rolloutlab.json")
    return parts.geturl()


def make_validator(check: Callable[[Any], Any], example: str = "...") -> PlainValidator:
    """Make a validator for pydantic. Its error has the message and hint of an InputError; pydantic adds the path."""

    def validate(value: Any) -> Any:
        try:
            return check(value)
        except InputError as error:
            context = {"error": error.message, "hint": error.hint}
        except (ValueError, OverflowError, RuntimeError) as error:  # not a URL or date; too large; no user of ~NAME
            context = {"error": f"{str(value)[:100]!r} cannot be used: {error}", "hint": example}
        raise PydanticCustomError("setting", "{error}", context)

    return PlainValidator(validate)


Text = Annotated[str, make_validator(some_text)]
LocalPath = Annotated[str, make_validator(_path)]
ServiceUrl = Annotated[str, make_validator(service_url)]
InferenceUrl = Annotated[str, make_validator(inference_url)]
Project = Annotated[str, make_validator(project_name)]
Variable = Annotated[str, make_validator(variable_name)]
DocumentUrl = Annotated[str, make_validator(_document_url)]
Date = Annotated[date, make_validator(lambda value: date.fromisoformat(str(value)), "2025-01-31")]
EngineUrl = Annotated[str, make_validator(engine_url)]
EngineName = Annotated[str, make_validator(_engine_name)]
ServiceKind = Annotated[str, make_validator(_service_kind)]
Seconds = Annotated[float, make_validator(lambda value: _amount(value, "seconds", "60"))]
Dollars = Annotated[float, make_validator(lambda value: _amount(value, "dollars", "0.5", MOST_DOLLARS))]
