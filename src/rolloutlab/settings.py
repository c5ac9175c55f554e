"""Settings of a process: environment variables, else the TOML settings file, else defaults."""

import json
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, PositiveInt, ValidationError
from pydantic_core import PydanticCustomError

from rolloutlab.errors import InputError
from rolloutlab.fsutil import line_of_key

if TYPE_CHECKING:
    from rolloutlab.api.http.secrecy import Bearers

EMBEDDED = "embedded"  # the service whose address changes with every start
PACKAGED = {"practice": "weights", "practice-reasoning": "reasoning"}  # policies: folders in rolloutlab.policy.practice


@dataclass(frozen=True)
class Address:
    """A service: `base_url` excludes /v1, `inference_base_url` ends in it. `token`: the bearer token, or its sources.

    project: TEAM/PROJECT, under which the service counts tokens. key_env: the variable that the token came from.
    key_keyring: whether the token is in the keyring of this machine.
    """

    base_url: str
    inference_base_url: str
    token: "str | Bearers | None" = field(default=None, repr=False)
    project: str | None = field(default=None, repr=False)
    key_env: str | None = field(default=None, compare=False, repr=False)
    key_keyring: bool = field(default=False, compare=False, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """Headers besides the token: the first as in the specification, without a brand; the second as OpenAI's."""
        return {"Vendor-Project": self.project, "OpenAI-Project": self.project} if self.project else {}


@dataclass(frozen=True)
class Embedding:
    """An embedding model: a URL with the model's `name` there, or what sentence-transformers loads."""

    model: str
    name: str | None = None
    key_env: str | None = None


@dataclass(frozen=True)
class Served:
    """A collection on a Chroma server that `%search` queries. key_env: the variable that holds its key."""

    url: str
    key_env: str | None = None


def some_text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"must be a non-empty text, not {value!r}", hint="...")
    return value.strip()


def _path(value: Any) -> str:
    if "\0" in (text := some_text(value)):
        raise ValueError("it contains a NUL character")
    Path(text).expanduser()  # raises where there is no such user
    return text


def _amount(value: Any, unit: str, example: str) -> float:
    value = float(value) if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value) else value  # of a variable
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise InputError(f"must be a number of {unit} ≥ 0, not {value!r}", hint=example)
    return float(value)


def service_url(value: Any) -> str:
    """The base URL of a service, without spaces, final slashes and /v1; the hint of an error is a URL that would do."""
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


def inference_url(value: Any) -> str:
    """The base URL of chat completions; it ends in /v1, which may be left out."""
    return f"{service_url(value)}/v1"


def variable_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Z_][A-Z0-9_]*", value):
        # a wrong value may be the key itself: the message must not quote it
        rule = "a key is given by the name of the environment variable that holds it, in capitals"
        raise InputError(f"{rule}; this is not a name", hint="ROLLOUTLAB_API_KEY")
    return value


def project_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\w.-]+/[\w.-]+", value.strip(), re.ASCII):
        raise InputError(f"{value!r} is not a project name", hint="TEAM/PROJECT")
    return value.strip()


def _document_url(value: Any) -> str:
    parts = urlsplit(some_text(value))
    if parts.scheme != "https" or not parts.hostname or len(parts.path) < 2 or parts.fragment or parts.username:
        raise InputError(f"{value!r} is not the https URL of a document", hint="https://lab.example/rolloutlab.json")
    return parts.geturl()


def _checked_by(check: Callable[[Any], Any], example: str = "...") -> PlainValidator:
    """A validator whose error carries message and hint of an InputError, to which pydantic adds the path."""

    def validate(value: Any) -> Any:
        try:
            return check(value)
        except InputError as error:
            context = {"error": error.message, "hint": error.hint}
        except (ValueError, OverflowError, RuntimeError) as error:  # no URL, no date; too large; no such user in ~user
            context = {"error": f"{str(value)[:100]!r} cannot be used: {error}", "hint": example}
        raise PydanticCustomError("setting", "{error}", context)

    return PlainValidator(validate)


_Text = Annotated[str, _checked_by(some_text)]
_ServiceUrl = Annotated[str, _checked_by(service_url)]
_InferenceUrl = Annotated[str, _checked_by(inference_url)]
_Project = Annotated[str, _checked_by(project_name)]
_Variable = Annotated[str, _checked_by(variable_name)]
_Date = Annotated[date, _checked_by(lambda value: date.fromisoformat(str(value)), "2025-01-31")]
_EngineUrl = Annotated[str, _checked_by(lambda url: service_url(url) if "://" in str(url) else some_text(url))]
_Seconds = Annotated[float, _checked_by(lambda value: _amount(value, "seconds", "60"))]
_Dollars = Annotated[float, _checked_by(lambda value: _amount(value, "dollars", "0.5"))]


@dataclass(frozen=True)
class Price:
    """What a model's tokens cost, in dollars per million."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    prompt: _Dollars
    completion: _Dollars


@dataclass(frozen=True)
class Profile:
    """A service by name, validated only where the settings file is read. `api_key_env`: the variable with its key."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    url: _ServiceUrl
    inference_url: _InferenceUrl | None = None
    api_key_env: _Variable | None = None
    project: _Project | None = None


