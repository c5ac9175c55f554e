"""A stand-in for vLLM's OpenAI server over a policy: its documented requests, strict where vLLM ignores."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from peft import LoraConfig
from pydantic import BaseModel, ConfigDict
from safetensors import safe_open
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from rolloutlab.engines.local import LocalEngine
from rolloutlab.policy.decode import Completion, CompletionRequest


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CompletionBody(_Strict):
    """Of the fields of vLLM 0.33's CompletionRequest, those that the client sends; all but the last three are required,
    since vLLM takes what is missing from the model's generation config.
    """

    model: str
    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    stop: list[str]
    stop_token_ids: list[int]
    ignore_eos: bool
    logprobs: int
    return_token_ids: bool
    return_tokens_as_token_ids: bool
    prompt_logprobs: int | None = None
    stream: bool = False


class LoadBody(_Strict):
    lora_name: str
    lora_path: str


class UnloadBody(_Strict):
    lora_name: str


@dataclass
class VllmServer:
    """max_lora_rank, updating: of the options it was started with. hold: completions wait for it. breaks_off: the
    reason that completions give for ending after two tokens.

    begun, left: a completion was asked for, and its client left before the answer. unloaded: an adapter was removed.
    """

    engine: LocalEngine
    model: str = "tiny"
    key: str | None = None
    max_model_len: int = 4096
    max_lora_rank: int = 16
    updating: bool = True
    loaded: dict[str, Path] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)
    bodies: list[CompletionBody] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)
    unloaded: threading.Event = field(default_factory=threading.Event)
    hold: asyncio.Event | None = None
    breaks_off: str | None = None
    url: str = ""


def _error(status: int, kind: str, message: str) -> Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return JSONResponse({"error": error}, status)


def make_app(server: VllmServer) -> FastAPI:
    def authorized(request: Request) -> None:
        if server.key and request.headers.get("Authorization") != f"Bearer {server.key}":
            raise HTTPException(401, "Unauthorized")

    app = FastAPI(dependencies=[Depends(authorized)])

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        base = {"id": server.model, "object": "model", "root": "/models/tiny", "parent": None}
        adapters = [{"id": n, "root": str(p), "parent": server.model} for n, p in server.loaded.items()]
        return {"object": "list", "data": [{**base, "max_model_len": server.max_model_len}, *adapters]}

    _add_completions(app, server)
    if server.updating:
        _add_adapters(app, server)
    return app


def _add_completions(app: FastAPI, server: VllmServer) -> None:
    @app.post("/v1/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        server.bodies.append(body)
        if body.model != server.model and body.model not in server.loaded:
            return _error(404, "NotFoundError", f"The model `{body.model}` does not exist.")
        if len(body.prompt) + body.max_tokens > server.max_model_len:
            return _error(400, "BadRequestError", f"maximum context length is {server.max_model_len} tokens")
        if body.stream and body.prompt_logprobs is not None:
            return _error(400, "BadRequestError", "`prompt_logprobs` are not available when `stream=True`.")
        row = await _sampled(server, body, request)
        if row is None:
            return Response(status_code=499)
        answer = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body.model}
        if body.stream:
            return StreamingResponse(_events(answer, row), media_type="text/event-stream")
        choice = {**_part(row, 0, len(row.tokens)), "finish_reason": row.finish, "prompt_token_ids": body.prompt}
        if body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = await asyncio.to_thread(_of_prompt, server, body)
        usage = {"prompt_tokens": len(body.prompt), "completion_tokens": len(row.tokens), "total_tokens": 0}
        return JSONResponse({**answer, "choices": [choice], "usage": usage})


def _add_adapters(app: FastAPI, server: VllmServer) -> None:
    @app.post("/v1/load_lora_adapter")
    def load(body: LoadBody) -> Response:
        server.loads.append(body.lora_name)
        folder = Path(body.lora_path)
        if body.lora_name in server.loaded:
            return _error(400, "InvalidUserInput", f"The lora adapter '{body.lora_name}' has already been loaded.")
        if not folder.is_absolute() or not (folder / "adapter_config.json").exists():
            return _error(404, "NotFoundError", f"Loading lora {body.lora_name} failed: No adapter found for {folder}")
        lora = LoraConfig.from_pretrained(str(folder))
        with safe_open(folder / "adapter_model.safetensors", "pt") as tensors:
            names = list(tensors.keys())
        if lora.r > server.max_lora_rank:
            message = f"LoRA rank {lora.r} is greater than max_lora_rank {server.max_lora_rank}."
            return _error(500, "InternalServerError", message)
        if lora.bias != "none" or lora.modules_to_save or not all("base_model.model." in n for n in names):
            return _error(500, "InternalServerError", "vLLM only supports LoRA weights")
        server.loaded[body.lora_name] = folder
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @app.post("/v1/unload_lora_adapter")
    def unload(body: UnloadBody) -> Response:
        if body.lora_name not in server.loaded:
            return _error(404, "NotFoundError", f"The lora adapter '{body.lora_name}' cannot be found.")
        del server.loaded[body.lora_name]
        server.unloaded.set()
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


async def _sampled(server: VllmServer, body: CompletionBody, request: Request) -> Completion | None:
    """A completion; None where the client left. Stop strings end nothing here: their tokens come with the others."""
    wanted = CompletionRequest(
        tuple(body.prompt), body.max_tokens, body.temperature, body.top_p, body.seed, top=body.logprobs
    )
    server.begun.set()
    future: Future[list[Completion]] = server.engine.sample(server.loaded.get(body.model), [wanted])
    work = asyncio.gather(asyncio.wrap_future(future), server.hold.wait() if server.hold else asyncio.sleep(0))
    while not work.done():
        if await request.is_disconnected():
            work.cancel()
            server.left.set()
            return None
        await asyncio.wait([work], timeout=0.01)
    row = (await work)[0][0]
    return (
        replace(row, tokens=row.tokens[:2], logprobs=row.logprobs[:2], finish=server.breaks_off)
        if server.breaks_off
        else row
    )


def _part(row: Completion, start: int, end: int) -> dict[str, Any]:
    """Tokens of a choice. vLLM names the sampled one among the most likely, whatever its rank."""
    sampled = list(zip(row.tokens, row.logprobs, strict=True))[start:end]
    tops = row.top[start:end] or [[] for _ in sampled]
    named = [dict([pair, *top]) for pair, top in zip(sampled, tops, strict=True)]
    logprobs = {
        "text_offset": [0] * len(sampled),
        "tokens": [f"token_id:{token}" for token, _ in sampled],
        "token_logprobs": [logprob for _, logprob in sampled],
        "top_logprobs": [{f"token_id:{token}": p for token, p in each.items()} for each in named],
    }
    ids = [token for token, _ in sampled]
    return {"index": 0, "text": "", "logprobs": logprobs, "token_ids": ids, "finish_reason": None, "stop_reason": None}


def _events(answer: dict[str, Any], row: Completion) -> Iterator[str]:
    """Events of two tokens each, as of speculative decoding."""
    for start in range(0, len(row.tokens), 2):
        part = _part(row, start, start + 2)
        part["finish_reason"] = row.finish if start + 2 >= len(row.tokens) else None
        yield f"data: {json.dumps({**answer, 'choices': [part]})}\n\n"
    yield "data: [DONE]\n\n"


def _of_prompt(server: VllmServer, body: CompletionBody) -> list[dict[str, Any] | None]:
    """The logprob of each token of the prompt but the first, with the most likely ones."""
    first, *rest = body.prompt
    asked = CompletionRequest((first,), len(rest), forced=tuple(rest), top=max(body.prompt_logprobs or 0, 1))
    row = server.engine.sample(server.loaded.get(body.model), [asked]).result()[0]
    scored = zip(row.tokens, row.logprobs, row.top, strict=True)
    tops = [dict([(t, p), *(top if body.prompt_logprobs else [])]) for t, p, top in scored]
    return [None, *({str(t): {"logprob": p, "rank": 1, "decoded_token": ""} for t, p in each.items()} for each in tops)]


@contextmanager
def serving(server: VllmServer) -> Iterator[VllmServer]:
    """Serve on a free port of 127.0.0.1, in a thread."""
    http = uvicorn.Server(uvicorn.Config(make_app(server), log_level="error", lifespan="off"))
    # asyncio switches Nagle's algorithm off for sockets that name TCP alone; with it each answer takes 40 ms
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=http.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.should_exit = http.force_exit = True
        thread.join()
        listener.close()
