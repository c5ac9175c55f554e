"""A strict server of the Tinker API for one tiny policy, so that its logprobs and gradients are those of ours.

It speaks the JSON dialect of SDK 0.24.1, whose own request types it validates with, and refuses unknown fields where
these do not. Its traps are those of SkyRL's server: sampling an older checkpoint of a model overwrites the weights that
are being trained, the weight decay of a step shrinks all models, a lost model fails its futures, logprobs that are no
numbers give status 500, a name saved twice 409.
"""

import math
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal
from urllib.parse import urlsplit

import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, RedirectResponse
from tinker import _base_client, types
from tinker.lib import retry_handler
from tinker.types._pydantic_types.forward_backward_request import ForwardBackwardRequest
from tinker.types._pydantic_types.forward_request import ForwardRequest
from tinker.types._pydantic_types.sampling_params import SamplingParams
from tinker.types.create_sampling_session_request import CreateSamplingSessionRequest
from tinker.types.future_retrieve_request import FutureRetrieveRequest
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rolloutlab.integrations.tinker.client import TinkerClient
from rolloutlab.integrations.tinker.engine import TinkerEngine
from rolloutlab.policy.base import Base
from rolloutlab.policy.model import Policy, adapter_parameters, base_of, read_adapter, write_adapter

RETRIEVAL_SECONDS, PATIENCE = 1.0, 60.0

# the SDK's thread outlives a test, and Hypothesis refuses draws while the global generator changes
_base_client.random = Random(0).random
retry_handler.random = Random(0)


class WeightsInfoRequest(BaseModel):
    tinker_path: str


REQUESTS: dict[str, type[BaseModel]] = {
    "client/config": types.ClientConfigRequest,
    "create_session": types.CreateSessionRequest,
    "session_heartbeat": types.SessionHeartbeatRequest,
    "create_model": types.CreateModelRequest,
    "forward": ForwardRequest,
    "forward_backward": ForwardBackwardRequest,
    "optim_step": types.OptimStepRequest,
    "save_weights": types.SaveWeightsRequest,
    "load_weights": types.LoadWeightsRequest,
    "save_weights_for_sampler": types.SaveWeightsForSamplerRequest,
    "weights_info": WeightsInfoRequest,
    "create_sampling_session": CreateSamplingSessionRequest,
    "asample": types.SampleRequest,
    "unload_model": types.UnloadModelRequest,
    "retrieve_future": FutureRetrieveRequest,
}


class FailedFutureError(Exception):
    """The future of a request failed."""


@dataclass
class _Model:
    net: Any
    optimizer: torch.optim.AdamW
    gradients: dict[str, Tensor] = field(default_factory=dict)
    rows: int = 0
    loaded: str | None = None


