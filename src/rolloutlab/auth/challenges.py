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
    """One challenge. parameters: by name in lower case."""

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that the request needs; empty if the challenge names none."""
        return tuple(self.parameters.get("scope", "").split())

    @property
    def error(self) -> str | None:
        return self.parameters.get("error")

    @property
    def resource_metadata(self) -> str | None:
        """URL of the protected resource's metadata (RFC 9728, 5.1)."""
        return self.parameters.get("resource_metadata")


def bearer(headers: Iterable[str]) -> Challenge | None:
    """Find the bearer challenge in the headers' values. One with `resource_metadata` is preferred."""
    bearers = [each for value in headers for each in challenges(value) if each.scheme == "bearer"]
    return next((each for each in bearers if each.resource_metadata), bearers[0] if bearers else None)


def challenges(value: str) -> Iterator[Challenge]:
    """Yield the challenges of one header, up to the first syntax error."""
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
    match = pattern.match(value, position)
    return match.end() if match else position


OFFLINE = "offline_access"


def first_scopes(challenged: Sequence[str], known: Sequence[str] | None, offered: Collection[str]) -> tuple[str, ...]:
    """Choose the scopes of a first sign-in: those of the challenge, else all known ones of the resource, else none.

    offered: the scopes of the authorization server. `offline_access` is added if it is offered and any scope is sent.
    """
    return _add_offline(tuple(challenged) or tuple(known or ()), offered)


def step_up_scopes(granted: Sequence[str], challenged: Sequence[str], offered: Collection[str]) -> tuple[str, ...]:
    """Choose the scopes after a 403: those of the challenge, and those granted before, which other requests need."""
    return _add_offline((*granted, *challenged), offered)


def _add_offline(scopes: Sequence[str], offered: Collection[str]) -> tuple[str, ...]:
    more = [OFFLINE] if scopes and OFFLINE in offered else []
    return tuple(dict.fromkeys([*scopes, *more]))
