"""Completions of a vLLM server, for an engine that trains elsewhere.

Built to the documented API of vLLM 0.15 to 0.33: `POST /v1/completions` on token ids, and LoRA adapters that are loaded
while it runs (docs.vllm.ai, "LoRA Adapters"). The server reads a checkpoint's adapter from its folder by itself.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rolloutlab.api.http.client import HttpClient
from rolloutlab.engines.engine import Engine, OnToken
from rolloutlab.engines.received import Receiver, SampledToken, seed_of
from rolloutlab.errors import (
    BrokenOffError,
    InputError,
    NotFoundError,
    NotOfferedError,
    RolloutlabError,
    ServiceError,
    SignInError,
    UnreachableError,
)
from rolloutlab.policy.checkpoints import check_checkpoint, identity
from rolloutlab.policy.decode import Completion, CompletionRequest
from rolloutlab.policy.task import Callbacks, Task
from rolloutlab.policy.token_sequence import TokenSequence

_TIMEOUT = 3600.0  # seconds: a completion that waits its turn sends nothing before its end
_TUNNEL = "ssh -fN -L 8000:127.0.0.1:8000 HOST, and --sampler-url http://127.0.0.1:8000"
_KEY = "export VLLM_API_KEY=..., the --api-key of the server"
_RUNNING = "start vLLM, or name the one that runs: --sampler-url URL, for a notebook ROLLOUTLAB_SAMPLER_URL=URL"
_START = "vllm serve BASE --enable-lora --max-lora-rank RANK, with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"


class _Card(BaseModel):
    """A model of `GET /v1/models`."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Logprob(BaseModel):
    logprob: float


class _Logprobs(BaseModel):
    """The logprobs of sampled tokens. Keys of the most likely tokens have the form `token_id:17`."""

    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(BaseModel):
    """A choice of `POST /v1/completions`, or the part of it that an event has."""

    token_ids: list[int] = []
    logprobs: _Logprobs | None = None
    prompt_logprobs: list[dict[int, _Logprob] | None] | None = None
    finish_reason: str | None = None


