"""Concurrent calls of reward functions: threads for plain ones, an event loop for coroutines, or processes."""

import asyncio
import inspect
import multiprocessing
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypedDict

from rolloutlab.errors import InputError, RewardError
from rolloutlab.runtime import LoopThread
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.scoring.calls import Arguments, RewardCall
from rolloutlab.store.models import Group, StoredTrajectory

CONCURRENT = 32
"""Calls at a time."""
_FOR_EVER = 1e9
"""Seconds that no thread waits: `threading.TIMEOUT_MAX` is not much more."""
_PACKAGE = str(Path(__file__).parents[1])


class RewardOptions(TypedDict, total=False):
    """How `Session.reward` calls functions.

    concurrency: calls at a time. 32 by default.
    timeout: seconds for a call. No limit by default.
    retries: how often a failed call is repeated. 0 by default.
    backoff: seconds before the first retry; they double for each further one. 0.5 by default.
    processes: call functions in so many processes, for functions that hold the GIL.
    overwrite: also replace rewards that were given by hand, and ignore stored results.
    resume: score only trajectories that the last scoring left out or failed on; undone scorings do not count.
        Functions, weights and options that you do not give are those of that scoring. The new rewards can be undone
        separately.
    cache: store the results. A function with the same name and source text is then not called again for the same
        trajectory. By default nothing is cached.
    dry_run: try three trajectories, store nothing and return a DataFrame.
    """

    concurrency: int | None
    timeout: float | None
    retries: int | None
    backoff: float | None
    processes: int | None
    overwrite: bool
    resume: bool
    cache: bool | None
    dry_run: bool


