"""Settings of a process: environment variables, else the TOML settings file, else defaults."""

from rolloutlab.settings.model import (
    EMBEDDED,
    PACKAGED,
    SMOLLM2,
    VENDORS,
    Address,
    Embedding,
    ModelSettings,
    Price,
    Profile,
    Served,
    Settings,
)
from rolloutlab.settings.read import (
    explained,
    named_policy,
    profile_address,
    read_settings,
    short_name,
    unknown_profile,
)

__all__ = [
    "EMBEDDED",
    "PACKAGED",
    "SMOLLM2",
    "VENDORS",
    "Address",
    "Embedding",
    "ModelSettings",
    "Price",
    "Profile",
    "Served",
    "Settings",
    "explained",
    "named_policy",
    "profile_address",
    "read_settings",
    "short_name",
    "unknown_profile",
]
