"""`WWW-Authenticate` (RFC 9110, 11.6.1): several schemes in one header, several headers, quoted strings."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rf'({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))')
_SCHEME = re.compile(rf"({_TOKEN})(?:[ \t]+|(?=,|$))")
_TOKEN68 = re.compile(r"[A-Za-z0-9._~+/-]+=*(?=[ \t]*(?:,|$))")
_BETWEEN = re.compile(r"[ \t,]*")


@dataclass(frozen=True)
class Challenge:
    """One way in. parameters: by name in lower case."""

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that the request needs; empty where that is not said."""
        return tuple(self.parameters.get("scope", "").split())

    @property
    def error(self) -> str | None:
        return self.parameters.get("error")

    @property
    def resource_metadata(self) -> str | None:
        """Where the protected resource describes itself (RFC 9728, 5.1)."""
        return self.parameters.get("resource_metadata")


def bearer(headers: Iterable[str]) -> Challenge | None:
    """The bearer challenge among the headers' values: one that says where to go on, where there is one."""
    found = [each for value in headers for each in challenges(value) if each.scheme == "bearer"]
    return next((each for each in found if each.resource_metadata), found[0] if found else None)


def challenges(value: str) -> Iterator[Challenge]:
    """Every challenge of one header; what cannot be read ends it."""
    position = 0
    while (position := _after(_BETWEEN, value, position)) < len(value):
        scheme = _SCHEME.match(value, position)
        if not scheme:
            return
        position = scheme.end()
        parameters: dict[str, str] = {}
        if token := _TOKEN68.match(value, position):
            position = token.end()
        while parameter := _PARAMETER.match(value, _after(_BETWEEN, value, position)):
            name, quoted, plain = parameter.groups()
            parameters.setdefault(name.lower(), plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
            position = parameter.end()
        yield Challenge(scheme.group(1).lower(), parameters)


def _after(pattern: re.Pattern[str], value: str, position: int) -> int:
    found = pattern.match(value, position)
    return found.end() if found else position


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
