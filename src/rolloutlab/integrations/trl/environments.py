"""Adapter of TRL's environments: makes a source from what TRL takes as `environment_factory`."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rolloutlab.environments.adapters import name_with
from rolloutlab.environments.protocol import Observation
from rolloutlab.errors import InputError


def is_trl_factory(factory: Callable[..., Any]) -> bool:
    """Whether a factory is called without a row, and its `reset`, if that is known, takes the row as keywords."""
    made = factory.func if isinstance(factory, partial) else factory
    if inspect.isgeneratorfunction(made) or inspect.isasyncgenfunction(made):
        return False
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return False
    if not _takes(signature) or _takes(signature, {}):
        return False
    reset = getattr(made, "reset", None)
    if reset is None:
        return not inspect.isclass(made)
    parameters = inspect.signature(reset).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return "seed" not in parameters
    return len(parameters) == 1 and not hasattr(made, "step")  # with a step it is meant as one of ours


def recognise(factory: Any, options: Mapping[str, Any]) -> "TrlSource | None":
    """Make the source of an `environment_factory`, with `reward_funcs` or without; None if it is none."""
    if options.keys() - {"reward_funcs"} or not is_trl_factory(factory):
        return None
    return TrlSource(factory, **options)


def _functions(given: Any) -> list[Callable[..., Any]]:
    functions = list(given) if isinstance(given, list | tuple) else [given]
    for function in functions:
        if not callable(function):
            what = f"{function!r} is not a reward function; models that score are not supported"
            raise InputError(what, hint="reward_funcs=[reward_func], def reward_func(environments, **kwargs)")
    return functions


async def _call(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call a function with the arguments that it takes."""
    parameters = inspect.signature(function).parameters
    everything = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    outcome = function(**{name: value for name, value in given.items() if everything or name in parameters})
    return await outcome if inspect.isawaitable(outcome) else outcome


def _takes(signature: inspect.Signature, *arguments: Any) -> bool:
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


class TrlSource:
    """The environments of a factory of TRL. The rows are those of its data set, with a `prompt` or without.

    reward_funcs: functions as `GRPOTrainer` takes them, called with the environment of an episode at its end.
    """

    def __init__(self, factory: Callable[[], Any], reward_funcs: Any = ()) -> None:
        self._factory = factory
        self._functions = _functions(reward_funcs)
        made = factory.func if isinstance(factory, partial) else factory
        self.name = name_with(
            getattr(made, "__name__", type(made).__name__),
            {"reward_funcs": [getattr(each, "__name__", type(each).__name__) for each in self._functions]}
            if self._functions
            else {},
        )
        own = [each for _, each in inspect.getmembers(made)]
        self.is_async = any(map(inspect.iscoroutinefunction, (*own, *self._functions)))

    def rows(self, limit: int | None, seed: int) -> None:
        """None: the rows are those of `over`, or one empty row."""

    def environment(self, row: Mapping[str, Any]) -> Any:
        environment = self._factory()
        if not hasattr(environment, "reset"):
            return environment
        takes_seed = "seed" in inspect.signature(environment.reset).parameters  # one of ours, of a function
        return environment if takes_seed else TrlEnvironment(environment, row, self._functions)


class TrlEnvironment:
    """One instance. `reset` gets the row as keywords; what it returns is appended to the last message of the prompt.

    Its public methods are tools, except `reset`, `close`, and `get_reward`, which gives the reward. An answer without a
    call ends the episode. The reward is the sum of `get_reward` and the reward functions. Without these there is no
    reward, because nothing else says which attribute of an environment holds it.
    """

    def __init__(self, environment: Any, row: Mapping[str, Any], functions: Sequence[Callable[..., Any]] = ()) -> None:
        self._environment = environment
        self._row = row
        self._functions = functions
        self.has_reward_functions = bool(functions)
        names = [name for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction)]
        own = {"reset", "get_reward", "close"}
        self.tools = [getattr(environment, name) for name in names if name not in own and not name.startswith("_")]
        for name in ("get_reward", "close"):
            if hasattr(environment, name):
                setattr(self, name, getattr(environment, name))

    def reset(self, seed: int) -> Any:  # noqa: ARG002 - TRL has none
        try:
            inspect.signature(self._environment.reset).bind(**self._row)
        except TypeError as error:
            raise InputError(f"it does not take the row: {error}", hint="def reset(self, **row)") from None
        observation = self._environment.reset(**self._row)
        return (
            self._open_async(observation) if inspect.isawaitable(observation) else self._open_conversation(observation)
        )

    async def score(self, conversation: tuple[list[Any], list[Any]]) -> float | None:
        """Add up what the reward functions and `get_reward` return; None if none of them applies."""
        prompt, completion = conversation
        columns = {name: [value] for name, value in self._row.items() if name not in {"prompt", "completion"}}
        given = {"prompts": [prompt], "completions": [completion], **columns, "environments": [self._environment]}
        logs = {"log_extra": lambda *_: None, "log_metric": lambda *_: None}
        rewards = []
        for function in self._functions:
            values = list(await _call(function, {**given, **logs, "trainer_state": None}))
            if len(values) != 1:
                message = f"a reward function returned {len(values)} rewards for one environment"
                raise InputError(message, hint="return [env.reward for env in environments]")
            rewards += [value for value in values if value is not None and value == value]
        if hasattr(self, "get_reward"):
            rewards.append(await _call(self.get_reward, {}))
        return math.fsum(rewards) if rewards else None

    async def _open_async(self, observation: Any) -> Observation:
        return self._open_conversation(await observation)

    def _open_conversation(self, observation: str | None) -> Observation:
        prompt = self._row.get("prompt")
        if not isinstance(prompt, list) or not prompt:
            return observation
        if not observation:
            return prompt
        content, part = prompt[-1]["content"], {"type": "text", "text": observation}
        after = [*content, part] if isinstance(content, list) else f"{content}{observation}"
        return [*prompt[:-1], {**prompt[-1], "content": after}]
