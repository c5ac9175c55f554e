"""Client of the Tinker API over its SDK (tested with 0.24.1), in plain values; no other module imports `tinker`.

A call that changes a model waits for its answer, because servers may reorder requests of one model. Each wait has a
timeout, because the SDK asks for ever if a server answers 500. Documentation of the API: https://tinker-docs.thinkingmachines.ai
"""

import inspect
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import tinker
from tinker import types
from tinker.lib.client_connection_pool_type import ClientConnectionPoolType

from rolloutlab.api.http.client import HttpClient
from rolloutlab.errors import (
    BrokenOffError,
    Cancelled,
    InputError,
    NotFoundError,
    PolicyError,
    RefusedError,
    ServiceError,
    SignInError,
    UnreachableError,
)

_SLICE, _CLOSING_SECONDS, _CONNECT_SECONDS, _ANSWER_SECONDS = 0.2, 5.0, 30.0, 5.0
_TOKENS = 32_768
"""The most tokens that are scored in one request."""
_EXAMPLES, _BYTES, _TOKEN_BYTES = 1024, 4_900_000, 40
"""The limits of one request. The SDK cuts at 1,024 examples, and at 5 MB by its estimate of 40 bytes per token."""
_ALIKE, _SHORT = 8, 128
"""Requests are filled up to a multiple of 8 sequences, so that servers on JAX compile for few shapes, unless one is
longer than 128 tokens."""
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_KEY_HINT = "export TINKER_API_KEY=..., a key of this server"
_NO_KEY = "tml-none"
"""Self-hosted servers take any key, but the SDK takes only keys that begin like this one."""
_OLDER = "the server may speak the older protocol: pip install tinker==0.24.1"
_START = "start the server, or name the one that runs: --engine-url URL, for a notebook ROLLOUTLAB_ENGINE_URL=URL"
_AGAIN = "start the server again; a job that has failed can be given again, from the newest checkpoint"
_LOST = ("not loaded", "not found")
_KEYS = ("tml-", "eyJ")
_NO_ROOM = "Maximum number of LoRA adapters"
Cancel = Callable[[], bool]


class LostModelError(ServiceError):
    """A model is no longer in the server's memory: it was restarted, or had no room."""


class NoRoomError(ServiceError):
    """The server's memory is full of models."""


@dataclass(frozen=True)
class Datum:
    """A sequence of tokens. For a gradient it has also the logprob and advantage of each token but the first."""

    ids: Sequence[int]
    logprobs: Sequence[float] | None = None
    advantages: Sequence[float] | None = None

    def to_sdk(self) -> Any:
        """Convert the datum to that of the SDK."""
        inputs: dict[str, Any] = {"target_tokens": _integers(self.ids[1:])}
        if self.logprobs is not None and self.advantages is not None:
            inputs |= {"logprobs": _floats(self.logprobs), "advantages": _floats(self.advantages)}
        return types.Datum(model_input=types.ModelInput.from_ints(list(self.ids[:-1])), loss_fn_inputs=inputs)


