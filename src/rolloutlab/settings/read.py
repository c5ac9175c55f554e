"""Settings from environment variables, else from the TOML settings file, else defaults."""

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import platformdirs
from pydantic import BeforeValidator, ValidationError

from rolloutlab.errors import InputError
from rolloutlab.fsutil import line_of_key, path_of
from rolloutlab.settings.model import (
    EMBEDDED,
    PACKAGED,
    SMOLLM2,
    Address,
    Embedding,
    ModelSettings,
    Price,
    Profile,
    Served,
    Settings,
    add_vendor,
)
from rolloutlab.settings.values import (
    DocumentUrl,
    InferenceUrl,
    LocalPath,
    Project,
    Seconds,
    ServiceUrl,
    Text,
    Variable,
)
from rolloutlab.settings.vendors import vendor_of


class _Values(ModelSettings):
    """What the settings file may set. The variables ROLLOUTLAB_... may set all but profiles and prices."""

    home: LocalPath | None = None
    policy: LocalPath = "practice"
    linger: Seconds = 60.0
    project: Project | None = None
    profile: Text = EMBEDDED
    embedding: Text | None = None
    embedding_model: Text | None = None
    embedding_key_env: Variable | None = None
    search: Text | None = None
    search_key_env: Variable | None = None
    client_metadata_url: DocumentUrl | None = None
    profiles: dict[str, Annotated[Profile, BeforeValidator(add_vendor)]] = {}
    prices: dict[str, Price] = {}


_VARIABLES = {name: f"ROLLOUTLAB_{name.upper()}" for name in _Values.model_fields if name not in {"profiles", "prices"}}


class _Variables(_Values):
    """What the environment may set, which includes a service without a profile."""

    url: ServiceUrl | None = None
    inference_url: InferenceUrl | None = None


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings from the variables ROLLOUTLAB_..., listed in docs/connect.md, and from the settings file.

    Raises:
        InputError: a variable or the file is wrong; the message names the variable, or file and line.
    """
    named = environment.get("ROLLOUTLAB_SETTINGS")
    default = Path(platformdirs.user_config_dir("rolloutlab")) / "settings.toml"
    path = path_of(named or default, "ROLLOUTLAB_SETTINGS=settings.toml").absolute()
    file, variables = _read_file(path, required=bool(named)), _read_variables(environment)
    overrides = {name: getattr(variables, name) for name in variables.model_fields_set}
    values = _Variables.model_construct(**{**dict(file), **overrides})

    def origin(name: str) -> str:
        return _VARIABLES[name] if name in overrides else str(path) if name in file.model_fields_set else "default"

    folder, model = Path.cwd() if "home" in overrides else path.parent, values.embedding
    service, service_origin = _find_service(values, environment, origin)
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
    """Return the address of a profile, with the key that its variable holds now. project: used if it has none."""
    key, inference = environment.get(profile.api_key_env or "") or None, profile.inference_url or f"{profile.url}/v1"
    named = profile.project or project
    address = Address(profile.url, inference, key, named, profile.api_key_env, kind=profile.kind)
    return replace(address, prices=profile.prices, budget=profile.budget)


def unknown_profile(name: str, profiles: Mapping[str, Profile]) -> InputError:
    """Make the error for a profile that is not in the settings. The hint is the closest name, or what to add."""
    close = get_close_matches(str(name), [*profiles, EMBEDDED], n=1)
    return InputError(f"there is no profile {name!r}", hint=close[0] if close else f"[profiles.{name}] in the file")


def named_policy(name: str, model: ModelSettings) -> str:
    """Return a policy's full name, which for a folder or file is its real path, and how it is loaded."""
    path = _path_of_policy(name)
    return " ".join([str(path.resolve()) if path else name, *model.arguments])


def short_name(policy: str) -> str:
    """Return what models call their policy: the name of its folder, or of its file without the ending, or its own."""
    path = _path_of_policy(policy)
    if path is None:
        return policy
    # a file may be a link to one with a digest for a name, as in the cache of the hub; a folder's path may end in `..`
    return path.resolve().name if path.is_dir() else path.stem


def _path_of_policy(policy: str) -> Path | None:
    path = path_of(policy, "--policy FOLDER, or practice")
    return path if policy not in {*PACKAGED, SMOLLM2} and path.exists() else None