class ModelSettings(BaseModel):
    """What computes for the embedded service, and how it loads a policy; None: by the policy's size, the machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    engine: Literal["local", "tinker", "ray"] = Field("local", examples=["local"])
    engine_url: _EngineUrl | None = None
    lora_rank: PositiveInt | None = Field(None, examples=[16])
    lora_alpha: PositiveInt | None = Field(None, examples=[32])
    lora_targets: _Text | None = None
    dtype: Literal["float32", "bfloat16"] | None = Field(None, examples=["bfloat16"])
    device: Literal["cuda", "mps", "cpu"] | None = Field(None, examples=["cpu"])
    gradient_checkpointing: bool = Field(False, examples=[True])
    template_date: _Date | None = None

    @property
    def arguments(self) -> list[str]:
        """What to type after `rolloutlab serve`: those that are not the default."""
        return [f"--{n.replace('_', '-')}={value}" for n, value in self.model_dump(exclude_defaults=True).items()]


class _Values(ModelSettings):
    """What the settings file may set and, but for profiles and prices, the variables ROLLOUTLAB_... as well."""

    home: Annotated[str, _checked_by(_path)] | None = None
    policy: Annotated[str, _checked_by(_path)] = "practice"
    linger: _Seconds = 60.0
    project: _Project | None = None
    profile: _Text = EMBEDDED
    embedding: _Text | None = None
    embedding_model: _Text | None = None
    embedding_key_env: _Variable | None = None
    search: _Text | None = None
    search_key_env: _Variable | None = None
    client_metadata_url: Annotated[str, _checked_by(_document_url)] | None = None
    profiles: dict[str, Profile] = {}
    prices: dict[str, Price] = {}


_VARIABLES = {name: f"ROLLOUTLAB_{name.upper()}" for name in _Values.model_fields if name not in {"profiles", "prices"}}


class _Variables(_Values):
    """What the environment may set; a variable names a service that needs no profile."""

    url: _ServiceUrl | None = None
    inference_url: _InferenceUrl | None = None


@dataclass(frozen=True)
class Settings:
    """What one process works with.

    service: None is the embedded one. policy: what the embedded service loads, in the way of `model`. linger: seconds
    that it stays up without a client. project: what tokens are counted under, unless the service has its own.
    embedding: the model that compares texts. search: the Chroma collection that `%search` queries, None for the lab.
    client_metadata_url: of our client ID metadata document. prices: by model. origins: what set each.
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
    model: ModelSettings = field(default_factory=ModelSettings)
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
    """Settings from the variables ROLLOUTLAB_..., listed in docs/connect.md, and from the settings file.

    Raises:
        InputError: a variable or the file is wrong; the message names the variable, or file and line.
    """
    named = environment.get("ROLLOUTLAB_SETTINGS")
    path = Path(named or Path(platformdirs.user_config_dir("rolloutlab")) / "settings.toml").expanduser().absolute()
    file, variables = _read_file(path, required=bool(named)), _read_variables(environment)
    overrides = {name: getattr(variables, name) for name in variables.model_fields_set}
    values = _Variables.model_construct(**{**dict(file), **overrides})

    def origin(name: str) -> str:
        return _VARIABLES[name] if name in overrides else str(path) if name in file.model_fields_set else "default"

    folder, model = Path.cwd() if "home" in overrides else path.parent, values.embedding
    service, service_origin = _service(values, environment, origin)
    shown, loaded = {name: origin(name) for name in _VARIABLES if name != "profile"}, ModelSettings.model_fields
    return Settings(
        home=folder / Path(values.home or platformdirs.user_data_dir("rolloutlab")).expanduser(),
        service=service,
        policy=values.policy,
        linger=values.linger,
        project=values.project,
        embedding=Embedding(model, values.embedding_model, values.embedding_key_env) if model else None,
        search=Served(values.search, values.search_key_env) if values.search else None,
        client_metadata_url=values.client_metadata_url,
        prices=values.prices,
        profiles=values.profiles,
        model=ModelSettings(**{name: getattr(values, name) for name in loaded}),
        file=path,
        origins={n: o for n, o in shown.items() if o != "default" or n not in loaded} | {"service": service_origin},
    )


def profile_address(profile: Profile, environment: Mapping[str, str], project: str | None = None) -> Address:
    """The address of a profile, with the key that its variable holds now; `project` where it has none."""
    key, inference = environment.get(profile.api_key_env or "") or None, profile.inference_url or f"{profile.url}/v1"
    return Address(profile.url, inference, key, profile.project or project, profile.api_key_env)


def unknown_profile(name: str, profiles: Mapping[str, Profile]) -> InputError:
    """The error for a profile that is not in the settings; the hint is the closest, or what to add."""
    close = get_close_matches(str(name), [*profiles, EMBEDDED], n=1)
    return InputError(f"there is no profile {name!r}", hint=close[0] if close else f"[profiles.{name}] in the file")


