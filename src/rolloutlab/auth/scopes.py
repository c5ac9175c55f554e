"""Which scopes are asked for."""

from collections.abc import Collection, Sequence

OFFLINE = "offline_access"


def first_scopes(challenged: Sequence[str], known: Sequence[str] | None, offered: Collection[str]) -> tuple[str, ...]:
    """For a first sign-in: those of the challenge; else all that the resource knows; else none is named.

    offered: those of the authorization server. Where it offers to outlive the access token, that is asked for as well,
    but not where no scope would be sent at all.
    """
    return _lasting(tuple(challenged) or tuple(known or ()), offered)


def stepped_up(granted: Sequence[str], challenged: Sequence[str], offered: Collection[str]) -> tuple[str, ...]:
    """After a 403: those of the challenge, and those that other requests go on to need."""
    return _lasting((*granted, *challenged), offered)


def _lasting(wanted: Sequence[str], offered: Collection[str]) -> tuple[str, ...]:
    more = [OFFLINE] if wanted and OFFLINE in offered else []
    return tuple(dict.fromkeys([*wanted, *more]))