class VllmSampled:
    """An engine whose completions a vLLM server samples. It trains and scores as without the server.

    engine: closed with this one, or if it cannot be made. url: of the server, without /v1. names: what the base may be
    called there, or its folder. key: as of the server's `--api-key`; over https or to this machine. http: for tests.

    Raises:
        UnreachableError: it does not answer. SignInError: it wants another key. InputError: it serves another base.
    """

    def __init__(
        self, engine: Engine, url: str, names: Collection[str], key: str | None = None, http: HttpClient | None = None
    ) -> None:
        self._engine, self._url, self._key = engine, url, key
        self._http = http or HttpClient()
        try:
            card = self._http.run(self._find_served(names))
        except BaseException:
            self.close()
            raise
        self._model = card.id
        self.name, self.unsupported = engine.name, engine.unsupported
        self.base = replace(engine.base, context=min(engine.base.context, card.max_model_len or engine.base.context))
        self._receiver = Receiver(self.base)
        self._adapters: dict[Path, str] = {}
        self._loading: dict[str, asyncio.Task[None]] = {}

    def status(self) -> Mapping[str, str]:
        """See `Engine`."""
        return {**self._engine.status(), "sampler": f"vLLM at {self._url}"}

    def create_initial(self, folder: Path) -> None:
        """See `Engine`."""
        self._engine.create_initial(folder)

    def fits(self, checkpoint: Path) -> bool:
        """See `Engine`."""
        return self._engine.fits(checkpoint)

    def sample(
        self, checkpoint: Path | None, requests: Sequence[CompletionRequest], on_token: OnToken | None = None
    ) -> Future[list[Completion]]:
        """See `Engine`. Without `on_token`, or with forced tokens, tokens arrive at a completion's end."""
        if checkpoint and (checkpoint := checkpoint.absolute()) not in self._adapters:
            check_checkpoint(checkpoint)
            self._adapters[checkpoint] = f"rolloutlab-{identity(checkpoint)[:32]}"
        return self._http.submit(self._sample(checkpoint, requests, on_token))

    def logprobs(self, checkpoint: Path | None, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """See `Engine`."""
        return self._engine.logprobs(checkpoint, sequences)

    def train(self, source: Path, target: Path, task: Task, callbacks: Callbacks) -> None:
        """See `Engine`."""
        self._engine.train(source, target, task, callbacks)

    def forget(self, checkpoint: Path) -> None:
        """See `Engine`. An adapter that cannot be unloaded now leaves the server's memory by disuse."""
        self._engine.forget(checkpoint)
        if name := self._adapters.pop(checkpoint.absolute(), None):
            self._http.begin(self._unload(name))

    def close(self) -> None:
        """See `Engine`. The server keeps the adapters that it has loaded."""
        self._http.close()
        self._engine.close()

    async def _sample(
        self, checkpoint: Path | None, requests: Sequence[CompletionRequest], on_token: OnToken | None
    ) -> list[Completion]:
        each = [asyncio.create_task(self._complete(checkpoint, request, on_token)) for request in requests]
        try:
            return await asyncio.gather(*each)
        finally:
            for task in each:  # vLLM abandons a completion whose connection is closed
                task.cancel()

    async def _complete(
        self, checkpoint: Path | None, request: CompletionRequest, on_token: OnToken | None
    ) -> Completion:
        model = await self._model_of(checkpoint)
        try:
            return await self._receive(model, request, on_token)
        except NotFoundError:  # the server was started again, or dropped the adapter
            self._loading.pop(model, None)
            return await self._receive(await self._model_of(checkpoint), request, on_token)

    async def _receive(self, model: str, request: CompletionRequest, on_token: OnToken | None) -> Completion:
        received = self._receiver.open(request, on_token)
        reason: str | None = None
        async with aclosing(self._choices(_body(model, request, self.base.end_ids), stream=bool(on_token))) as choices:
            async for choice in choices:
                reason = choice.finish_reason
                if received.feed(_tokens(choice, request)):
                    return received.row
        if not reason or not received.row.tokens:
            raise BrokenOffError(f"the answer of {self._url} ended before the completion did")
        if reason not in {"stop", "length"}:  # such as `abort`, of a server that was paused for new weights
            raise BrokenOffError(f"{self._url} broke off the completion: {reason}")
        # stop: at a token that its generation config names besides the end of a turn
        received.row.finish = "stop" if reason == "stop" else "length"
        return received.row

    async def _choices(self, body: dict[str, Any], *, stream: bool) -> AsyncGenerator[_Choice, None]:
        """Yield the choice of an answer, or its parts as they arrive."""
        url = f"{self._url}/v1/completions"
        if not stream or "prompt_logprobs" in body:  # vLLM does not stream `prompt_logprobs`
            yield self._choice(await self._post(url, body))
            return
        content = json.dumps({**body, "stream": True})
        async with aclosing(self._http.events(url, token=self._key, content=content, timeout=_TIMEOUT)) as events:
            async for event in events:
                yield self._choice(event)

    def _choice(self, answer: Any) -> _Choice:
        """Read the choice of an answer, or of an event's text. Raises ServiceError if it has none, or an error."""
        answer = _json(answer)
        if isinstance(answer, dict) and (failure := answer.get("error")):
            reason = str(failure.get("message") if isinstance(failure, dict) else failure)
            raise ServiceError(f"vLLM failed: {reason.replace(self._key, '...') if self._key else reason}")
        if (choice := _choice(answer)) is None:
            raise ServiceError("vLLM answered with no completion", hint="vLLM 0.15 or later")
        return choice

    async def _post(self, url: str, body: Any) -> Any:
        return await self._http.request("POST", url, token=self._key, json=body, timeout=_TIMEOUT, retry=True)

    async def _find_served(self, names: Collection[str]) -> _Card:
        try:
            self._http.unencrypted.check(self._url, ["Authorization"] if self._key else [])
            answer = await self._http.request("GET", f"{self._url}/v1/models", token=self._key, timeout=10.0)
        except InputError as error:
            raise InputError(error.message, hint=_TUNNEL) from None
        except UnreachableError as error:
            raise type(error)(error.message, hint=_RUNNING) from error
        except SignInError as error:
            raise SignInError(error.message, hint=_KEY) from error
        if (cards := _cards(answer)) is None:
            raise ServiceError(f"{self._url} lists no models", hint="the address of a vLLM server")
        for card in cards:
            if card.parent is None and {card.id, card.root} & set(names):
                return card
        served = ", ".join(card.id for card in cards if card.parent is None)
        raise InputError(f"{self._url} serves {served or 'no model'}, not {min(names, key=len)}", hint=_START)

    async def _model_of(self, checkpoint: Path | None) -> str:
        """Return the name of a checkpoint's model on the server, once its adapter is loaded."""
        if checkpoint is None:
            return self._model
        name = self._adapters[checkpoint]
        if name not in self._loading:
            self._loading[name] = asyncio.create_task(self._load(name, checkpoint))
        try:
            await asyncio.shield(self._loading[name])  # a cancelled chat does not end the loading for the others
        except RolloutlabError:
            self._loading.pop(name, None)
            raise
        return name

    async def _load(self, name: str, checkpoint: Path) -> None:
        body = {"lora_name": name, "lora_path": str(checkpoint)}
        try:
            await self._change_adapters("load", body)
        except NotOfferedError as error:
            raise ServiceError(f"{self._url} loads no adapters while it runs", hint=_START) from error
        except NotFoundError as error:
            hint = "the folder of the lab under the same path on both machines"
            raise ServiceError(f"vLLM does not see {checkpoint}: {error.message}", hint=hint) from error
        except UnreachableError:
            raise
        except ServiceError as error:
            if "already been loaded" not in error.message:
                raise ServiceError(f"vLLM does not load {checkpoint}: {error.message}", hint=_START) from error

    async def _unload(self, name: str) -> None:
        self._loading.pop(name, None)
        with suppress(RolloutlabError):
            await self._change_adapters("unload", {"lora_name": name})

    async def _change_adapters(self, verb: str, body: Mapping[str, str]) -> None:
        """Request POST /v1/{verb}_lora_adapter, which answers with a sentence and not with JSON."""
        url = f"{self._url}/v1/{verb}_lora_adapter"
        async with aclosing(self._http.events(url, token=self._key, content=json.dumps(body), timeout=600.0)) as answer:
            async for _ in answer:
                pass


def _body(model: str, request: CompletionRequest, end_ids: Collection[int]) -> dict[str, Any]:
    """Write the request of a completion. It names all that vLLM would else take from the generation config."""
    start = request.forced[: request.max_tokens]
    body = {
        "model": model,
        "prompt": [*request.prompt, *start],
        "max_tokens": max(request.max_tokens - len(start), 1),
        "temperature": request.temperature,
        "top_p": max(request.top_p, 1e-6),  # 0 is refused
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": seed_of(request),
        "stop": list(request.stops),
        "stop_token_ids": sorted(end_ids),
        "ignore_eos": True,  # but for those
        "logprobs": request.top,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    return {**body, "prompt_logprobs": request.top} if start else body


def _json(answer: Any) -> Any:
    """Parse the JSON of an event's text; return other answers as they are."""
    if not isinstance(answer, str):
        return answer
    with suppress(ValueError):
        return json.loads(answer)
    raise ServiceError("vLLM sent an event that is not JSON")


def _choice(answer: Any) -> _Choice | None:
    """Read the one choice of an answer; None if it has none."""
    with suppress(ValidationError, LookupError, TypeError):
        choices = answer["choices"]
        return _Choice.model_validate(choices[0]) if choices else _Choice()
    return None


def _cards(answer: Any) -> list[_Card] | None:
    """Read the models of a list; None if it is no list of models."""
    with suppress(ValidationError, LookupError, TypeError):
        return [_Card.model_validate(card) for card in answer["data"]]
    return None


def _tokens(choice: _Choice, request: CompletionRequest) -> Iterator[SampledToken]:
    """Yield the tokens of a choice, forced ones first. Raises ServiceError if one has no logprob."""
    if forced := request.forced[: request.max_tokens]:
        scored = (choice.prompt_logprobs or [])[len(request.prompt) :]
        for token, each in zip_longest(forced, scored[: len(forced)]):
            if not each or token not in each:
                raise ServiceError("vLLM answered without the logprob of each token of the prompt")
            best = sorted(((i, p.logprob) for i, p in each.items()), key=lambda pair: -pair[1])
            yield SampledToken(token, each[token].logprob, best[: request.top])
    given = choice.logprobs or _Logprobs()
    for token, logprob, top in zip_longest(choice.token_ids, given.token_logprobs, given.top_logprobs or []):
        if token is None or logprob is None:
            raise ServiceError("vLLM answered without the logprob of each token", hint="vLLM 0.15 or later")
        named = [(_id(name), p) for name, p in (top or {}).items()] if request.top else []
        yield SampledToken(token, logprob, sorted(named, key=lambda pair: -pair[1])[: request.top])


def _id(name: str) -> int:
    """Read the token id of a name like `token_id:17`."""
    try:
        return int(name.removeprefix("token_id:"))
    except ValueError as error:
        raise ServiceError(f"vLLM names the token {name!r} by its text", hint="vLLM 0.15 or later") from error
