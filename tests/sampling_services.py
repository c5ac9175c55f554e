"""Stand-ins for OpenAI-compatible services that only sample: what each refuses, in the words of its own errors."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

URL = "http://chat.example"


class ChatBody(BaseModel):
    """OpenAI's request, as far as this package sends it; any other field is a failure."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str
    messages: list[dict[str, Any]]
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    logprobs: bool | None = None
    tools: list[dict[str, Any]] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None


def openai_error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None, **more}}


Refusal = tuple[int, Any]


class SamplingService:
    """GET /v1/models and POST /v1/chat/completions.

    refuses: the answer to a request that it does not take, else None. missing: the answer to any other path. lists:
    the body of its list of models. gives_n: whether it makes `n` choices of one request.
    """

    models = ("qwen3:4b",)
    gives_n = True
    gives_logprobs = True
    missing: Refusal = (404, {"detail": "Not Found"})

    def __init__(self) -> None:
        self.chats: list[dict[str, Any]] = []
        self.taken: list[dict[str, Any]] = []
        self.paths: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.paths.append(f"{request.method} {path}")
        if path == "/v1/models":
            return self.listed()
        if path == "/v1/chat/completions" and request.method == "POST":
            return self.chat(json.loads(request.content))
        return _response(*self.missing)

    def listed(self) -> httpx.Response:
        cards = [{"id": name, "object": "model", "created": 1, "owned_by": "library"} for name in self.models]
        return httpx.Response(200, json={"object": "list", "data": cards})

    def refuses(self, body: Mapping[str, Any]) -> Refusal | None:
        return None

    def chat(self, body: dict[str, Any]) -> httpx.Response:
        self.chats.append(body)
        try:
            ChatBody.model_validate(body)
        except ValidationError as error:
            raise AssertionError(f"no client of OpenAI's would send this: {error}") from error
        if body["model"] not in self.models:
            return _response(404, openai_error(f"model '{body['model']}' not found"))
        if refusal := self.refuses(body):
            return _response(*refusal)
        self.taken.append(body)
        if body.get("stream"):
            return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=self._stream(body))
        choices = [self._choice(body, i) for i in range(body.get("n", 1) if self.gives_n else 1)]
        usage = {"prompt_tokens": 3, "completion_tokens": len(choices), "total_tokens": 3 + len(choices)}
        head = {"id": f"chatcmpl-{len(self.taken)}", "created": 1, "model": body["model"]}
        return httpx.Response(200, json={**head, "object": "chat.completion", "choices": choices, "usage": usage})

    def _choice(self, body: Mapping[str, Any], i: int) -> dict[str, Any]:
        text = f"yes {len(self.taken)}.{i}"
        tokens = [{"token": "yes", "logprob": -0.5, "bytes": [121], "top_logprobs": []}]
        logprobs = {"content": tokens} if body.get("logprobs") and self.gives_logprobs else None
        message = {"role": "assistant", "content": text, "reasoning_content": "so"}
        return {"index": i, "message": message, "finish_reason": "stop", "logprobs": logprobs}

    def _stream(self, body: Mapping[str, Any]) -> bytes:
        choice = self._choice(body, 0)
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        part = {**choice, "delta": choice.pop("message")}
        return f"data: {json.dumps({**head, 'choices': [part]})}\n\ndata: [DONE]\n\n".encode()


def _response(status: int, body: Any) -> httpx.Response:
    return httpx.Response(status, content=body) if isinstance(body, bytes) else httpx.Response(status, json=body)


class VLLM(SamplingService):
    """vLLM with `--max-logprobs 0`; names with slashes."""

    models = ("meta-llama/Llama-3.1-8B-Instruct",)

    def refuses(self, body: Mapping[str, Any]) -> Refusal | None:
        if body.get("logprobs"):
            message = "Requested sample logprobs of 1, which is greater than max allowed: 0"
            return 400, {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
        return None


class Gaudi(VLLM):
    """vLLM's plugin for another accelerator, which has no logprobs."""

    def refuses(self, body: Mapping[str, Any]) -> Refusal | None:
        message = "Gaudi doesn't support logprobs. Please remove 'logprobs'/'top_logprobs' from your request."
        error = {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}
        return (400, error) if body.get("logprobs") else None


class Ollama(SamplingService):
    """Ollama before 0.12.11: n and logprobs are ignored."""

    models = ("qwen3:4b", "hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M")
    gives_n = gives_logprobs = False
    missing = (404, b"404 page not found")


class LlamaCpp(SamplingService):
    """llama.cpp's server: any name is its model's, one choice per request, its own 404."""

    models = ("/models/qwen3.gguf", "none")
    missing = (404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}})

    def refuses(self, body: Mapping[str, Any]) -> Refusal | None:
        if body.get("n", 1) > 1:
            message = "Only one completion choice is allowed"
            return 400, {"error": {"code": 400, "message": message, "type": "invalid_request_error"}}
        return None