@dataclass
class Server:
    """What a test sets and counts. model: name of the base. most: models in memory at once.

    means: whether gradients are means over tokens and rows, not sums. requests: of several before a step the mean is
    over all rows or over each one's, or only the last counts. clips: whether `grad_clip_norm` is honoured.
    leaks: whether weight decay shrinks other models. reports_norm: whether steps report the gradient's. broken: whether
    logprobs are NaN. odd: by the name of a request, what its answer is turned into. redirect: where every request is
    redirected to. status: of the answer to what the server can do. held: while it is not set, no future is answered.
    lose_after: number of the request `forward` before which all models are lost.
    """

    policy: Policy
    model: str
    means: bool = True
    requests: Literal["all", "each", "last"] = "all"
    clips: bool = True
    leaks: bool = False
    reports_norm: bool = True
    broken: bool = False
    most: int = 8
    odd: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    redirect: str | None = None
    status: int = 200
    lose_after: int | None = None
    url: str = ""
    calls: Counter[str] = field(default_factory=Counter)
    keys: set[str | None] = field(default_factory=set)
    bodies: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    models: dict[str, _Model] = field(default_factory=dict)
    saved: dict[str, tuple[dict[str, Tensor], dict[str, Any]]] = field(default_factory=dict)
    sessions: dict[str, str] = field(default_factory=dict)
    futures: dict[str, Any] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.RLock)
    held: threading.Event = field(default_factory=threading.Event)

    answering: str = ""
    stop: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.held.set()

    def start(self) -> None:
        """Listen at the url, until `stop`."""
        http = uvicorn.Server(uvicorn.Config(make_app(self), log_level="error", lifespan="off"))
        listener = _socket()
        listener.bind(("127.0.0.1", urlsplit(self.url).port or 0))
        listener.listen()
        thread = threading.Thread(target=http.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()

        def stop() -> None:
            http.should_exit = http.force_exit = True
            thread.join()
            listener.close()

        self.stop = stop

    def lose(self) -> None:
        """As if the server were restarted: saved states are on its disk, and models were in its memory."""
        with self.lock:
            self.models.clear()

    def answer(self, name: str, body: Any) -> Any:
        with self.lock:
            self.calls[name] += 1
            self.answering = name
            handler: Callable[[Any], Any] = getattr(self, "_" + name.replace("/", "_"))
            return handler(body)

    def _future(self, compute: Callable[[], Any], **more: Any) -> dict[str, Any]:
        """Compute at once; the answer is fetched later."""
        try:
            result = self.odd.get(self.answering, lambda answer: answer)(compute())
        except FailedFutureError as error:
            result = error
        name = str(len(self.futures))
        self.futures[name] = result
        return {"future_id": name, "request_id": name, "status": "pending", **more}

    def retrieve(self, body: FutureRetrieveRequest) -> Any:
        result = self.futures[body.request_id]
        if not self.held.wait(RETRIEVAL_SECONDS):
            return JSONResponse({"queue_state": "active"}, 408)
        if isinstance(result, FailedFutureError):
            raise HTTPException(400, str(result))
        if "nan" in repr(result):  # JSON has none
            return JSONResponse({"detail": "Internal Server Error"}, 500)
        return result

    def _client_config(self, body: Any) -> Any:
        return {"pjwt_auth_enabled": False}

    def _create_session(self, body: Any) -> Any:
        return {"type": "create_session", "session_id": "session_1"}

    def _session_heartbeat(self, body: Any) -> Any:
        return {"type": "session_heartbeat"}

    def _create_model(self, body: Any) -> Any:
        name = f"model_{self.calls['create_model']}"

        def make() -> Any:
            if len(self.models) >= self.most:
                raise FailedFutureError("Maximum number of LoRA adapters reached")
            net = self.policy.training_copy()
            self.models[name] = _Model(net, torch.optim.AdamW(adapter_parameters(net).values(), lr=0.0))
            return {"model_id": name, "base_model": body.base_model, "lora_config": body.lora_config.model_dump()}

        return self._future(make, model_id=name, base_model=body.base_model, lora_config=body.lora_config.model_dump())

    def _model(self, name: str) -> _Model:
        if name not in self.models:
            raise FailedFutureError(f"Model {name} not loaded")
        return self.models[name]

    def _forward(self, body: Any) -> Any:
        if self.calls["forward"] == self.lose_after:
            self.lose()

        def score() -> Any:
            model = self._model(body.model_id)
            with torch.no_grad():
                return self._scored(self._logprobs(model.net, body.forward_input.data))

        return self._future(score)

    def _scored(self, rows: list[Tensor]) -> Any:
        nan = float("nan") if self.broken else 0.0
        data = [{"data": [x + nan for x in row.tolist()], "dtype": "float32", "shape": [len(row)]} for row in rows]
        return {
            "loss_fn_output_type": "scalar",
            "loss_fn_outputs": [{"logprobs": each} for each in data],
            "metrics": {},
        }

    def _logprobs(self, net: Any, data: Any) -> list[Tensor]:
        """Of the targets of each datum, in one pass: what is after a text is padding, which nothing before it sees."""
        ids = [torch.tensor([token for chunk in datum.model_input.chunks for token in chunk.tokens]) for datum in data]
        targets = [torch.tensor(datum.loss_fn_inputs["target_tokens"].data) for datum in data]
        assert list(map(len, ids)) == list(map(len, targets)), "the SDK sent targets of another length"
        ids_BL, target_BL = (pad_sequence(each, batch_first=True) for each in (ids, targets))
        most = self.policy.vocabulary - 1
        logits_BLV = net(input_ids=ids_BL.clamp(max=most), use_cache=False).logits.float()
        scored_BL = logits_BLV.log_softmax(-1).gather(2, target_BL.clamp(max=most)[:, :, None])[:, :, 0]
        known_B = torch.maximum(ids_BL, target_BL).amax(1) <= most
        return [
            row_L[: len(each)] if known else torch.full((len(each),), math.nan)
            for row_L, each, known in zip(scored_BL, ids, known_B.tolist(), strict=True)
        ]

    def _forward_backward(self, body: Any) -> Any:
        request = body.forward_backward_input

        def learn() -> Any:
            model = self._model(body.model_id)
            parameters = adapter_parameters(model.net)
            if self.requests == "last":
                model.gradients, model.rows = {}, 0
            rows, losses = self._logprobs(model.net, request.data), []
            for datum, new_L in zip(request.data, rows, strict=True):
                inputs = {name: torch.tensor(each.data) for name, each in datum.loss_fn_inputs.items()}
                assert set(inputs) <= {"target_tokens", "weights", "logprobs", "advantages"}, set(inputs)
                weights_L = inputs.get("weights", torch.ones_like(new_L))
                if request.loss_fn == "cross_entropy":
                    loss_L = -new_L * weights_L
                elif request.loss_fn == "importance_sampling":
                    loss_L = -(new_L - inputs["logprobs"]).exp() * inputs["advantages"] * weights_L
                else:
                    raise FailedFutureError(f"no loss {request.loss_fn}")
                losses.append(loss_L.sum() / (weights_L.sum() if self.means else 1))
            loss = torch.stack(losses).sum() / (len(losses) if self.means and self.requests == "each" else 1)
            for name, gradient in zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True):
                model.gradients[name] = model.gradients.get(name, 0) + gradient
            model.rows += len(rows)
            return self._scored([row.detach() for row in rows])

        return self._future(learn)

    def _optim_step(self, body: Any) -> Any:
        settings = body.adam_params

        def step() -> Any:
            model = self._model(body.model_id)
            if not model.gradients:
                raise FailedFutureError("no gradients")
            for name, parameter in adapter_parameters(model.net).items():
                parameter.grad = model.gradients[name] / (model.rows if self.means and self.requests != "each" else 1)
            parameters = list(adapter_parameters(model.net).values())
            bound = settings.grad_clip_norm if self.clips and settings.grad_clip_norm else math.inf
            norm = float(torch.nn.utils.clip_grad_norm_(parameters, bound))
            for group in model.optimizer.param_groups:
                group["lr"], group["betas"] = settings.learning_rate, (settings.beta1, settings.beta2)
                group["eps"], group["weight_decay"] = settings.eps, settings.weight_decay
            model.optimizer.step()
            for other in self.models.values() if self.leaks else ():
                for parameter in adapter_parameters(other.net).values() if other is not model else ():
                    parameter.data *= 1 - settings.learning_rate * settings.weight_decay
            model.gradients, model.rows = {}, 0
            return {"metrics": {"skyrl.ai/grad_norm": norm} if self.reports_norm else {}}

        return self._future(step)

    def _keep(self, path: str, model: _Model) -> None:
        moments = {name: model.optimizer.state[p] for name, p in adapter_parameters(model.net).items()}
        copies = {n: {k: v.clone() for k, v in state.items()} for n, state in moments.items() if state}
        self.saved[path] = read_adapter(model.net), copies

    def _save_weights(self, body: Any) -> Any:
        path = f"tinker://{body.model_id}/weights/{body.path}"
        if path in self.saved:
            raise HTTPException(409, f"Checkpoint {body.path!r} already exists")

        def save() -> Any:
            self._keep(path, self._model(body.model_id))
            return {"path": path, "type": "save_weights"}

        return self._future(save)

    def _weights_info(self, body: Any) -> Any:
        if body.tinker_path not in self.saved:
            raise HTTPException(404, f"Checkpoint not found: {body.tinker_path}")
        return {"base_model": self.model, "is_lora": True, "lora_rank": self.policy.lora.r}

    def _load_weights(self, body: Any) -> Any:
        if body.seq_id != 1:
            raise HTTPException(400, f"LoadWeights is not permitted with seq_id {body.seq_id}")
        if body.path not in self.saved:
            raise HTTPException(404, f"Checkpoint not found: {body.path}")

        def load() -> Any:
            model = self._model(body.model_id)
            adapter, moments = self.saved[body.path]
            write_adapter(model.net, adapter)
            for name, parameter in adapter_parameters(model.net).items() if body.optimizer else ():
                if name in moments:
                    model.optimizer.state[parameter] = {k: v.clone() for k, v in moments[name].items()}
            return {"type": "load_weights"}

        return self._future(load)

    def _save_weights_for_sampler(self, body: Any) -> Any:
        path = f"tinker://{body.model_id}/{body.path}"

        def save() -> Any:
            model = self._model(body.model_id)
            self._keep(path, model)
            model.loaded = path
            return {"path": path, "type": "save_weights_for_sampler"}

        return self._future(save)

    def _create_sampling_session(self, body: Any) -> Any:
        if body.model_path not in self.saved:
            raise HTTPException(404, f"Checkpoint not found: {body.model_path}")
        name = f"sampling_{len(self.sessions)}"
        self.sessions[name] = body.model_path
        return {"type": "create_sampling_session", "sampling_session_id": name}

    def _asample(self, body: Any) -> Any:
        settings = body.sampling_params
        unknown = set(settings.model_extra or {}) - set(SamplingParams.model_fields)
        if unknown or settings.max_tokens is None or settings.max_tokens < 1:
            raise HTTPException(400, f"max_tokens is required; unknown: {unknown}")
        assert all(isinstance(stop, int) for stop in settings.stop or ()), "ids and strings cannot be mixed"
        path = self.sessions[body.sampling_session_id]
        ids = [token for chunk in body.prompt.chunks for token in chunk.tokens]

        def sample() -> Any:
            model = self._model(path.removeprefix("tinker://").partition("/")[0])
            if model.loaded != path:
                write_adapter(model.net, self.saved[path][0])  # over what is being trained
                model.loaded = path
            rows = [self._one(model.net, ids, settings, (settings.seed or 0) + i) for i in range(body.num_samples)]
            return {"sequences": rows, "prompt_logprobs": None}

        return self._future(sample)

    @torch.no_grad()
    def _one(self, net: Any, prompt: list[int], settings: Any, seed: int) -> dict[str, Any]:
        generator, tokens, logprobs = torch.Generator().manual_seed(seed), [], []
        while len(tokens) < settings.max_tokens:
            logits_V = net(input_ids=torch.tensor([[*prompt, *tokens]]), use_cache=False).logits[0, -1].float()
            logprob_V = logits_V.log_softmax(-1)
            chances_V = (logits_V / max(settings.temperature, 1e-4)).softmax(-1)
            greedy = settings.temperature == 0
            token = int(chances_V.argmax() if greedy else torch.multinomial(chances_V, 1, generator=generator))
            tokens.append(token)
            logprobs.append(float(logprob_V[token]))
            if token in (settings.stop or ()):
                return {"stop_reason": "stop", "tokens": tokens, "logprobs": logprobs}
        return {"stop_reason": "length", "tokens": tokens, "logprobs": logprobs}

    def _unload_model(self, body: Any) -> Any:
        self.models.pop(body.model_id, None)
        return {"request_id": "0", "model_id": body.model_id}


