"""Embedding models: a function, a sentence-transformers model, or an OpenAI-compatible service."""

import hashlib
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import InputError, ServiceError
from rolloutlab.fsutil import Lock, path_of
from rolloutlab.search.engine.lab_sync import MirroredRecords
from rolloutlab.search.engine.records import EmbeddingModel

Vectors = Sequence[Sequence[float]]
Embed = Callable[[Sequence[str]], Any]
"""Makes a vector of each text: a list of lists, or an array of shape (texts, dimension)."""
_OPENAI, _OPENAI_KEY_ENV = "api.openai.com", "OPENAI_API_KEY"
"""The default key is sent only to this host."""
_TIMEOUT = 120.0
"""Seconds to wait for a model that another thread uses, and for the answer of a service."""
_PROBE = "rolloutlab"
"""A text whose vector distinguishes models of the same name and dimension."""


class Embedder:
    """A named embedding model, loaded when the first text is embedded. key_env: the variable with its key, if any."""

    def __init__(self, name: str, embed: Embed, key_env: str | None = None) -> None:
        self.name = name
        self.key_env = key_env
        self._embed = embed
        self._lock = threading.Lock()
        """User functions and tokenizers need not be thread-safe."""
        self._model: EmbeddingModel | None = None

    @property
    def model(self) -> EmbeddingModel:
        """The identity of the model, for which a probe text is embedded the first time.

        Its digest is of the vector for a fixed text, to two decimals.
        """
        if self._model is None:
            (vector,) = self([_PROBE])
            size = math.hypot(*vector) or 1.0
            digits = ",".join(f"{value / size:.2f}" for value in vector).replace("-0.00", "0.00")
            digest = hashlib.sha256(digits.encode()).hexdigest()[:16]
            self._model = EmbeddingModel(self.name, len(vector), digest)
        return self._model

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text. Errors of the model itself are raised as they are.

        Raises:
            InputError: the model did not return a finite vector per text, all of the same dimension.
            ServiceError: another thread has used the model for minutes.
        """
        if not self._lock.acquire(timeout=_TIMEOUT):
            raise ServiceError(f"{self.name} has not answered for {_TIMEOUT:.0f} s", hint="%search --embed-with none")
        try:
            output = self._embed(list(texts))
        finally:
            self._lock.release()
        try:
            vectors = [[float(value) for value in vector] for vector in output]
        except (TypeError, ValueError):
            kind = type(output).__name__
            raise InputError(f"{self.name} did not return vectors of numbers: {kind}", hint=_SHAPE) from None
        dimensions = {len(vector) for vector in vectors}
        if len(vectors) != len(texts) or len(dimensions) != 1 or dimensions == {0}:
            output = f"{len(vectors)} vectors of dimensions {sorted(dimensions)} for {len(texts)} texts"
            raise InputError(f"{self.name} gave {output}", hint=_SHAPE)
        if not all(map(math.isfinite, (value for vector in vectors for value in vector))):
            raise InputError(f"{self.name} gave a vector that is not finite", hint=_SHAPE)
        return vectors


_SHAPE = "def embed(texts): return [[0.1, 0.2], ...], a vector per text, all of one dimension"


def embedder(
    http: HttpClient,
    model: str | Embed,
    name: str | None = None,
    key_env: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Embedder:
    """Make an embedding model.

    Args:
        http: Sends requests to a URL.
        model: A function of a list of texts, or a URL such as `https://api.example/v1`, or a folder or name that
            `sentence_transformers` loads.
        name: The name of the model at the URL.
        key_env: The variable with the API key. None is OPENAI_API_KEY for OpenAI's own URL, and no key for others.
        environment: The environment variables.

    Raises:
        InputError: `model` is none of these, or the URL needs a name.
    """
    if callable(model):
        return Embedder(name or str(getattr(model, "__qualname__", type(model).__name__)), model)
    if not isinstance(model, str) or not model.strip():
        raise InputError(f"{model!r} is not an embedding model", hint="a function, an address, a folder or a name")
    if "://" in model:
        if not name:
            hint = f"%search --embed-with {model} --model NAME"
            raise InputError(f"the embedding service at {model} needs the name of a model", hint=hint)
        variable = key_env or (_OPENAI_KEY_ENV if urlsplit(model).hostname == _OPENAI else None)
        token = environment.get(variable) if variable else None
        return Embedder(
            f"{name} at {model}", lambda texts: _request_embeddings(http, model, name, token, texts), variable
        )
    folder = path_of(model, "%search --embed-with FOLDER")
    known, source = (folder.name, str(folder)) if folder.is_dir() else (model, model)
    return Embedder(name or known, _local(source))


def _local(name: str) -> Embed:
    """Return a sentence-transformers model in this process, which is loaded when the first text is embedded."""

    @cache
    def model() -> Any:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            message = f"the embedding model {name!r} needs sentence-transformers"
            raise InputError(message, hint="pip install sentence-transformers") from None
        try:
            return SentenceTransformer(name)
        except (OSError, ValueError) as error:
            raise InputError(f"the embedding model {name!r} cannot be loaded: {error}", hint="a folder") from error

    return lambda texts: model().encode(list(texts), show_progress_bar=False, convert_to_numpy=True)


def _request_embeddings(http: HttpClient, url: str, model: str, token: str | None, texts: Sequence[str]) -> list[Any]:
    """POST /embeddings (OpenAI API reference, Embeddings): `data[i].embedding` belongs to text `data[i].index`."""
    body = {"model": model, "input": list(texts), "encoding_format": "float"}
    address = f"{url.rstrip('/')}/embeddings"
    answer = http.run(http.request("POST", address, token=token, json=body, retry=True, timeout=_TIMEOUT))
    try:
        rows = sorted(answer["data"], key=lambda each: each["index"])
        return [each["embedding"] for each in rows]
    except (KeyError, TypeError) as error:
        raise ServiceError(f"{url} did not return embeddings", hint="an address that ends in /v1") from error


_TEXTS = 64
_MAX_CHARACTERS = 24_000
"""The most characters of a document that are embedded. Models truncate further themselves."""


class VectorUpdater:
    """Computes missing vectors of records, in one process at a time. Searches use the vectors that exist.

    embedder: None for keyword search.
    """

    def __init__(self, records: MirroredRecords, lock: Path, embedder: Embedder | None) -> None:
        self.embedder = embedder
        self._records = records
        self.lock = Lock(lock)

    def find_mixed(self) -> str | None:
        """Return a message if the stored vectors are of another embedding model; None if they are not."""
        known = self._records.model
        if self.embedder is None or known is None or known == self.embedder.model or not self._records.count_embedded():
            return None
        stored, here = (f"{model.name} ({model.dimension})" for model in (known, self.embedder.model))
        return f"mixed embedding spaces: the index has vectors of {stored}, the model here is {here}"

    def check(self) -> None:
        """Raise InputError if vectors of two models would be mixed."""
        if problem := self.find_mixed():
            raise InputError(problem, hint="%search --reindex makes all vectors anew")

    def update(self, progress: Callable[[str, int, int], None], *, timeout: float = -1) -> None:
        """Embed every document without a vector. An interrupted update continues where it stopped.

        timeout: seconds to wait for another process that updates the vectors, before filelock's Timeout is raised.
        """
        embedder = self.embedder  # another thread may replace it
        if embedder is None or self._records.count_embedded() == self._records.count or self.find_mixed():
            return
        with self.lock.acquire(timeout=timeout):
            model = embedder.model
            if self._records.model != model:
                self._records.set_model(model.name, model.dimension, model.digest)
            total, done, last = self._records.count, self._records.count_embedded(), 0
            while batch := self._records.without_vectors(last, _TEXTS):
                progress("embedding", done, total)
                vectors = embedder([bare.document[:_MAX_CHARACTERS] for bare in batch])
                self._records.embed({bare.id: vector for bare, vector in zip(batch, vectors, strict=True)})
                done, last = done + len(batch), batch[-1].row
