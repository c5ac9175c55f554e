"""Episode: one instance of an environment with its life bounded: made, reset, stepped, scored and closed."""

import asyncio
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from rolloutlab.api.wire.chat import Message
from rolloutlab.environments.observations import BadStepError, EnvironmentTurn, messages_of, reward_of, turn_of
from rolloutlab.environments.protocol import Source
from rolloutlab.environments.record import End
from rolloutlab.environments.thread import CallTimeoutError, EnvironmentThread, RaisedError
from rolloutlab.errors import RolloutlabError

T = TypeVar("T")
CALL_TIMEOUT = 60.0
"""Seconds for one call of an environment."""
_GRACE = 2.0
"""Seconds that a call under way gets at an interrupt, before `close` is called beside it."""


class EpisodeError(RolloutlabError):
    """An environment raised, took too long, or returned what it may not. end: what the episode ends with.

    Raised by a tool it ends the episode; any other exception of a tool is for the policy to read.
    """

    def __init__(self, message: str, *, end: End = "error", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.end = end


class Episode:
    """One instance for one rollout, in a thread of its own.

    row: of the group. seed: handed to `reset`. timeout: seconds for each call. logs: what there is to say of it.

    Every method raises EpisodeError; the episode is over then, and only `close` may follow.
    """

    def __init__(self, source: Source, row: Mapping[str, Any], seed: int, timeout: float = CALL_TIMEOUT) -> None:
        self._source = source
        self._row = row
        self._seed = seed
        self._timeout = timeout
        self.logs: tuple[str, ...] = ()
        self._environment: Any = None
        self._thread: EnvironmentThread | None = None
        self._hangs = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def tools(self) -> Sequence[Callable[..., Any]]:
        """What the policy may call, once the episode has begun."""
        return list(getattr(self._environment, "tools", None) or ())

    @property
    def takes_answers(self) -> bool:
        """Whether it has a `step`; without one, an answer without a tool call ends the episode."""
        return callable(getattr(self._environment, "step", None))

    async def begin(self) -> tuple[Message, ...]:
        """Make the instance and reset it; the first messages."""
        self._thread = EnvironmentThread(on_loop=getattr(self._source, "is_async", False))
        await self.call("__init__", self._make)
        if not callable(getattr(self._environment, "reset", None)):
            name = type(self._environment).__name__
            raise EpisodeError(f"{self._source.name} made a {name}, which has no reset", hint="def reset(self, seed)")
        if not self.takes_answers and not hasattr(self._environment, "tools"):
            raise EpisodeError(f"{self._source.name} has neither step nor tools", hint="def step(self, answer)")
        if callable(getattr(self._environment, "open", None)):
            waited = await self.call("open", lambda: self._environment.open(), waits=True)
            self.logs = (waited,) if isinstance(waited, str) else ()
        observation = await self.call("reset", lambda: self._environment.reset(self._seed))
        return self._checked("reset", messages_of, observation)

    async def step(self, answer: str) -> EnvironmentTurn:
        """What comes of an answer."""
        return self._checked("step", turn_of, await self.call("step", lambda: self._environment.step(answer)))

    async def final_reward(self) -> float:
        """The reward of the whole episode, beside those of its turns."""
        if not callable(getattr(self._environment, "get_reward", None)):
            return 0.0
        return self._checked("get_reward", reward_of, await self.call("get_reward", self._environment.get_reward))

    async def call(self, name: str, work: Callable[[], Any], *, waits: bool = False) -> Any:
        """Any call of the instance, in its thread, within the time-out; name: for the error. waits: without one."""
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
            raise EpisodeError(f"{what} raised {_described(failed.error)}") from failed.error

    async def close(self) -> None:
        """Call `close` of the instance, once, if it has one, and let its thread end. It raises nothing.

        It goes on where its caller is cancelled; another call waits for the same end.
        """
        self._closing = self._closing or asyncio.create_task(self._let_end())
        await asyncio.shield(self._closing)

    async def _let_end(self) -> None:
        thread = self._thread
        if thread is None:
            return
        try:
            # a coroutine that took too long ends when it is cancelled, and its loop is free again
            beside = not await thread.is_free(0.1 if self._hangs else _GRACE) and self._environment is not None
            with suppress(CallTimeoutError, RaisedError):
                await (thread.call_beside if beside else thread.call)(self._close, self._timeout)
        finally:
            thread.end()

    def _make(self) -> None:
        self._environment = self._source.environment(self._row)

    def _close(self) -> Any:
        close = getattr(self._environment, "close", None)
        return close() if callable(close) else None

    def _checked(self, name: str, read: Callable[[Any], T], value: Any) -> T:
        try:
            return read(value)
        except BadStepError as error:
            what, _, hint = str(error).partition(" -> ")
            raise EpisodeError(f"{self._source.name}.{name}: {what}", hint=hint or None) from None


def _described(error: BaseException) -> str:
    """Type and message of an exception, and the line of the environment's own code where that is known."""
    elsewhere = (str(Path(__file__).parent), sys.prefix, sys.base_prefix)
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(elsewhere)]
    try:
        text = str(error).encode("utf-8", "replace").decode()[:1000]
    except Exception:  # noqa: BLE001 - of its own method
        text = ""
    name = type(error).__name__
    return (f"{name}: {text}" if text else name) + (f" (line {own[-1].lineno})" if own else "")
