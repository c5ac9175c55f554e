"""Where the lab lives and which service it talks to; read once, from the environment."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from rolloutlab.errors import InputError


@dataclass(frozen=True)
class Address:
    """A service: `base_url` excludes /v1, `inference_base_url` ends in it. `token` is the bearer token, if any."""

    base_url: str
    inference_base_url: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"Address({self.base_url!r}, {self.inference_base_url!r})"


@dataclass(frozen=True)
class Settings:
    """What one process works with.

    home: the lab folder. service: an address, or None for the embedded service. policy: what the embedded service
    loads. linger: seconds that the embedded service goes on without anyone attached.
    """

    home: Path
    service: Address | None = None
    policy: str = "practice"
    linger: float = 60.0

    @property
    def database(self) -> Path:
        return self.home / "lab.db"

    @property
    def service_folder(self) -> Path:
        return self.home / "service"


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Settings from ROLLOUTLAB_HOME, _URL, _INFERENCE_URL, _API_KEY, _POLICY and _LINGER, whose table is in the README.

    Raises:
        InputError: ROLLOUTLAB_LINGER is not a number of seconds.
    """
    home = environment.get("ROLLOUTLAB_HOME") or platformdirs.user_data_dir("rolloutlab")
    linger = environment.get("ROLLOUTLAB_LINGER") or "60"
    if not re.fullmatch(r"\d+(\.\d+)?", linger):
        raise InputError(f"ROLLOUTLAB_LINGER is {linger!r}, no number of seconds", hint="ROLLOUTLAB_LINGER=60")
    return Settings(
        home=Path(home).expanduser().absolute(),
        service=_address(environment),
        policy=environment.get("ROLLOUTLAB_POLICY") or "practice",
        linger=float(linger),
    )


def named_policy(name: str) -> str:
    """A policy's name in full: a folder by its real path, anything else as it is."""
    path = Path(name).expanduser()
    return str(path.resolve()) if name != "practice" and path.is_dir() else name


def _address(environment: Mapping[str, str]) -> Address | None:
    url = environment.get("ROLLOUTLAB_URL", "").rstrip("/").removesuffix("/v1")
    if not url:
        return None
    inference = (environment.get("ROLLOUTLAB_INFERENCE_URL") or f"{url}/v1").rstrip("/")
    return Address(url, inference, environment.get("ROLLOUTLAB_API_KEY") or None)