def _find_service(
    values: _Variables, env: Mapping[str, str], origin: Callable[[str], str]
) -> tuple[Address | None, str]:
    """Find the service to talk to, None for the embedded one, and where that was set."""
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
    """Read the settings of the environment. An empty variable counts as not set."""
    given = {name: environment.get(variable) for name, variable in _VARIABLES.items()}
    if environment.get("ROLLOUTLAB_URL", "").strip():
        given |= {name: environment.get(f"ROLLOUTLAB_{name.upper()}", "").strip() for name in ("url", "inference_url")}
    try:
        return _Variables.model_validate({name: value for name, value in given.items() if value})
    except ValidationError as error:
        first = error.errors()[0]
        variable, (message, example) = f"ROLLOUTLAB_{str(first['loc'][0]).upper()}", explain_error(first)
        raise InputError(f"{variable}: {message}", hint=f"{variable}={example}") from None


def explain_error(error: Any) -> tuple[str, Any]:
    """Return the message and an example for one of pydantic's errors of a value."""
    if error["type"] == "setting":
        return error["msg"], error["ctx"]["hint"]
    (example,) = ModelSettings.model_fields[error["loc"][0]].examples or ("...",)
    return f"{error['msg'].replace('Input should', 'must')}, not {error['input']!r}", example


def _read_file(path: Path, *, required: bool) -> _Values:
    """Read the settings of a file. Unless it is `required`, it may be missing. Errors have the line."""
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
        problems = sorted(map(_explain_in_file, error.errors()), key=lambda each: line_of_key(text, each[0]))
        kinds = [each for each in problems if each[0][-1] == "kind"]  # first, as what else is needed depends on it
        raise wrong(*(kinds or problems)[0]) from None
    return _check_together(values, wrong)


def _check_together(values: _Values, wrong: Callable[[tuple[str, ...], str, str], InputError]) -> _Values:
    """Check that the settings fit together, and return them. The errors are made by `wrong`."""
    if EMBEDDED in values.profiles:
        raise wrong(("profiles", EMBEDDED), "embedded is the service that comes with rolloutlab", "another name")
    if values.profile not in {*values.profiles, EMBEDDED}:
        unknown = unknown_profile(values.profile, values.profiles)
        raise wrong(("profile",), unknown.message, unknown.hint or "")
    for name, profile in values.profiles.items():
        vendor = vendor_of(profile.kind)
        if vendor and vendor.names_hold_project and not (profile.project or values.project):
            raise wrong(("profiles", name), f"profiles.{name} has no project", 'project = "ENTITY/PROJECT"')
    return values


def _explain_in_file(error: Any) -> tuple[tuple[str, ...], str, str]:
    """Return keys, message and hint for one of pydantic's errors in a settings file."""
    keys, kind, name = tuple(map(str, error["loc"])), error["type"], str(error["loc"][-1])
    if kind == "setting" or keys[0] in ModelSettings.model_fields:
        message, example = explain_error(error)
        plain = re.fullmatch(r"\d[\d.-]*", str(example))  # a number or a date
        line = f"{name} = {example if plain else json.dumps(example)}"
        return keys, f"{name}: {message}", str(example) if " = " in str(example) else line
    if kind == "missing":
        return _explain_missing(keys[:-1], name, error["input"])
    if kind in {"dict_type", "dataclass_type"}:
        return keys, f"{'.'.join(keys)} is {error['input']!r}, not a table", f"[{keys[0]}.NAME]"
    if re.fullmatch(r"(api_?)?key|token|secret|password|bearer", name, re.IGNORECASE):
        problem = "a key must not be in a file; name the environment variable that holds it"
        return keys, f"{name}: {problem}", 'api_key_env = "ROLLOUTLAB_API_KEY"'
    table = Price if "prices" in keys[:-1] else Profile
    names = [each.name for each in fields(table)] if keys[1:] else list(_Values.model_fields)
    if not keys[1:] and name in {each.name for each in fields(Profile)}:
        return keys, f"{name} is a setting of a profile", f"[profiles.NAME] {name}"
    return keys, f"unknown setting {name!r}", (get_close_matches(name, names, n=1) or [f"one of {', '.join(names)}"])[0]


def _explain_missing(keys: tuple[str, ...], name: str, table: Any) -> tuple[tuple[str, ...], str, str]:
    """Return keys, message and hint for a table that lacks a setting, which it may have under another name."""
    message, others = f"{'.'.join(keys)} has no {name}", {"prompt": "input", "completion": "output"}
    if "prices" in keys and (below := next((n for n, value in table.items() if isinstance(value, Mapping)), None)):
        *place, model = keys  # a dot without quotes begins a table within the table
        return keys, message, f'[{".".join(place)}."{model}.{below}"], with quotes'
    if (other := others.get(name)) in table:
        return keys, f"{message}, but {other}", f"{name} = {table[other]}"
    return keys, message, f"{name} = ..."