class LlamaCppBefore(LlamaCpp):
    """Its older versions answered any error of a request with a 500."""

    def refuses(self, body: Mapping[str, Any]) -> Refusal | None:
        refusal = super().refuses(body)
        return (500, {"error": {**refusal[1]["error"], "code": 500, "type": "server_error"}}) if refusal else None


class Reasoning(SamplingService):
    """OpenAI's reasoning models: the limit has another name, logprobs are refused with a 403."""

    models = ("o4-mini",)
    missing = (404, openai_error("Invalid URL (GET /v1/preview/training-jobs)"))

    def refuses(self, body: Mapping[str, Any]) -> Refusal | None:
        if "max_tokens" in body:
            why = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
            return 400, openai_error(f"Unsupported parameter: {why}", param="max_tokens", code="unsupported_parameter")
        if body.get("temperature", 1) != 1:
            given = body["temperature"]
            why = f"'temperature' does not support {given} with this model. Only the default (1) value is supported."
            return 400, openai_error(f"Unsupported value: {why}", param="temperature", code="unsupported_value")
        if body.get("logprobs"):
            return 403, openai_error("You are not allowed to request logprobs from this model")
        return None


class Groq(SamplingService):
    models = ("llama-3.3-70b-versatile",)

    def refuses(self, body: Mapping[str, Any]) -> Refusal | None:
        if body.get("logprobs"):
            return 400, openai_error("`logprobs` is not supported with this model")
        if body.get("n", 1) > 1:
            return 400, openai_error("'n' : number must be at most 1")
        if any("reasoning_content" in message for message in body["messages"]):
            return 400, openai_error("'messages.1' : property 'reasoning_content' is unsupported")
        return None


class Gemini(SamplingService):
    """Google's OpenAI-compatible endpoint: an error in a list, a list without dates."""

    models = ("models/gemini-2.5-pro",)
    missing = (404, b"")

    def listed(self) -> httpx.Response:
        return httpx.Response(200, json={"data": [{"id": name} for name in self.models]})

    def refuses(self, body: Mapping[str, Any]) -> Refusal | None:
        for name in ("logprobs", "seed"):
            if name in body:
                message = f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.'
                return 400, [{"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}]
        return None


class Mistral(SamplingService):
    models = ("mistral-small-latest",)

    def refuses(self, body: Mapping[str, Any]) -> Refusal | None:
        wrong = [["body", name] for name in ("seed", "logprobs") if name in body]
        wrong += [
            ["body", "messages", i, "assistant", "reasoning_content"]
            for i, message in enumerate(body["messages"])
            if "reasoning_content" in message
        ]
        detail = [{"type": "extra_forbidden", "loc": loc, "msg": "Extra inputs are not permitted"} for loc in wrong]
        return (
            (422, {"object": "error", "message": {"detail": detail}, "type": "invalid_request_error"})
            if wrong
            else None
        )


class Wordless(SamplingService):
    """A gateway that refuses seed and logprobs and does not say so; its list is a bare array."""

    models = ("house/model:1",)

    def listed(self) -> httpx.Response:
        return httpx.Response(200, json=[{"id": name} for name in self.models])

    def refuses(self, body: Mapping[str, Any]) -> Refusal | None:
        return (400, b"") if body.get("logprobs") or "seed" in body else None


class LMStudio(SamplingService):
    """Answers 200 to any path."""

    models = ("qwen3-4b-mlx",)
    missing = (200, {"error": "Unexpected endpoint or method. (GET /v1/preview/training-jobs). Returning 200 anyway"})


class Unlisted(SamplingService):
    """No list of models."""

    models = ("any",)

    def listed(self) -> httpx.Response:
        return httpx.Response(404, json={"detail": "Not Found"})


EVERY: tuple[Callable[[], SamplingService], ...] = (
    VLLM, Gaudi, Ollama, LlamaCpp, LlamaCppBefore, Reasoning, Groq, Gemini, Mistral, Wordless, LMStudio, Unlisted,
)  # fmt: skip