def named_policy(name: str, model: ModelSettings) -> str:
    """A policy's full name, which is the real path of a folder, and how it is loaded."""
    path = Path(name).expanduser()
    return " ".join([str(path.resolve()) if name not in PACKAGED and path.is_dir() else name, *model.arguments])


def _service(values: _Variables, env: Mapping[str, str], origin: Callable[[str], str]) -> tuple[Address | None, str]:
    """The service to talk to, None for the embedded one, and where that was set."""
    if values.url:
        key = "ROLLOUTLAB_API_KEY" if env.get("ROLLOUTLAB_API_KEY") else None
        return profile_address(Profile(values.url, values.inference_url, key, values.project), env), "ROLLOUTLAB_URL"
    if values.profile == EMBEDDED:
        return None, origin("profile")
    if values.profile not in values.profiles:
        raise unknown_profile(values.profile, values.profiles)
    profile = values.profiles[values.profile]
    if origin("project").startswith("ROLLOUTLAB_"):  # the environment wins over the profile, the profile over the file
        profile = replace(profile, project=values.project)
    return profile_address(profile, env, values.project), f"profile {values.profile}, {origin('profile')}"


def _read_variables(environment: Mapping[str, str]) -> _Variables:
    """The settings of the environment, in which an empty variable is an absent one."""
    given = {name: environment.get(variable) for name, variable in _VARIABLES.items()}
    if environment.get("ROLLOUTLAB_URL", "").strip():
        given |= {name: environment.get(f"ROLLOUTLAB_{name.upper()}", "").strip() for name in ("url", "inference_url")}
    try:
        return _Variables.model_validate({name: value for name, value in given.items() if value})
    except ValidationError as error:
        first = error.errors()[0]
        variable, (message, example) = f"ROLLOUTLAB_{str(first['loc'][0]).upper()}", explained(first)
        raise InputError(f"{variable}: {message}", hint=f"{variable}={example}") from None


def explained(error: Any) -> tuple[str, Any]:
    """Message and example of one of pydantic's errors for a value."""
    if error["type"] == "setting":
        return error["msg"], error["ctx"]["hint"]
    (example,) = ModelSettings.model_fields[error["loc"][0]].examples or ("...",)
    return f"{error['msg'].replace('Input should', 'must')}, not {error['input']!r}", example


def _read_file(path: Path, *, required: bool) -> _Values:
    """The settings of a file; defaults when it does not exist, unless it is `required`. Errors have the line."""
    try:
        text = path.read_text("utf-8-sig")  # as Windows editors write it
    except FileNotFoundError:
        if required:
            raise InputError(f"there is no settings file {path}", hint="ROLLOUTLAB_SETTINGS names one") from None
        return _Values()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the settings file {path} cannot be read: {error}", hint="a text file, in UTF-8") from error

    def wrong(keys: tuple[str, ...], problem: str, hint: str) -> InputError:
        return InputError(f"{path}, line {line_of_key(text, keys)}: {problem}", hint=hint)

    try:
        values = _Values.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problem, _, place = str(error).partition(" (at ")
        line = re.search(r"\d+", place) or [text.count("\n") + 1]  # it may end too early
        raise InputError(f"{path}, line {line[0]}: {problem}", hint='for example: policy = "practice"') from None
    except ValidationError as error:
        raise wrong(*min(map(_problem, error.errors()), key=lambda each: line_of_key(text, each[0]))) from None
    if EMBEDDED in values.profiles:
        raise wrong(("profiles", EMBEDDED), "embedded is the service that comes with rolloutlab", "another name")
    if values.profile not in {*values.profiles, EMBEDDED}:
        unknown = unknown_profile(values.profile, values.profiles)
        raise wrong(("profile",), unknown.message, unknown.hint or "")
    return values


def _problem(error: Any) -> tuple[tuple[str, ...], str, str]:
    """Keys, message and hint for one of pydantic's errors in a settings file."""
    keys, kind, name = tuple(map(str, error["loc"])), error["type"], str(error["loc"][-1])
    if kind == "setting" or keys[0] in ModelSettings.model_fields:
        message, example = explained(error)
        return keys, f"{name}: {message}", f"{name} = {example if str(example)[0].isdigit() else json.dumps(example)}"
    if kind == "missing":
        return keys[:-1], f"{'.'.join(keys[:-1])} has no {name}", f"{name} = ..."
    if kind in {"dict_type", "dataclass_type"}:
        return keys, f"{'.'.join(keys)} is {error['input']!r}, not a table", f"[{keys[0]}.NAME]"
    if re.fullmatch(r"(api_?)?key|token|secret|password|bearer", name, re.IGNORECASE):
        problem = "a key must not be in a file; name the environment variable that holds it"
        return keys, f"{name}: {problem}", 'api_key_env = "ROLLOUTLAB_API_KEY"'
    table = Price if keys[0] == "prices" else Profile
    names = [each.name for each in fields(table)] if keys[1:] else list(_Values.model_fields)
    return keys, f"unknown setting {name!r}", (get_close_matches(name, names, n=1) or [f"one of {', '.join(names)}"])[0]
