"""Episode: make, reset, step, score and close one instance of an environment, each with a time limit."""

import asyncio
import copy
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rolloutlab.api.wire.chat import Message
from rolloutlab.environments.adapters import advice
from rolloutlab.environments.observations import BadStepError, EnvironmentTurn, messages_of, reward_of, turn_of
from rolloutlab.environments.protocol import Source
from rolloutlab.environments.record import End
from rolloutlab.environments.thread import CallTimeoutError, EnvironmentThread, RaisedError
from rolloutlab.errors import RolloutlabError, described

T = TypeVar("T")
Conversation = tuple[list[dict[str, Any]], list[dict[str, Any]]]
"""Prompt and completion: the messages before the first completion, and those from it on."""
CALL_TIMEOUT = 60.0
"""The time-out of one call of an environment, in seconds, by default."""
_HERE = str(Path(__file__).parents[1])
_SIGNATURES = {
    "__init__": "def __init__(self, row)",
    "reset": "def reset(self, seed)",
    "step": "def step(self, answer)",
    "tools": "self.tools = [self.look, self.move]",
    "get_reward": "def get_reward(self)",
}
_GRACE = 2.0
"""Seconds that a running call gets to end after an interrupt. Then `close` is called beside it."""


class EpisodeError(RolloutlabError):
    """A call of an environment raised, took too long, or returned an invalid value. end: how the episode ends.

    If a tool raises it, the episode ends. If a tool raises any other exception, the policy reads the message.
    """

    def __init__(self, message: str, *, end: End = "error", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.end = end


class Episode:
    """One instance for one rollout, in a thread of its own.

    Every method may raise EpisodeError. The episode is then over, and only `close` may be called.

    Attributes:
        logs: Lines for the logs of the trajectory.
        tools: The functions that the policy may call; empty before `begin`.
    """

    def __init__(self, source: Source, row: Mapping[str, Any], seed: int, timeout: float = CALL_TIMEOUT) -> None:
        """Prepare an episode; `begin` makes the instance.

        row: the row of the group; the environment gets a copy. seed: the argument of `reset`. timeout: the time limit
        of each call, in seconds.
        """
        self._source = source
        self._row = copy.deepcopy(row)
        self._seed = seed
        self._timeout = timeout
        self.logs: tuple[str, ...] = ()
        self.tools: Sequence[Callable[..., Any]] = ()
        self._environment: Any = None
        self._methods: frozenset[str] = frozenset()
        self._thread: EnvironmentThread | None = None
        self._hangs = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def takes_answers(self) -> bool:
        """Whether it has a `step`; without one, an answer without a tool call ends the episode."""
        return "step" in self._methods

    async def begin(self) -> tuple[Message, ...]:
        """Make the instance and reset it; return the first messages."""
        self._thread = EnvironmentThread(on_loop=getattr(self._source, "is_async", False))
        self._environment = await self.call("__init__", self._make)
        self._methods = await self.call("__init__", self._find_methods)
        if "reset" not in self._methods:
            name = type(self._environment).__name__
            hint = advice(self._environment) or "def reset(self, seed)"
            raise EpisodeError(f"{self._source.name} made a {name}, which has no reset", hint=hint)
        if "open" in self._methods:
            waited = await self.call("open", lambda: self._environment.open(), waits=True)
            self.logs = (waited,) if isinstance(waited, str) else ()
        observation = await self.call("reset", lambda: self._environment.reset(self._seed))
        tools = await self.call("tools", self._find_tools)
        if tools is None and not self.takes_answers:
            raise EpisodeError(f"{self._source.name} has neither step nor tools", hint="def step(self, answer)")
        self.tools = tools or ()
        return self.read("reset", messages_of, observation)

    async def step(self, answer: str) -> EnvironmentTurn:
        """Hand an answer to the environment; return its turn."""
        return self.read("step", turn_of, await self.call("step", lambda: self._environment.step(answer)))

    async def final_reward(self, conversation: Conversation) -> float | None:
        """Request the reward of the whole episode, without the rewards of its turns; None if there is none.

        conversation: prompt and completion as messages, for reward functions of TRL.
        """
        if "score" in self._methods:
            reward = await self.call("reward_funcs", lambda: self._environment.score(conversation))
            return None if reward is None else self.read("reward_funcs", partial(reward_of, hint="0.5"), reward)
        if "get_reward" not in self._methods:
            return 0.0 if self.takes_answers else None
        reward = await self.call("get_reward", lambda: self._environment.get_reward())
        return self.read("get_reward", partial(reward_of, hint="return a number such as 0.5"), reward)

    async def call(self, name: str, work: Callable[[], Any], *, waits: bool = False) -> Any:
        """Call `work` in the instance's thread. name: names the call in errors. waits: whether it has no time limit."""
        assert self._thread, "it has begun"
        what = f"{self._source.name}.{name}"
        try:
            return await self._thread.call(work, None if waits else self._timeout)
        except CallTimeoutError:
            self._hangs = True
            message = f"{what} took longer than {self._timeout:g} s"
            raise EpisodeError(message, end="timeout", hint="--env-timeout SECONDS") from None
        except RaisedError as failed:
            if isinstance(failed.error, EpisodeError):
                raise failed.error from None
            if isinstance(failed.error, RolloutlabError):
                raise EpisodeError(f"{what}: {failed.error.message}", hint=failed.error.hint) from failed.error
            hint = _SIGNATURES.get(name) if _is_wrong_call(failed.error) else None
            raise EpisodeError(f"{what} raised {_describe(failed.error)}", hint=hint) from failed.error

    def read(self, name: str, parse: Callable[[Any], T], value: Any) -> T:
        """Parse what a call returned, and raise EpisodeError if it is invalid. name: the call, for the error."""
        try:
            return parse(value)
        except BadStepError as error:
            what, _, hint = str(error).partition(" -> ")
        except Exception as error:  # noqa: BLE001 - a method of the value failed, such as `bool` of an array
            what, hint = f"a {type(value).__name__} that cannot be read: {type(error).__name__}", ""
        raise EpisodeError(f"{self._source.name}.{name}: {what}", hint=hint or None)

    async def close(self) -> None:
        """Call `close` of the instance, once, if it has one, and let its thread end. It raises nothing.

        Closing goes on even if the caller is cancelled. A second call waits until the first one has closed it.
        """
        self._closing = self._closing or asyncio.create_task(self._close_and_end())
        await asyncio.shield(self._closing)

    async def _close_and_end(self) -> None:
        """Close the instance, beside a call that hangs if need be, and let the thread end."""
        thread = self._thread
        if thread is None:
            return
        # a time-out has cancelled the call: if it was a coroutine, its thread is free almost at once
        is_free = await thread.is_free(0.1 if self._hangs else _GRACE)
        if not is_free and self._environment is None:  # `__init__` may have started something that only `close` ends
            thread.call_last(self._close)
            thread.end()
            return
        try:
            with suppress(CallTimeoutError, RaisedError):
                await (thread.call if is_free else thread.call_beside)(self._close, self._timeout)
            await thread.stop()
        finally:
            thread.end()

    def _make(self) -> Any:
        """Make an instance, or an awaitable of one. It is kept at once, so that an interrupt closes it in any case."""
        self._environment = self._source.environment(self._row)
        return self._environment

    def _find_methods(self) -> frozenset[str]:
        """Find the methods of the protocol that the instance has.

        This runs in the instance's thread, with a time-out, because a property with such a name may hang.
        """
        names = ("reset", "step", "open", "get_reward")
        own = {"score"} if getattr(self._environment, "has_reward_functions", False) is True else set()
        return frozenset({name for name in names if callable(getattr(self._environment, name, None))} | own)

    def _find_tools(self) -> list[Callable[..., Any]] | None:
        return list(self._environment.tools or ()) if hasattr(self._environment, "tools") else None

    def _close(self) -> Any:
        close = getattr(self._environment, "close", None)
        return close() if callable(close) else None


def _own_lines(error: BaseException) -> list[int | None]:
    """List the lines of the environment's own code that an exception came through."""
    elsewhere = (_HERE, sys.prefix, sys.base_prefix)
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.lineno for frame in frames if not frame.filename.startswith(elsewhere)]


def _is_wrong_call(error: BaseException) -> bool:
    """Whether a TypeError says that a function was called with wrong arguments: no line of the function ran."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, TypeError) and all(frame.filename.startswith(_HERE) for frame in frames)


def _describe(error: BaseException) -> str:
    """Describe an exception by its type, its message, and the line of the environment's own code, if known."""
    own = _own_lines(error)
    return described(error) + (f" (line {own[-1]})" if own else "")