def make_app(server: Server) -> FastAPI:
    app = FastAPI()

    @app.get("/api/v1/get_server_capabilities")
    def capabilities() -> Any:
        if server.status != 200:
            raise HTTPException(server.status, "something is wrong")
        return {"supported_models": [{"model_name": server.model}]}

    @app.post("/api/v1/{name:path}")
    async def post(name: str, request: Request) -> Any:
        server.keys.add(request.headers.get("x-api-key"))
        if server.redirect:
            return RedirectResponse(f"{server.redirect}/api/v1/{name}", 307)
        if name not in REQUESTS:
            raise HTTPException(404, "Not Found")
        content = await request.json()
        try:
            body = REQUESTS[name].model_validate(content)
        except ValidationError as error:
            return JSONResponse({"detail": str(error)}, 422)
        if name == "retrieve_future":
            return await run_in_threadpool(server.retrieve, body)
        server.bodies.append((name, content))
        return await run_in_threadpool(server.answer, name, body)

    return app


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Serve on a free port of 127.0.0.1, in a thread."""
    with _socket() as kept:  # it does not listen, but leaves the port to this server while that is stopped
        kept.bind(("127.0.0.1", 0))
        server.url = f"http://127.0.0.1:{kept.getsockname()[1]}"
        server.start()
        try:
            yield server
        finally:
            server.held.set()
            server.stop()


def _socket() -> socket.socket:
    # asyncio switches Nagle's algorithm off for sockets that name TCP alone; with it each answer takes 40 ms
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


@contextmanager
def engine_of(server: Server, base: Base | None = None, **options: Any) -> Iterator[TinkerEngine]:
    client = TinkerClient(server.url, None, server.model, server.policy.lora.r, timeout=PATIENCE)
    engine = TinkerEngine(base or base_of(server.policy), client, **options)
    try:
        yield engine
    finally:
        engine.close()
