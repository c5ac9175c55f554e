"""API keys in the keyring of this machine, for services without OAuth."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType

from rolloutlab.api.http.ip_scope import on_this_machine
from rolloutlab.auth.token_store import has_keyring
from rolloutlab.auth.urls import origin
from rolloutlab.errors import InputError, LabError
from rolloutlab.settings import Address

_SERVICE = "rolloutlab API key"


def read_key(address: Address) -> str | None:
    """Read the stored key of a service; None unless it was stored for all origins of the service.

    Raises:
        InputError: there is no keyring, or a key could be read on the way.
        LabError: the keyring does not open.
    """
    required = _origins(address)
    with _keyring(address.base_url) as keyring:
        text = keyring.get_password(_SERVICE, origin(address.base_url))
    with suppress(ValueError, TypeError, KeyError):
        entry = json.loads(text or "{}")
        return str(entry["key"]) if set(entry["origins"]) >= required else None
    return None


def keep_key(address: Address, key: str) -> None:
    """Store a key for a service and its origins. Raises as `read_key`."""
    with _keyring(address.base_url) as keyring:
        entry = {"key": key, "origins": sorted(_origins(address))}
        keyring.set_password(_SERVICE, origin(address.base_url), json.dumps(entry))


def forget_key(url: str) -> bool:
    """Delete the key of a service, and return whether there was one."""
    if not has_keyring():
        return False
    with _keyring(url) as keyring, suppress(keyring.errors.PasswordDeleteError):
        keyring.delete_password(_SERVICE, origin(url))
        return True
    return False


def _origins(address: Address) -> set[str]:
    """Return the origins that a key would be sent to. A key that was typed for some must not go to others."""
    origins = {origin(url) for url in (address.base_url, address.inference_base_url)}
    for each in origins:
        if not each.startswith("https://") and not on_this_machine(each):
            message = f"{each} is not encrypted: a key could be read on the way"
            raise InputError(message, hint=f"%connect https{each.removeprefix('http')} --key-keyring")
    return origins


@contextmanager
def _keyring(url: str) -> Iterator[ModuleType]:
    """Yield the library, and turn its errors into ours."""
    env = f"%connect {url} --key-env ROLLOUTLAB_API_KEY"
    try:
        import keyring.errors
    except ImportError:
        raise InputError("the package keyring is not installed", hint="%pip install keyring") from None
    if not has_keyring():
        raise InputError("this machine has no keyring that programs can use", hint=env)
    try:
        yield keyring
    except keyring.errors.KeyringError as error:
        raise LabError(f"the keyring of this machine does not open: {error}", hint=env) from None
