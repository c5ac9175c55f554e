"""Short form of an environment: a generator function, sync or async, that yields observations and gets answers."""

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from inspect import Parameter, signature
from typing import Any

from rolloutlab.environments.protocol import Step
from rolloutlab.errors import InputError

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class GeneratorEnvironment:
    """`def env(row): answer = yield "first"; ...; return reward`, with `yield Step(...)` where a turn has a reward.

    A function with a second parameter gets the seed as well.
    """

    def __init__(self, function: Callable[..., Any], row: Mapping[str, Any]) -> None:
        self._function = function
        self._row = row
        self._generator: Generator[Any, str, Any] | None = None

    def reset(self, seed: int) -> Any:
        self._generator = self._function(*_arguments(self._function, self._row, seed))
        try:
            return _first(next(self._generator))
        except StopIteration:
            raise _no_observation(self._function) from None

    def step(self, answer: str) -> Any:
        assert self._generator, "reset comes first"
        try:
            return _step(self._generator.send(answer))
        except StopIteration as end:
            return _end(end.value)

    def close(self) -> None:
        if self._generator:
            self._generator.close()


class AsyncGeneratorEnvironment:
    """The same with `async def`, which cannot return a value: `yield Step(None, reward, done=True)` ends it."""

    def __init__(self, function: Callable[..., Any], row: Mapping[str, Any]) -> None:
        self._function = function
        self._row = row
        self._generator: AsyncGenerator[Any, str] | None = None

    async def reset(self, seed: int) -> Any:
        self._generator = self._function(*_arguments(self._function, self._row, seed))
        try:
            return _first(await anext(self._generator))
        except StopAsyncIteration:
            raise _no_observation(self._function) from None

    async def step(self, answer: str) -> Any:
        assert self._generator, "reset comes first"
        try:
            return _step(await self._generator.asend(answer))
        except StopAsyncIteration:
            return _end(None)

    async def close(self) -> None:
        if self._generator:
            await self._generator.aclose()


def _arguments(function: Callable[..., Any], row: Mapping[str, Any], seed: int) -> tuple[Any, ...]:
    positional = [each for each in signature(function).parameters.values() if each.kind in _POSITIONAL]
    return (row, seed) if len(positional) > 1 else (row,)


def _no_observation(function: Callable[..., Any]) -> InputError:
    name = getattr(function, "__name__", "the generator")
    return InputError(f"{name} ended before its first observation", hint="answer = yield 'the first observation'")


def _first(value: Any) -> Any:
    return value.observation if isinstance(value, Step) else value


def _step(value: Any) -> Any:
    return value if isinstance(value, tuple) else Step(value)


def _end(value: Any) -> Step:
    """The last step: a generator returns its reward, a `Step`, or nothing."""
    return value._replace(done=True) if isinstance(value, Step) else Step(None, 0.0 if value is None else value, True)