@dataclass(frozen=True)
class Adam:
    """Settings of an AdamW step; the defaults are those of the embedded service. grad_clip_norm: 0 is off."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.1
    grad_clip_norm: float = 1.0


@dataclass(frozen=True)
class Sampling:
    """Settings of one completion. stop: token ids; stop strings are left to the caller."""

    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stop: Sequence[int]


class TinkerClient:
    """Models with LoRA adapters on one base, in a server's memory. model: the base's name there. timeout: in seconds.

    steps: how many were taken so far.

    Raises:
        InputError: the key would go over an unencrypted connection. PolicyError: the SDK is too new.
        UnreachableError, BrokenOffError, SignInError, RefusedError, ServiceError: of every call. LostModelError: of a
        call with a model. Cancelled: `cancelled` wants it; the server may compute on.
    """

    def __init__(
        self, url: str, api_key: str | None, model: str, rank: int, seed: int = 0, *, timeout: float = 600.0
    ) -> None:
        _check_address(url, api_key)
        self.url, self.model, self.rank, self.steps = url, model, rank, 0
        self._seed, self._timeout, self._key = seed, timeout, api_key
        self._closing = threading.Event()
        self._advice = f"rolloutlab engine check --engine tinker --engine-url {url} --policy {model}"
        os.environ["TINKER_TELEMETRY"] = "0"  # the SDK would send errors, with their messages, to the server
        if "api_key" in inspect.signature(tinker.ServiceClient).parameters:
            message = f"tinker {version('tinker')} takes no HTTP client, and its own follows redirects with the API key"
            raise PolicyError(message, hint="pip install 'tinker<0.31'")
        self._http = _client_without_redirects(url)
        self._service = tinker.ServiceClient(base_url=url, api_key=api_key or _NO_KEY, http_client=self._http)

    def check_answers(self, cancelled: Cancel | None = None) -> None:
        """Ask once, without the key, because the SDK asks for minutes if nothing answers, and does not say why.

        Raises UnreachableError: nothing answers. ServiceError: the answer has the status 404 or 5xx, or is not JSON.
        """

        def check_wanted() -> None:
            if self._closing.is_set() or (cancelled and cancelled()):
                raise Cancelled

        http = HttpClient(tries=1)  # more would be minutes for a 503
        url = f"{self.url.rstrip('/')}/api/v1/get_server_capabilities"
        try:
            http.run(http.request("GET", url, timeout=_ANSWER_SECONDS), check_wanted)
        except (SignInError, RefusedError):
            return
        except UnreachableError as error:
            raise type(error)(error.message, hint=_START) from error
        except NotFoundError as error:
            raise ServiceError(f"{self.url} has no Tinker API: {error.message}", hint=_START) from error
        except ServiceError as error:
            raise ServiceError(error.message, hint=_START) from error
        finally:
            http.close()

    def models(self) -> list[str]:
        """List the names of the bases that the server offers."""
        offered = self._result(
            _run_in_thread(self._service.get_server_capabilities), seconds=_CONNECT_SECONDS
        ).supported_models
        return [name for each in offered if (name := each.model_name)]

    def create(self, state: str | None = None, *, optimizer: bool = False, cancelled: Cancel | None = None) -> Any:
        """Make a model: a new one, or one of a saved state. optimizer: with the AdamW moments of the state."""
        if state is None:
            kind = {"rank": self.rank, "seed": self._seed, "train_unembed": False}
            made = _run_in_thread(lambda: self._service.create_lora_training_client(self.model, **kind))
        elif optimizer:
            made = _run_in_thread(lambda: self._service.create_training_client_from_state_with_optimizer(state))
        else:
            made = _run_in_thread(lambda: self._service.create_training_client_from_state(state))
        try:
            return self._result(made, cancelled)
        except (Cancelled, BrokenOffError):
            made.add_done_callback(self._unload_late)
            raise

    def _unload_late(self, made: "Future[Any]") -> None:
        if not made.exception():
            self.unload(made.result())

    def unload(self, model: Any) -> None:
        """Free a model's place in the server's memory, if the server has a call for it."""
        holder, request = model.holder, types.UnloadModelRequest(model_id=model.model_id)

        async def post() -> None:
            with holder.aclient(ClientConnectionPoolType.TRAIN) as client:
                await client.models.unload(request=request)

        with suppress(ServiceError, Cancelled):
            self._call(lambda: holder.run_coroutine_threadsafe(post()), seconds=_CLOSING_SECONDS)

    def logprobs(
        self, model: Any, sequences: Sequence[Sequence[int]], cancelled: Cancel | None = None
    ) -> list[list[float]]:
        """Score each token but the first of each sequence, in nats, by the unscaled full-vocabulary distribution.

        Raises ServiceError: they are not finite numbers, or not as many.
        """
        scored: list[list[float]] = []
        for part in _parts(sequences):
            data = [Datum(ids).to_sdk() for ids in [*part, *[part[0][:2]] * count_padding(map(len, part))]]
            answer = self._call(partial(model.forward, data, "cross_entropy"), cancelled)
            with self._errors():
                outputs = answer.loss_fn_outputs[: len(part)]
                scored += [list(map(float, each["logprobs"].data)) for each in outputs]
        if [len(each) + 1 for each in scored] != [len(ids) for ids in sequences]:
            raise ServiceError("the server scored another number of tokens than it was sent", hint=self._advice)
        _check_finite(value for each in scored for value in each)
        return scored

    def learn(self, model: Any, examples: Sequence[Datum], cancelled: Cancel | None = None) -> None:
        """Let the server add the gradient of -sum(advantages · exp(new - logprobs)) to those of the next step."""
        data = [each.to_sdk() for each in examples]
        self._call(lambda: model.forward_backward(data, "importance_sampling"), cancelled)

    def step(self, model: Any, adam: Adam) -> float:
        """Take an AdamW step with the gradients that were added; return the norm of their sum before clipping.

        The norm is NaN if the server reports none.
        """
        self.steps += 1
        answer = self._call(lambda: model.optim_step(types.AdamParams(**vars(adam))))
        metrics = answer.metrics or {}
        return next((float(value) for name, value in metrics.items() if "grad_norm" in name), math.nan)

    def save(self, model: Any, ttl: int | None = None) -> str:
        """Save weights and moments under a new name; return the state's path. ttl: seconds until it may be deleted."""
        return str(self._call(lambda: model.save_state(uuid4().hex, ttl)).path)

    def sampler(self, model: Any) -> tuple[str, Any]:
        """Return path and client to sample from the model as it is.

        The model must not be trained, or saved in this way, again: some servers sample its newest weights under the
        older path, or overwrite the weights that it trains by older ones.
        """
        return self._sampler(self._call(lambda: model.save_weights_for_sampler(uuid4().hex)))

    def finish(self, model: Any) -> tuple[str, str, Any]:
        """Do what `save` and `sampler` do, with both requests sent before either answer is waited for."""
        with self._errors():
            state, weights = model.save_state(uuid4().hex, None), model.save_weights_for_sampler(uuid4().hex)
        return str(self._result(state).path), *self._sampler(self._result(weights))

    def _sampler(self, weights: Any) -> tuple[str, Any]:
        path = str(weights.path)
        return path, self._result(_run_in_thread(lambda: self._service.create_sampling_client(model_path=path)))

    def sample(self, sampler: Any, prompt: Sequence[int], settings: Sampling, count: int) -> Any:
        """Post a request of `count` completions, with seeds that count up by 1; `await_samples` waits for them."""
        values = {**vars(settings), "stop": list(settings.stop)}
        return sampler.sample(types.ModelInput.from_ints(list(prompt)), count, types.SamplingParams(**values))

    def await_samples(
        self, posted: Any, count: int, cancelled: Cancel | None = None
    ) -> list[tuple[list[int], list[float]]]:
        """Wait for completions; return the tokens of each and their logprobs."""
        answer = self._result(posted, cancelled)
        with self._errors():
            rows = [(list(each.tokens), list(each.logprobs or ())) for each in answer.sequences]
            if len(rows) != count:
                raise ValueError(f"{len(rows)} completions instead of {count}")
        if any(len(tokens) != len(logprobs) for tokens, logprobs in rows):
            raise ServiceError("the server sampled tokens without their logprobs", hint=self._advice)
        _check_finite(value for _, logprobs in rows for value in logprobs)
        return rows

    def pause(self, seconds: float, cancelled: Cancel) -> None:
        """Wait. Raises Cancelled if that is wanted during the wait or right after it."""
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            if self._closing.wait(max(0.0, min(_SLICE, left))) or cancelled():
                raise Cancelled
            if left <= 0:
                return

    def cancel(self) -> None:
        """End every call that waits, with Cancelled."""
        self._closing.set()

    def close(self) -> None:
        """Release connections. The SDK's thread ends with the process."""
        self.cancel()
        for name in ("_rest_holder", "_session_holder"):
            if holder := getattr(self._service, name, None):
                closed = holder.run_coroutine_threadsafe(self._http.aclose())
                wait([closed.future()], _CLOSING_SECONDS)
                holder.close()

    def _call(self, post: Callable[[], Any], cancelled: Cancel | None = None, seconds: float | None = None) -> Any:
        with self._errors():
            posted = post()
        return self._result(posted, cancelled, seconds)

    def _result(self, posted: Any, cancelled: Cancel | None = None, seconds: float | None = None) -> Any:
        future: Future[Any] = posted if isinstance(posted, Future) else posted.future()
        seconds = min(seconds or self._timeout, self._timeout)
        end = time.monotonic() + seconds
        while not wait([future], min(_SLICE, seconds)).done:
            if self._closing.is_set() or (cancelled and cancelled()):
                future.cancel()
                raise Cancelled
            if time.monotonic() > end:
                future.cancel()
                raise BrokenOffError(f"{self.url} has not answered for {seconds:g} s", hint=_AGAIN)
        with self._errors():
            return future.result()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Map errors of the SDK to those of this package, without the key."""
        try:
            yield
        except (tinker.AuthenticationError, tinker.PermissionDeniedError) as error:
            raise SignInError(f"{self.url} refuses the API key", hint=_KEY_HINT) from error
        except tinker.APIConnectionError as error:
            raise UnreachableError(f"no connection to {self.url}: {error}", hint=_AGAIN) from error
        except (
            KeyError,
            AttributeError,
            TypeError,
            ValueError,
            AssertionError,
            RuntimeError,
            tinker.TinkerError,
        ) as error:
            text = str(error).replace(self._key, "...")[:300] if self._key else str(error)[:300]
            if _NO_ROOM in text:
                raise NoRoomError(text, hint="a larger max_lora_adapters in the server's --backend-config") from error
            if "heckpoint" not in text and any(words in text for words in _LOST):
                raise LostModelError(text, hint=_AGAIN) from error
            status = getattr(error, "status_code", 0)
            if status >= 500:
                raise BrokenOffError(f"{self.url} answered {status}: {text}", hint=_AGAIN) from error
            if not status and ("Error retrieving result" not in text or "validation error" in text):
                text = f"an answer of another form than the SDK expects: {type(error).__name__}: {text}"
            hint = _OLDER if "proto" in text or "valid dictionary" in text else self._advice
            raise RefusedError(f"{self.url}: {text}", hint=hint, status=status) from error


def _check_address(url: str, api_key: str | None) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"}:  # HOST:PORT is of another engine
        raise InputError(f"{url!r} is not the address of a Tinker server", hint="https://HOST or http://127.0.0.1:PORT")
    if api_key and not api_key.startswith(_KEYS):
        raise InputError("the API key does not begin with tml-, as the SDK of Tinker servers asks", hint=_KEY_HINT)
    if api_key and parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        raise InputError(f"the API key is not sent to {url} without encryption", hint=f"https://{parts.netloc}")


def _client_without_redirects(url: str) -> Any:
    """Make an HTTP client as the SDK does, but one that follows no redirect, so that the key goes to no other host."""
    from tinker._base_client import DefaultAsyncHttpxClient

    return DefaultAsyncHttpxClient(base_url=url, follow_redirects=False)


def _run_in_thread(function: Callable[[], Any]) -> "Future[Any]":
    """Run a call that may block in a thread. Its value may be a future, as of later versions of the SDK."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            value = function()
            future.set_result(value.result() if hasattr(value, "result") else value)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is wanted
            future.set_exception(error)

    threading.Thread(target=run, name="tinker", daemon=True).start()
    return future


