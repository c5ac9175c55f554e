"""Settings of a process: environment variables, else the TOML settings file, else defaults."""

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
)
from rolloutlab.settings.read import (
    explain_error,
    named_policy,
    profile_address,
    read_settings,
    short_name,
    unknown_profile,
)
from rolloutlab.settings.vendors import connectable, engine_plugin, engines, vendor_of, vendors

__all__ = [
    "EMBEDDED",
    "PACKAGED",
    "SMOLLM2",
    "Address",
    "Embedding",
    "ModelSettings",
    "Price",
    "Profile",
    "Served",
    "Settings",
    "connectable",
    "engine_plugin",
    "engines",
    "explain_error",
    "named_policy",
    "profile_address",
    "read_settings",
    "short_name",
    "unknown_profile",
    "vendor_of",
    "vendors",
]
