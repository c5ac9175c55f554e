"""One rollout of a program while it runs: requests as the service gets them, and the calls that it has made."""

import copy
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from rolloutlab.api.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.api.wire.trajectories import History
from rolloutlab.capture.earlier_answers import EarlierAnswers
from rolloutlab.capture.histories import Call, histories

MODEL = "policy"
"""The name of the policy for programs; frameworks read `lab/practice` as the model of a provider called lab."""

_SEEDS = 2**32
"""Calls whose seeds are those of one session."""


@dataclass(frozen=True)
class CallSettings:
    """What a program does not decide about its calls.

    model: the policy's name. fixed: fields of requests. seed_of: the seed of a call by its number, from 0.
    """

    model: str
    fixed: Mapping[str, Any]
    seed_of: Callable[[int], int]


@dataclass(frozen=True)
class UnansweredCall:
    """A call without an answer yet. sent: what its client has sent, `tries` times before this.

    retry: as of `Call`; 0 where no answer can have been lost.
    """

    request: ChatRequest
    number: int
    sent: ChatRequest
    tries: int
    retry: int


class CapturedRollout:
    """The calls of one rollout. id: in its address; key: its API key.

    cut_off: whether its last call got no answer; failure: what the service answered instead, if anything.
    by_session: its program runs many samples, and names the session of each call; they are `sessions`.
    """

    def __init__(self, settings: CallSettings, *, by_session: bool = False) -> None:
        self.by_session = by_session
        self.sessions: dict[str, CapturedRollout] = {}
        self.id, self.key = secrets.token_urlsafe(24), f"rollout-{secrets.token_urlsafe(32)}"
        self.failure: Exception | None = None
        self.cut_off = False
        self.completions: list[ChatCompletion] = []
        self.sampling: dict[str, float] = {}
        """Temperature and top_p of its calls, where they are not 1; of the first that has another."""
        self._settings = settings
        self._earlier = EarlierAnswers()
        self._calls: dict[int, Call] = {}
        self._begun = 0
        self._unanswered: dict[tuple[bytes, int], list[int]] = {}
        """By request and try, the `retry` of tries that got no answer."""

    def another(self) -> "CapturedRollout":
        """A rollout of the same settings and with other seeds, for one more session."""
        seed_of, first = self._settings.seed_of, _SEEDS * (1 + len(self.sessions))
        return CapturedRollout(replace(self._settings, seed_of=lambda number: seed_of(first + number)))

    def as_now(self) -> "CapturedRollout":
        """What it has sampled so far, which later calls do not change; for reading in another thread."""
        now = copy.copy(self)
        now._calls, now.completions, now.sampling = dict(self._calls), list(self.completions), dict(self.sampling)
        return now

    def begin(self, body: ChatRequest, tries: int = 0) -> UnansweredCall:
        """The call of a request as the service gets it. tries: how often its client has sent the request before."""
        number = self._begun
        self._begun += 1
        before = self._unanswered.get((_digest(body), tries - 1)) if tries else None
        retry = before.pop() if before else tries  # after a try without an answer there is none to replace
        return UnansweredCall(self._request(body, number), number, body, tries, retry)

    def _request(self, body: ChatRequest, number: int) -> ChatRequest:
        fixed = dict(self._settings.fixed)
        if body.max_completion_tokens and "max_tokens" in fixed:
            fixed["max_completion_tokens"] = fixed.pop("max_tokens")
        # a program's own seed means the same in each rollout, and answers of a group have to differ
        seed = self._settings.seed_of(number if body.seed is None else -1 - body.seed)
        own = {"model": self._settings.model, "seed": seed, "logprobs": True, **fixed}
        return body.model_copy(update={**own, "messages": self._earlier.restored(body.messages)})

    def answered(self, call: UnansweredCall, completion: ChatCompletion) -> None:
        """Record the answer to a call."""
        request = call.request
        tools = () if request.tool_choice == "none" else tuple(request.tools or ())
        self._earlier.add(request.messages, completion.choices)
        self._calls[call.number] = Call(request.messages, completion.choices, tools, call.retry)
        for name in ("temperature", "top_p"):
            if getattr(request, name) != 1:
                self.sampling.setdefault(name, getattr(request, name))
        self.completions.append(completion)
        self.failure, self.cut_off = None, False

    def failed(self, call: UnansweredCall, error: Exception | None = None) -> None:
        """Record that a call has no answer, or that its client has not read it. error: of the service."""
        self._calls.pop(call.number, None)
        self._unanswered.setdefault((_digest(call.sent), call.tries), []).append(call.retry)
        self.failure, self.cut_off = error or self.failure, True

    def histories(self) -> list[History]:
        """What was sampled, as of `histories`."""
        return histories([call for _, call in sorted(self._calls.items())])


def _digest(request: ChatRequest) -> bytes:
    return sha256(request.to_json().encode()).digest()
