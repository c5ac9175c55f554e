"""Gateway: chat completions for the programs of rollouts, recorded with tokens and logprobs."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest, Usage
from rolloutlab.capture.answers import chunks_of, filter_chunk, hide_logprobs
from rolloutlab.capture.requests import read_request
from rolloutlab.capture.rollout import CallSettings, CapturedRollout
from rolloutlab.errors import ConflictError, InputError, RolloutlabError

Chunk = dict[str, Any]
OnChunk = Callable[[Chunk], None]
Send = Callable[[ChatRequest, OnChunk | None], Awaitable[ChatCompletion]]
"""A function that sends a request to the service. With a second argument the answer is streamed: it gets each chunk."""

ENDED = "the rollout of this key has ended"


class Gateway:
    """Answers the programs of the rollouts under way. All its methods are called on one event loop."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._rollouts: dict[str, CapturedRollout] = {}
        self._under_way: dict[CapturedRollout, set[asyncio.Task[Any]]] = {}

    def open(self, settings: CallSettings, *, by_session: bool = False) -> CapturedRollout:
        """Begin a rollout: its key and its address are valid until `close`. by_session: as of `CapturedRollout`."""
        rollout = CapturedRollout(settings, by_session=by_session)
        self._rollouts |= {rollout.id: rollout, rollout.key: rollout}
        self._under_way[rollout] = set()
        return rollout

    def close(self, rollout: CapturedRollout) -> None:
        """End a rollout: its key is no longer valid, and its calls under way are cancelled."""
        del self._rollouts[rollout.id], self._rollouts[rollout.key]
        for each in (rollout, *rollout.sessions.values()):
            for task in self._under_way.pop(each):
                task.cancel()

    def session(self, rollout: CapturedRollout, name: str) -> CapturedRollout:
        """Find or open a session of a program that runs many samples.

        For any other program it is the rollout itself, because all its calls are one trajectory.
        """
        if not rollout.by_session:
            return rollout
        if name not in rollout.sessions:
            rollout.sessions[name] = rollout.open_session()
            self._under_way[rollout.sessions[name]] = set()
        return rollout.sessions[name]

    def has_open_call(self, rollout: CapturedRollout) -> bool:
        """Whether a call of a rollout or session waits for its answer."""
        return bool(self._under_way.get(rollout))

    def rollout(self, name: str) -> CapturedRollout | None:
        """Find the rollout under way with an id or a key; None if there is none."""
        return self._rollouts.get(name)

    async def chat(
        self, rollout: CapturedRollout, body: Mapping[str, Any], tries: int = 0, on_chunk: OnChunk = lambda _: None
    ) -> ChatCompletion:
        """Answer a request to chat completions.

        Args:
            rollout: the rollout or session that the call belongs to.
            body: the body of the request.
            tries: the number of times that the client has sent the same request before.
            on_chunk: called with each chunk, if the body asks for a stream.

        Raises:
            InputError: the body is invalid. ConflictError: the rollout has ended. Other errors are those of `send`.
        """
        if rollout not in self._under_way:
            raise ConflictError(ENDED)
        rollout = self.session(rollout, "")  # the session of calls that name none
        try:
            request, options = read_request(body)
        except InputError as error:
            rollout.failure = error  # it was no call, but it is why its program got no answer
            raise
        call = rollout.begin(request, tries)
        task = asyncio.current_task()
        assert task, "this is a coroutine"
        self._under_way[rollout].add(task)

        def show(chunk: Chunk) -> None:
            if (each := filter_chunk(chunk, options)) is not None:
                on_chunk(each)

        relay = _Relay(show, request.n)
        try:
            completion = await self._complete(rollout, call.request, relay if options.stream else None)
        except BaseException as error:
            rollout.record_failure(call, error if isinstance(error, RolloutlabError) else None)
            raise
        finally:
            self._under_way.get(rollout, set()).discard(task)
        rollout.record_answer(call, completion)
        if options.stream and not relay.begun:
            for chunk in chunks_of(completion):
                relay(chunk)
        return hide_logprobs(completion, options)

    async def _complete(self, rollout: CapturedRollout, request: ChatRequest, relay: "_Relay | None") -> ChatCompletion:
        """Request a completion with `n` choices, also from services that return fewer per request, or more."""
        first = await self._send(request, relay)
        choices, usage = list(first.choices), first.usage
        while len(choices) < request.n:
            if relay:
                relay.first = len(choices)
            seed = None if request.seed is None else request.seed + len(choices)
            rest = request.model_copy(update={"n": request.n - len(choices), "seed": seed})
            try:
                more = await self._send(rest, relay)
            except RolloutlabError as error:
                came = f"{len(choices):,} of {request.n:,} choices of a call came and are not kept"
                rollout.notes.append(f"{came}: {error.message}")
                raise
            choices += more.choices
            usage = _sum(usage, more.usage)
        rollout.surplus += len(choices) - request.n
        choices = choices[: request.n]
        if len(choices) == len(first.choices):
            return first
        choices = [choice.model_copy(update={"index": i}) for i, choice in enumerate(choices)]
        return first.model_copy(update={"choices": choices, "usage": usage})


class _Relay:
    """Passes on the chunks of a completion, all with the first id, time and model that the service gives.

    Services differ: some give each chunk another id, some only the first chunk, some an empty one to the first. No
    chunk is passed on twice, because a request is not sent again once its response has had a choice.

    n: the number of choices that were requested. Further choices are not passed on.
    first: the number of choices that came in earlier responses.
    begun: whether a choice was passed on.
    """

    def __init__(self, on_chunk: OnChunk, n: int) -> None:
        self._on_chunk = on_chunk
        self._n = n
        self._head: Chunk = {"id": "", "created": 0, "model": ""}
        self.first = 0
        self.begun = False

    def __call__(self, chunk: Chunk) -> None:
        self._head = {name: value or chunk.get(name) or value for name, value in self._head.items()}
        choices = [{**each, "index": (each.get("index") or 0) + self.first} for each in chunk.get("choices") or []]
        choices = [each for each in choices if each["index"] < self._n]
        self.begun = self.begun or bool(choices)
        self._on_chunk({**chunk, **self._head, "object": "chat.completion.chunk", "choices": choices})


def _sum(one: Usage | None, other: Usage | None) -> Usage | None:
    if one is None or other is None:
        return None
    prompt, completion = (getattr(one, name) + getattr(other, name) for name in ("prompt_tokens", "completion_tokens"))
    return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
