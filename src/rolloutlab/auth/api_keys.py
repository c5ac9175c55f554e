"""API keys in the keyring of this machine, for services that know no sign-in."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rolloutlab.api.http.ip_scope import on_this_machine
from rolloutlab.auth.token_store import has_keyring
from rolloutlab.auth.urls import origin
from rolloutlab.errors import InputError, LabError
from rolloutlab.settings import Address

_SERVICE = "rolloutlab API key"


def kept_key(address: Address) -> str | None:
    """The key that was kept for a service; None where there is none for each place that the service is asked at.

    Raises:
        InputError: there is no keyring, or a key would be read on the way. LabError: the keyring does not open.
    """
    wanted = _origins(address)
    with _keyring(address.base_url):
        import keyring

        text = keyring.get_password(_SERVICE, origin(address.base_url))
    with suppress(ValueError, TypeError, KeyError):
        kept = json.loads(text or "{}")
        return str(kept["key"]) if set(kept["origins"]) >= wanted else None
    return None


def keep_key(address: Address, key: str) -> None:
    """Keep a key for a service and the places that it is asked at; raises as `kept_key` does."""
    with _keyring(address.base_url):
        import keyring

        kept = {"key": key, "origins": sorted(_origins(address))}
        keyring.set_password(_SERVICE, origin(address.base_url), json.dumps(kept))


def forget_key(url: str) -> bool:
    """Forget the key of a service; whether there was one."""
    if not has_keyring():
        return False
    with _keyring(url):
        import keyring
        import keyring.errors

        with suppress(keyring.errors.PasswordDeleteError):
            keyring.delete_password(_SERVICE, origin(url))
            return True
    return False


def _origins(address: Address) -> set[str]:
    """Where a key would be sent to: a key that was typed for some places is none for others."""
    found = {origin(url) for url in (address.base_url, address.inference_base_url)}
    for each in found:
        if not each.startswith("https://") and not on_this_machine(each):
            said = f"{each} is not encrypted: a key would be read on the way"
            raise InputError(said, hint=f"%connect https{each.removeprefix('http')} --key-keyring")
    return found


@contextmanager
def _keyring(url: str) -> Iterator[None]:
    """While it lasts, what the keyring complains of is told in two lines."""
    env = f"%connect {url} --key-env ROLLOUTLAB_API_KEY"
    try:
        import keyring.errors
    except ImportError:
        raise InputError("the keyring of this machine is reached by keyring", hint="%pip install keyring") from None
    if not has_keyring():
        raise InputError("this machine has no keyring that programs can use", hint=env)
    try:
        yield
    except keyring.errors.PasswordDeleteError:
        raise
    except keyring.errors.KeyringError as error:
        raise LabError(f"the keyring of this machine does not open: {error}", hint=env) from None
