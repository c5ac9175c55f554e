"""Records to write: validated and encoded for SQLite."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rolloutlab.errors import InputError
from rolloutlab.search.engine.vectors import coordinates
from rolloutlab.search.rank import SparseVector

_WHOLE = 2**63
_HINT = 'Record("7", metadata={"reward": 0.5, "model": "lab/practice"})'


@dataclass(frozen=True)
class Record:
    """A record. metadata: strings, numbers, booleans and lists of them; None counts as absent.

    embedding: a number per dimension. sparse: vectors by key.
    """

    id: str
    document: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    embedding: Sequence[float] | None = None
    sparse: Mapping[str, SparseVector] = field(default_factory=dict)


def text(value: str, what: str) -> str:
    """A string as valid UTF-8; lone surrogates, which models do write, become question marks."""
    if not isinstance(value, str):
        raise InputError(f"{what} {value!r} must be a string", hint=_HINT)
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def metadata_json(id_: str, metadata: Mapping[str, Any]) -> str:
    """The metadata of a record as JSON without None; InputError if it is not valid."""
    for name, value in metadata.items():
        values = value if isinstance(value, list | tuple) else (value,)
        if not isinstance(name, str) or name.startswith("#") or not all(map(_plain, values)):
            raise InputError(f"record {id_!r}: {name!r}: {value!r} is not valid metadata", hint=_HINT)
    return json.dumps({name: value for name, value in metadata.items() if value is not None})


def vector_blob(values: Any, what: str) -> bytes:
    """A dense vector as float32; InputError unless it is finite numbers."""
    try:
        with np.errstate(over="ignore"):
            vector_D = np.asarray(values, "<f4")
    except (TypeError, ValueError):
        vector_D = np.zeros(0, "<f4")
    if vector_D.ndim != 1 or not vector_D.size or not np.isfinite(vector_D).all():
        raise InputError(f"{what}: an embedding is finite numbers, at least one", hint="[0.1, 0.2]")
    return vector_D.tobytes()


def sparse_blobs(vector: SparseVector, what: str) -> tuple[bytes, bytes]:
    """The indices and the values of a sparse vector; InputError unless it is one."""
    fitting = len(vector.indices) == len(vector.values) == len(set(vector.indices))
    if not fitting or not all(0 <= index < _WHOLE for index in vector.indices):
        raise InputError(f"{what}: {vector!r} is not a sparse vector", hint="SparseVector((3, 17), (0.5, 1.0))")
    with np.errstate(over="ignore"):
        indices, values = coordinates(vector)
    if not np.isfinite(values).all():
        raise InputError(f"{what}: {vector!r} has values that are not finite", hint="SparseVector((3, 17), (0.5, 1.0))")
    return indices.astype("<i8").tobytes(), values.astype("<f4").tobytes()


def _plain(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return -_WHOLE <= value < _WHOLE
    return value is None or isinstance(value, str | bool | float)
