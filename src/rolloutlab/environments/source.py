"""Source of environments: a class, a factory, a generator function, an adapter's object, or `PREFIX:NAME`."""

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from functools import partial
from inspect import Parameter, isasyncgenfunction, isclass, iscoroutinefunction, isgeneratorfunction, signature
from typing import Any

from rolloutlab.environments.adapters import advice, is_source, make_source, recognise, refuse
from rolloutlab.environments.protocol import Source, Step
from rolloutlab.errors import InputError

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class GeneratorEnvironment:
    """An environment written as a generator: `def env(row): answer = yield "first"; ...; return reward`.

    It yields a `Step` if a turn has a reward. A function with a second parameter gets the seed as well.
    """

    def __init__(self, function: Callable[..., Any], row: Mapping[str, Any]) -> None:
        self._function = function
        self._row = row
        self._generator: Generator[Any, str, Any] | None = None

    def reset(self, seed: int) -> Any:
        self._generator = self._function(*_arguments_for(self._function, self._row, seed))
        try:
            return _first_observation(next(self._generator))
        except StopIteration:
            raise _no_observation(self._function) from None

    def step(self, answer: str) -> Any:
        assert self._generator, "reset comes first"
        try:
            return _to_step(self._generator.send(answer))
        except StopIteration as end:
            return _last_step(end.value)

    def close(self) -> None:
        if self._generator:
            self._generator.close()


class AsyncGeneratorEnvironment:
    """An environment written as an `async def` generator, otherwise as `GeneratorEnvironment`.

    Such a function cannot return a value: `yield Step(None, reward, done=True)` ends the episode.
    """

    def __init__(self, function: Callable[..., Any], row: Mapping[str, Any]) -> None:
        self._function = function
        self._row = row
        self._generator: AsyncGenerator[Any, str] | None = None

    async def reset(self, seed: int) -> Any:
        self._generator = self._function(*_arguments_for(self._function, self._row, seed))
        try:
            return _first_observation(await anext(self._generator))
        except StopAsyncIteration:
            raise _no_observation(self._function) from None

    async def step(self, answer: str) -> Any:
        assert self._generator, "reset comes first"
        try:
            return _to_step(await self._generator.asend(answer))
        except StopAsyncIteration:
            return _last_step(None)

    async def close(self) -> None:
        if self._generator:
            await self._generator.aclose()


def _arguments_for(function: Callable[..., Any], row: Mapping[str, Any], seed: int) -> tuple[Any, ...]:
    positional = [each for each in signature(function).parameters.values() if each.kind in _POSITIONAL]
    return (row, seed) if len(positional) > 1 else (row,)


def _no_observation(function: Callable[..., Any]) -> InputError:
    name = getattr(function, "__name__", "the generator")
    return InputError(f"{name} ended before its first observation", hint="answer = yield 'the first observation'")


def _first_observation(value: Any) -> Any:
    return value.observation if isinstance(value, Step) else value


def _to_step(value: Any) -> Any:
    return value if isinstance(value, tuple) else Step(value)


def _last_step(value: Any) -> Step:
    """Make the last step of what a generator returned: its reward, a `Step`, or nothing."""
    return value._replace(done=True) if isinstance(value, Step) else Step(None, 0.0 if value is None else value, True)


_SEEDS_PER_ROUND = 1_000_000


def source_of(env: Any, /, **options: Any) -> Source:
    """Make the source of environments that an argument `env` stands for.

    env: a class, a factory, a generator function, a source, or a name: `gymnasium:ID`, `openenv:URL`,
    `reasoning-gym:DATASET` or `textarena:ID`.
    options: with a name, the package's own options, such as `is_slippery=False`. With a factory of TRL, `reward_funcs`,
    which are called with its environments at the end of an episode.

    Raises:
        InputError: `env` is none of these, such as an instance, which only one rollout could use. Or the package is not
            installed, or does not have the name.
        UnreachableError: no server answers at the URL.
    """
    if isinstance(env, str):
        return make_source(env, options)
    if callable(env) and not is_source(env) and (known := recognise(env, options)):
        return known
    if options:
        raise InputError("options are for names such as gymnasium:FrozenLake-v1", hint="functools.partial(CLASS, ...)")
    if is_source(env):
        source: Source = env
        return source
    if callable(env):
        return FactorySource(env)
    if callable(getattr(env, "reset", None)):
        name = type(env).__name__
        raise InputError(f"this is one {name}, and each rollout needs its own", hint=advice(env) or f"--env {name}")
    hint = advice(env) or "--env CLASS, with reset(seed), step(answer)"
    raise InputError(f"a {type(env).__name__} is not an environment", hint=hint)


def source_or_none(env: Any) -> Source | None:
    """Make the source of an argument as `source_of` does, without options; return None for None."""
    return None if env is None else source_of(env)


def rows_of_round(source: Source, limit: int | None, seed: int, number: int) -> Any:
    """Return the rows of a source for a round of a loop, other rows in each round; None if the source has none."""
    return source.rows(limit, seed + _SEEDS_PER_ROUND * number)


class FactorySource:
    """Makes environments by calling a class, a factory or a generator function with the row."""

    def __init__(self, factory: Callable[..., Any]) -> None:
        self._factory = factory
        function: Any = factory.func if isinstance(factory, partial) else factory
        self.name = getattr(function, "__name__", type(function).__name__)
        refuse(function)
        self._short_form: Any = None
        methods = (getattr(function, name, None) for name in ("reset", "step"))
        self.is_async = isasyncgenfunction(function) or any(map(iscoroutinefunction, (function, *methods)))
        if isgeneratorfunction(function):
            self._short_form = GeneratorEnvironment
        elif isasyncgenfunction(function):
            self._short_form = AsyncGeneratorEnvironment
        elif isclass(function) and not hasattr(function, "reset"):
            hint = advice(function) or "def reset(self, seed): return 'first observation'"
            raise InputError(f"{self.name} has no reset", hint=hint)

    def environment(self, row: Mapping[str, Any]) -> Any:
        if self._short_form:
            return self._short_form(self._factory, row)
        made = self._factory(row)
        refuse(made)
        return made

    def rows(self, limit: int | None, seed: int) -> list[dict[str, Any]]:  # noqa: ARG002 - of the protocol
        """Return empty rows, one by default. Their groups differ only in the seed."""
        return [{} for _ in range(limit or 1)]