@dataclass(frozen=True)
class ScoringOptions:
    """How reward functions are called.

    The fields are the options of `RewardOptions`. processes: 0 calls the functions in this process.

    Raises:
        InputError: a value is out of range.
    """

    concurrency: int = CONCURRENT
    timeout: float | None = None
    retries: int = 0
    processes: int = 0
    backoff: float = 0.5
    overwrite: bool = False
    resume: bool = False
    cache: bool = False
    dry_run: bool = False

    def __post_init__(self) -> None:
        for name, least in (("concurrency", 1), ("retries", 0), ("processes", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{name} must be an integer ≥ {least}, not {value!r}", hint=f"{name}={max(least, 2)}")
        if self.timeout is not None and not (_is_number(self.timeout) and 0 < self.timeout < _FOR_EVER):
            raise InputError(f"timeout must be a number of seconds > 0, not {self.timeout!r}", hint="timeout=20")
        if not (_is_number(self.backoff) and 0 <= self.backoff < _FOR_EVER):
            raise InputError(f"backoff must be a number of seconds ≥ 0, not {self.backoff!r}", hint="backoff=0.5")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class CallError(NamedTuple):
    """An exception of a reward function: type, message, and the line of the function that raised."""

    error: str
    message: str
    line: str = ""
    cause: BaseException | None = None


@dataclass(eq=False)
class PendingCall:
    """One call to make, for a trajectory or a group.

    scores: the trajectories that get its result. delay: seconds before a retry. begun: when the call began, by
    `time.monotonic`; None before. abandoned: whether it was late, so that its result is ignored. stop: ends the call,
    if that is possible. task: the task of a coroutine, once it has begun.
    """

    call: RewardCall
    members: Sequence[StoredTrajectory]
    group: Group
    scores: Sequence[Any] = ()
    attempt: int = 0
    delay: float = 0.0
    begun: float | None = None
    abandoned: bool = False
    stop: Callable[[], object] = lambda: None
    task: "asyncio.Task[Any] | None" = None

    @property
    def name(self) -> str:
        """The name of the trajectory or group that it scores."""
        return self.members[0].name if self.call.per == "trajectory" else self.group.name

    def arguments(self) -> Arguments:
        """The arguments of the function, with copies of the rows: no other call sees what it changes in them."""
        members = [replace(each, row=deepcopy(each.row)) for each in self.members]
        return self.call.arguments(members, replace(self.group, row=deepcopy(self.group.row)))


class Result(NamedTuple):
    """What a call returned, or how it failed."""

    job: PendingCall
    value: Any
    error: CallError | None = None


class Workers:
    """Makes calls at the same time; `results` has them as they end. A call that hangs is left behind, not waited for.

    Plain functions are called in threads of its own: those of `concurrent.futures` are joined when Python exits, so a
    call that hangs would keep it from exiting. With a concurrency of one and no timeout `serve` calls them, in the
    thread of the caller: some libraries work in the main thread only.

    Raises:
        InputError: a function cannot be sent to a process.
    """

    def __init__(self, options: ScoringOptions, calls: Sequence[RewardCall], loop: LoopThread) -> None:
        self.results: SimpleQueue[Result] = SimpleQueue()
        self.limit = options.processes or options.concurrency
        self.in_caller = self.limit == 1 and options.timeout is None and not options.processes
        self._jobs: SimpleQueue[PendingCall | None] = SimpleQueue()
        self._in_processes = options.processes > 0
        self._pickled = [_pickled(call) for call in calls] if options.processes else []
        self._places = {id(call): place for place, call in enumerate(calls)}
        self._loop = loop
        self._threads = 0
        self._futures: set[Future[Any]] = set()
        self._children: list[_Child] = []
        self._closed = threading.Event()
        self._lock = threading.Lock()

    def start(self, job: PendingCall) -> None:
        """Begin a call after its delay; there are at most `limit` at a time."""
        if job.call.asynchronous and not self._in_processes:
            self._submit(job, self._await(job))
            return
        self._jobs.put(job)
        if not self.in_caller and self._threads < self.limit:
            self._threads += 1
            work = self._work_in_process if self._in_processes else self._work
            threading.Thread(target=work, name="rolloutlab-reward", daemon=True).start()

    def abandon(self, job: PendingCall) -> None:
        """Go on without a call; its result is ignored."""
        job.abandoned = True
        job.stop()
        if not job.call.asynchronous and not self._in_processes:
            self._threads -= 1  # of the one that is stuck

    def serve(self, timeout: float) -> None:
        """Make calls in this thread (if `in_caller`), until none has come for `timeout` seconds."""
        with suppress(Empty):
            while job := self._jobs.get(timeout=timeout):
                self._make(job)

    def close(self) -> None:
        """End the threads that wait for a call, the processes and the coroutines."""
        for _ in range(max(self._threads, 0) + 1):
            self._jobs.put(None)
        for future in list(self._futures):
            future.cancel()
        with self._lock:
            self._closed.set()
            for child in self._children:
                child.kill()

    def blocking(self, under_way: Sequence[PendingCall]) -> RewardError | None:
        """The error of a coroutine that blocks the event loop, if one does; the loop is left."""
        if not self._loop.is_blocked():
            return None
        task, stack = self._loop.running_task()
        self._loop.leave()
        call = next((job for job in under_way if task and job.task is task), under_way[0]).call
        own = max((i for i, frame in enumerate(stack) if frame.filename.startswith(_PACKAGE)), default=-1)
        line = _line([frame for frame in stack[own + 1 :] if "asyncio" not in Path(frame.filename).parts])
        who = call.name or getattr(call.function, "__name__", "")
        message = f"the reward function {who} blocks the event loop, so that no other call goes on"
        hint = "def instead of async def; or await what takes long: asyncio.sleep, asyncio.to_thread, an async client"
        return RewardError(f"{message} ({line})" if line else message, hint=hint)

    def _work(self) -> None:
        while job := self._jobs.get():
            self._make(job)
            if job.abandoned:  # another thread has its place
                return

    def _make(self, job: PendingCall) -> None:
        """Make a call in this thread. A function may return an awaitable, as a lambda around a coroutine does."""
        if job.delay and self._closed.wait(job.delay):
            return
        job.begun = time.monotonic()
        try:
            positional, by_name = job.arguments()
            value = job.call.function(*positional, **by_name)
            if inspect.isawaitable(value):
                value = self._submit(job, _awaited(job, value)).result()
            result = Result(job, value)
        except BaseException as error:  # noqa: BLE001 - it is a failure of this trajectory
            result = Result(job, None, described(error))
        self.results.put(result)

    def _submit(self, job: PendingCall, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        future = self._loop.submit(work)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        job.stop = future.cancel
        return future

    async def _await(self, job: PendingCall) -> None:
        await asyncio.sleep(job.delay)
        if self._closed.is_set():  # the loop was blocked until now
            return
        job.begun = time.monotonic()
        try:
            positional, by_name = job.arguments()
            result = Result(job, await _awaited(job, job.call.function(*positional, **by_name)))
        except BaseException as error:  # noqa: BLE001 - it is a failure of this trajectory
            result = Result(job, None, described(error))
        self.results.put(result)

    def _work_in_process(self) -> None:
        child: _Child | None = None
        while job := self._jobs.get():
            if job.delay and self._closed.wait(job.delay):
                continue
            try:
                child = child if child and child.is_alive() else self._new_child()
            except OSError as error:  # out of memory, processes or file descriptors
                self.results.put(Result(job, None, described(error)))
                continue
            job.stop = child.kill
            result = child.result(job, self._places[id(job.call)])
            job.stop = lambda: None  # the process is free for the next call
            self.results.put(result)

    def _new_child(self) -> "_Child":
        child = _Child(self._pickled)
        with self._lock:
            self._children.append(child)
            if self._closed.is_set():  # while it started
                child.kill()
        return child


async def _awaited(job: PendingCall, value: Awaitable[Any]) -> Any:
    job.task = asyncio.current_task()
    return await value


def described(error: BaseException) -> CallError:
    """An exception with the line of the reward function that raised it, when its source is at hand.

    All of it can be stored and shown: control characters and halves of surrogate pairs are escaped.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_PACKAGE)]
    try:
        message = str(error)
    except BaseException:  # noqa: BLE001 - of its own method
        message = "its message cannot be shown"
    kind, line = type(error).__name__, _line(frames)
    return CallError(escape_control_chars(kind), escape_control_chars(message), escape_control_chars(line), error)


def _line(frames: Sequence[traceback.FrameSummary]) -> str:
    return f"line {frames[0].lineno}: {frames[0].line}" if frames and frames[0].line else ""


def _pickled(call: RewardCall) -> bytes:
    """A function for another process.

    Raises:
        InputError: it is defined in a notebook, or holds what cannot be pickled.
    """
    who = f"the reward function {call.name}" if call.name else "the reward function"
    hint = "put it into a module (%%writefile rewards.py), import it from there, and use --with"
    function = call.function
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if getattr(module, "__name__", "") == "__main__" and not hasattr(module, "__file__"):
        raise InputError(f"{who} cannot be sent to another process: it is defined in this notebook", hint=hint)
    try:
        return pickle.dumps(function)
    except Exception as error:
        if call.style:
            hint = f"without --processes, as functions of {call.style} are called through an adapter"
        raise InputError(f"{who} cannot be sent to another process: {error}", hint=hint) from error


class _Child:
    """A process that calls reward functions, one call after another.

    A `ProcessPoolExecutor` cannot end one call that hangs, and a process of it that dies fails the calls of all others,
    without its exit code. So each thread of `Workers` has a process of its own.
    """

    def __init__(self, pickled: Sequence[bytes]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, pickled), daemon=True)
        self._process.start()
        self.kill, self.is_alive = self._process.kill, self._process.is_alive
        there.close()
        try:
            self._problem: CallError | None = self._connection.recv()  # once it has imported the functions
        except (EOFError, OSError):
            self._problem = CallError("RuntimeError", "its process did not start: a script needs a __main__ guard")

    def result(self, job: PendingCall, place: int) -> Result:
        """The result of a call of the function at a place."""
        if self._problem:
            return Result(job, None, self._problem)
        job.begun = time.monotonic()
        try:
            self._connection.send((place, *job.call.arguments(job.members, job.group)))
            value, error = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(1.0)
            code = self._process.exitcode
            return Result(job, None, CallError("RuntimeError", f"its process ended with exit code {code}"))
        except BaseException as raised:  # noqa: BLE001 - such as arguments that cannot be pickled
            return Result(job, None, described(raised))
        return Result(job, value, error and CallError(*error))


def _serve(connection: Connection, pickled: Sequence[bytes]) -> None:
    """Call functions in a process until the other end of the connection is closed, coroutines on one event loop."""
    try:
        functions = [pickle.loads(each) for each in pickled]
    except BaseException as error:  # noqa: BLE001 - it is sent to the other end
        connection.send(CallError(*described(error)[:3]))
        return
    connection.send(None)

    async def wait_for(value: Awaitable[Any]) -> Any:
        return await value

    with asyncio.Runner() as runner, suppress(EOFError, KeyboardInterrupt):
        while True:
            place, positional, by_name = connection.recv()
            try:
                value = functions[place](*positional, **by_name)
                value = runner.run(wait_for(value)) if inspect.isawaitable(value) else value
                connection.send((value, None))
            except BaseException as error:  # noqa: BLE001 - it is a failure of this trajectory
                connection.send((None, tuple(described(error))[:3]))
