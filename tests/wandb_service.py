"""Strict stand-in for the hosted service of openpipe-art: takes what its public client (0.5.18) sends, nothing else.

Addresses, methods, fields and headers are those of `art/serverless/{client,backend}.py` and of the openai client that
`art/model.py` makes. A request that they would not make fails the test: `wandb.wrong` has it.
"""

import json
import re
import uuid
from typing import Any, Literal

import httpx
from pydantic import BaseModel, ConfigDict, ValidationError

from tests.sampling_services import ChatBody

HOST, ENTITY, PROJECT, KEY = "api.training.wandb.ai", "my-team", "capitals", "wandb-key-of-this-test"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class CreateModel(Strict):
    entity: str | None
    project: str
    name: str
    base_model: str
    return_existing: bool


class Choice(BaseModel):
    """openai's Choice keeps what a service adds; it has nothing that this package adds."""

    model_config = ConfigDict(extra="forbid", strict=True)
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter", "function_call"]
    index: int
    message: dict[str, Any]
    logprobs: dict[str, Any] | None = None


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["system", "user", "assistant", "tool", "developer"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class History(Strict):
    messages_and_choices: list[Choice | Message]
    tools: list[dict[str, Any]] | None


class Trajectory(History):
    additional_histories: list[History]
    reward: float
    initial_policy_version: int | None
    final_policy_version: int | None
    metrics: dict[str, float | int | bool]
    metadata: dict[str, float | int | str | bool | None]
    logs: list[str]


class TrajectoryGroup(Strict):
    trajectories: list[Trajectory]
    exceptions: list[dict[str, Any]]
    metadata: dict[str, float | int | str | bool | None]
    metrics: dict[str, float | int | bool]
    logs: list[str]


class Config(Strict):
    advantage_balance: float | None = None
    epsilon: float | None = None
    epsilon_high: float | None = None
    importance_sampling_level: Literal["token", "sequence", "average", "geometric_average"] | None = None
    kimi_k2_tau: float | None = None
    learning_rate: float | None = None
    mask_prob_ratio: bool | None = None
    max_negative_advantage_importance_sampling_weight: float | None = None
    ppo: bool | None = None
    precalculate_logprobs: bool | None = None
    scale_rewards: bool | None = None


class CreateJob(Strict):
    model_id: str
    trajectory_groups: list[TrajectoryGroup]
    experimental_config: Config | None = None


class DeleteCheckpoints(Strict):
    steps: list[int]


HEADERS = {
    "host", "accept", "accept-encoding", "user-agent", "authorization", "content-type", "content-length",
    "transfer-encoding", "connection",
}  # fmt: skip
_CHAT = re.compile(r"wandb-artifact:///(?P<entity>[\w.-]+)/(?P<name>[\w.-]+/[\w.-]+)(:step(?P<step>\d+))?")
_MODELS = "/v1/preview/models"
_JOBS = "/v1/preview/training-jobs"


class Wandb:
    """Keeps models and jobs; a job ends at once and makes the next checkpoint.

    chats, jobs: bodies. wrong: why a request is none of the client's. answer: makes the text of a completion from its
    messages, the step that is sampled and a number.
    """

    def __init__(self, answer: Any = lambda messages, step, number: f"answer {number} of {step}") -> None:
        self.answer = answer
        self.models: dict[str, dict[str, Any]] = {}
        self.steps: dict[str, list[int]] = {}
        self.events: dict[str, list[dict[str, Any]]] = {}
        self.chats: list[dict[str, Any]] = []
        self.jobs: list[dict[str, Any]] = []
        self.requests: list[tuple[str, str]] = []
        self.wrong: list[str] = []
        self.page = 2

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append((request.method, request.url.path))
        if request.url.host != HOST or request.url.scheme != "https":
            self.wrong.append(f"the key's host is {HOST}, not {request.url}")
        if extra := set(request.headers) - HEADERS:
            self.wrong.append(f"{request.method} {request.url.path}: headers {extra}")
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return httpx.Response(401, json={"detail": "Invalid API key"})
        try:
            return self.respond(request, request.method, request.url.path)
        except ValidationError as error:
            self.wrong.append(f"{request.method} {request.url.path}: {error}")
            return httpx.Response(422, json={"detail": "not what the client sends"})

    def respond(self, request: httpx.Request, method: str, path: str) -> httpx.Response:
        body = request.content
        if (method, path) == ("POST", "/v1/chat/completions"):
            return self.chat(json.loads(body))
        if (method, path) == ("POST", _MODELS):
            return self.create(CreateModel.model_validate_json(body))
        if (method, path) == ("POST", _JOBS):
            return self.train(CreateJob.model_validate_json(body, strict=False), json.loads(body))
        params = dict(request.url.params)
        if match := re.fullmatch(rf"{_MODELS}/([^/]+)/checkpoints", path):
            if method == "DELETE":
                steps = DeleteCheckpoints.model_validate_json(body).steps
                self.steps[match[1]] = [step for step in self.steps[match[1]] if step not in steps]
                return httpx.Response(200, json={"deleted_count": len(steps), "not_found_steps": []})
            listed = [{"id": f"c{step}", "step": step, "metrics": {}} for step in self.steps[match[1]]]
            return self.listed(params, {"after", "limit", "order"}, listed)
        if match := re.fullmatch(rf"{_JOBS}/([^/]+)/events", path):
            return self.listed(params, {"after", "limit"}, self.events[match[1]])
        self.wrong.append(f"{method} {path} is no request of the client")
        return httpx.Response(404, json={"detail": "Not Found"})

    def listed(self, params: dict[str, str], known: set[str], items: list[dict[str, Any]]) -> httpx.Response:
        """A page as openai's AsyncCursorPage reads it: `has_more` may be null, and an empty page is the end."""
        if params.keys() - known:
            self.wrong.append(f"query {params}")
        ids = [item["id"] for item in items]
        begin = ids.index(params["after"]) + 1 if "after" in params else 0
        page = items[begin : begin + self.page]
        return httpx.Response(200, json={"data": page, "has_more": None})

    def create(self, wanted: CreateModel) -> httpx.Response:
        entity, name = wanted.entity or ENTITY, f"{wanted.project}/{wanted.name}"
        if name not in self.models:
            card = {"id": str(uuid.uuid4()), "entity": entity, "run_id": None, "base_model": wanted.base_model}
            self.models[name] = {**card, "project": wanted.project, "name": wanted.name}
            self.steps[self.models[name]["id"]] = [0]
        return httpx.Response(200, json=self.models[name])

    def chat(self, body: dict[str, Any]) -> httpx.Response:
        ChatBody.model_validate(body)
        match = _CHAT.fullmatch(body["model"])
        if not match or match["entity"] != ENTITY or match["name"] not in self.models:
            return httpx.Response(404, json={"error": {"message": f"model {body['model']} not found"}})
        steps = self.steps[self.models[match["name"]]["id"]]
        step = int(match["step"]) if match["step"] else max(steps)
        if step not in steps:
            return httpx.Response(404, json={"error": {"message": f"no step {step}"}})
        self.chats.append(body)
        choices = [self.choice(body, step, i) for i in range(body.get("n", 1))]
        usage = {"prompt_tokens": 4, "completion_tokens": len(choices), "total_tokens": 4 + len(choices)}
        head = {"id": f"chatcmpl-{len(self.chats)}", "object": "chat.completion", "created": 1, "model": body["model"]}
        return httpx.Response(200, json={**head, "choices": choices, "usage": usage})

    def choice(self, body: dict[str, Any], step: int, i: int) -> dict[str, Any]:
        text = self.answer(body["messages"], step, i)
        content = [{"token": text, "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": []}]
        message = {"role": "assistant", "content": text, "refusal": None}
        logprobs = {"content": content, "refusal": None} if body.get("logprobs") else None
        return {"index": i, "finish_reason": "stop", "message": message, "logprobs": logprobs}

    def train(self, job: CreateJob, body: dict[str, Any]) -> httpx.Response:
        job_id, steps = str(uuid.uuid4()), self.steps[job.model_id]
        self.jobs.append(body)
        numbers = {"loss": 0.25, "entropy": 1.0, "grad_norm": 0.5}
        self.events[job_id] = [
            {"id": "e1", "type": "training_started", "data": {"num_sequences": 2}},
            {"id": "e2", "type": "gradient_step", "data": numbers},
            {"id": "e3", "type": "gradient_step", "data": numbers},
            {"id": "e4", "type": "training_ended", "data": {}},
        ]
        steps.append(max(steps) + 1)
        return httpx.Response(200, json={"id": job_id})
