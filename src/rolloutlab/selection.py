"""Which collections a line of names and patterns means."""

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from rolloutlab.collection import Collection
from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.store.lab import Lab

_WILD = frozenset("*?[")


def select(lab: Lab, names: str | Sequence[str]) -> list[Collection]:
    """The collections that names (`capitals`, `capitals:1`) and patterns (`cap*`) mean, each once.

    A pattern means the newest generation of every collection whose bare name it fits, by name.

    Raises:
        InputError: a name is given twice. NotFoundError: no such collection, or none that fits; with the closest names.
    """
    wanted = list(names) if isinstance(names, Sequence) and not isinstance(names, str) else [names]
    named = [Collection(lab, lab.collection(name)).label for name in wanted if not _is_pattern(name)]
    if len(set(named)) < len(named):
        raise InputError("a collection is given twice", hint=" ".join(dict.fromkeys(wanted)))
    found = [_fitting(lab, name) if _is_pattern(name) else [Collection(lab, lab.collection(name))] for name in wanted]
    return list({collection.label: collection for some in found for collection in some}.values())


def _is_pattern(name: str) -> bool:
    return isinstance(name, str) and bool(_WILD & set(name))


def _fitting(lab: Lab, pattern: str) -> list[Collection]:
    newest = sorted((s for s in lab.collections() if s.newest), key=lambda summary: summary.name)
    fitting = [Collection(lab, summary) for summary in newest if fnmatchcase(summary.name, pattern)]
    if not fitting:
        plain = "".join(character for character in pattern if character not in "*?[]")
        close = get_close_matches(plain, [summary.name for summary in newest], n=3, cutoff=0.3)
        hint = ", ".join(close) if close else "%collections lists them"
        raise NotFoundError(f"no collection's name fits {pattern!r}", hint=hint)
    return fitting