def _parts(sequences: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Yield the sequences in parts of at most `_TOKENS` tokens, or of one sequence."""
    part: list[Sequence[int]] = []
    for ids in sequences:
        if part and sum(map(len, part)) + len(ids) > _TOKENS:
            yield part
            part = []
        part.append(ids)
    if part:
        yield part


def divide_into_requests(lengths: Sequence[int]) -> Iterator[slice]:
    """Divide sequences of these lengths, in order, into requests that the SDK does not divide further."""
    begin, size = 0, 0
    for i, length in enumerate(lengths):
        if i > begin and (size + length * _TOKEN_BYTES > _BYTES or i - begin == _EXAMPLES - _ALIKE):
            yield slice(begin, i)
            begin, size = i, 0
        size += length * _TOKEN_BYTES
    if lengths:
        yield slice(begin, len(lengths))


def count_padding(lengths: Iterable[int]) -> int:
    """Count the sequences by which a request with sequences of these lengths is filled up."""
    each = list(lengths)
    return -len(each) % _ALIKE if max(each) <= _SHORT else 0


def _check_finite(values: Any) -> None:
    if not all(math.isfinite(value) for value in values):
        raise ServiceError("the server's logprobs are not finite numbers", hint="an earlier checkpoint")


def _integers(values: Sequence[int]) -> Any:
    return types.TensorData(data=list(values), dtype="int64", shape=[len(values)])


def _floats(values: Sequence[float]) -> Any:
    return types.TensorData(data=list(values), dtype="float32", shape=[len(values)])
