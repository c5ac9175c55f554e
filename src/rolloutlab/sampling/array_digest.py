"""A short text that identifies the content of an array, frame or tensor of any size."""

import sys
from hashlib import blake2b
from typing import Any


def describe_array(value: Any, *, inside: bool = False) -> tuple[str, list[Any]] | None:
    """Describe an array, a frame or a tensor; None for any other value.

    Returns a text that differs if the contents differ, and values that the text does not cover: the caller has to
    compare these as well.

    inside: whether the value is part of an object of an installed package. A tensor is then taken for a weight of a
    model, and only its type and shape are described.
    """
    numpy, pandas, torch = (sys.modules.get(name) for name in ("numpy", "pandas", "torch"))
    if isinstance(value, bytearray | memoryview):
        return f"{type(value).__name__} {_digest(bytes(value))}", []
    if numpy and isinstance(value, numpy.ndarray | numpy.generic):
        return _describe_numpy(numpy, value)
    if pandas and isinstance(value, pandas.DataFrame | pandas.Series | pandas.Index):
        return _describe_pandas(pandas, value)
    if torch and isinstance(value, torch.Tensor):
        about = f"tensor {value.dtype} {tuple(value.shape)}"
        if inside or value.is_meta:
            return about, []
        if value.layout is not torch.strided:
            return about, [value.detach().cpu().to_dense().numpy()]
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return f"{about} {_digest(plain.view(torch.uint8).numpy())}", []
    for method in ("to_pylist", "to_pydict", "to_dicts", "to_list"):  # of pyarrow and polars
        if type(value).__module__.partition(".")[0] in {"pyarrow", "polars"} and hasattr(value, method):
            schema = str(getattr(value, "schema", getattr(value, "type", getattr(value, "dtype", ""))))
            return f"{type(value).__name__} {schema}", [getattr(value, method)()]
    return None


def _describe_numpy(numpy: Any, value: Any) -> tuple[str, list[Any]]:
    about = f"{type(value).__name__} {value.dtype.descr if value.dtype.names else value.dtype} {value.shape}"
    mask = [numpy.ma.getmaskarray(value)] if isinstance(value, numpy.ma.MaskedArray) else []
    plain = numpy.asarray(value)
    if plain.dtype.hasobject:
        return about, [plain.tolist(), *mask]
    return f"{about} {_digest(numpy.ascontiguousarray(plain).reshape(-1).view(numpy.uint8))}", mask


def _describe_pandas(pandas: Any, value: Any) -> tuple[str, list[Any]]:
    about = f"{type(value).__name__} {getattr(value, 'dtypes', '')!s} {value.shape}"
    names = list(value.columns) if isinstance(value, pandas.DataFrame) else [value.name]
    try:
        hashes = pandas.util.hash_pandas_object(value)
    except TypeError:  # a value cannot be hashed, such as a list
        rows = value.reset_index() if isinstance(value, pandas.DataFrame | pandas.Series) else value
        return about, [names, rows.to_numpy(dtype=object)]
    return f"{about} {_digest(hashes.to_numpy())}", [names]


def _digest(data: Any) -> str:
    return blake2b(data, digest_size=16).hexdigest()
