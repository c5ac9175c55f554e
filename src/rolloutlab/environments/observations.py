"""Observations as messages, and steps as an environment returned them: checked, and safe to store and send."""

import json
import math
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from rolloutlab.api.wire.chat import Message
from rolloutlab.environments.protocol import Step
from rolloutlab.sanitize import replace_surrogates

MAX_CHARS = 1_000_000
"""The most characters of an observation. No policy reads more, and every later request would repeat it."""
_MESSAGES: TypeAdapter[tuple[Message, ...]] = TypeAdapter(tuple[Message, ...])
_EXPECTED = "return Step(observation, reward, done)"
_OF_GYMNASIUM = "return Step(observation, reward, terminated or truncated, info)"
_MAX_INFO, _MAX_NAME, _MAX_TEXT = 64, 100, 1000
"""Limits of an `info`: its entries, and the characters of a name and of a text."""
_MAX_NUMBER = 2**53
"""The limit of the numbers in an `info`: below it, a float holds each integer."""
Scalar = str | int | float | bool


class EnvironmentTurn(NamedTuple):
    """The environment's response to an answer: a `Step` whose observation is messages that the policy reads next."""

    messages: tuple[Message, ...]
    reward: float = 0.0
    done: bool = False
    info: Mapping[str, Scalar] = {}


class BadStepError(Exception):
    """An environment returned a value that it may not return. The message says what it may."""


def turn_of(value: Any) -> EnvironmentTurn:
    """Read the turn of a `Step`, or of a tuple `(observation, reward, done)` with or without an `info`.

    Raises:
        BadStepError: it is something else; an observation, a reward or `done` is of a wrong type; a step that does not
            end the episode has nothing for the policy to read.
    """
    step = step_of(value)
    messages = messages_of(step.observation)
    if not messages and not step.done:
        raise BadStepError("an episode that goes on needs an observation -> Step(None, reward, done=True) ends it")
    return EnvironmentTurn(messages, step.reward, step.done, step.info)


def step_of(value: Any) -> Step:
    """Read a `Step` as `turn_of` does, but leave its observation as it is: a tool's becomes a tool message."""
    if not isinstance(value, tuple) or not 3 <= len(value) <= 4:
        size = f" of {len(value)}" if isinstance(value, tuple) else ""
        expected = _OF_GYMNASIUM if size == " of 5" else _EXPECTED
        raise BadStepError(f"a {type(value).__name__}{size} is no Step -> {expected}")
    observation, reward, done, info = (*value, {}) if len(value) == 3 else value
    return Step(observation, reward_of(reward, _EXPECTED), _read_flag(done), _keep_scalars(info))


def messages_of(observation: Any) -> tuple[Message, ...]:
    """Read the messages of an observation: a text is a user message; None and an empty text have none.

    Raises:
        BadStepError: it is neither a text nor messages, or longer than any policy reads.
    """
    if observation is None or (isinstance(observation, str) and not observation):
        return ()
    if isinstance(observation, str):
        observation = [{"role": "user", "content": str.__str__(observation)}]
    if not isinstance(observation, list | tuple) or not all(isinstance(each, Mapping) for each in observation):
        what = f"an observation is a text or a list of messages, not a {type(observation).__name__}"
        first = "the first of its values" if _is_with_info(observation) else "str(observation)"
        raise BadStepError(f"{what} -> {first}, or [{{'role': 'user', 'content': '...'}}]")
    try:
        text = replace_surrogates(json.dumps([dict(each) for each in observation], ensure_ascii=False)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadStepError(f"an observation is no JSON: {error}") from None
    if len(text) > MAX_CHARS:
        raise BadStepError(f"an observation of {len(text):,} bytes is longer than {MAX_CHARS:,} -> cut it short")
    try:
        return _MESSAGES.validate_json(text)
    except ValidationError as error:
        raise BadStepError(f"an observation is no list of messages: {error.errors()[0]['msg']}") from None


def reward_of(value: Any, hint: str) -> float:
    """Convert a reward to a float; raise BadStepError with the hint if it is not a finite number."""
    try:
        reward = float(value.item() if hasattr(value, "item") else value) if not isinstance(value, str) else math.nan
    except Exception:  # noqa: BLE001 - a method of the value may raise anything
        reward = math.nan
    if not math.isfinite(reward):
        raise BadStepError(f"the reward is {_show(value)}, which is no finite number -> {hint}")
    return reward


def _is_with_info(value: Any) -> bool:
    """Whether a value has the form that Gymnasium's `reset` returns: an observation and an info."""
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Mapping)


def _read_flag(value: Any) -> bool:
    plain = value.item() if hasattr(value, "item") else value
    if not isinstance(plain, bool | int):
        raise BadStepError(f"done is {_show(value)}, which is neither True nor False -> {_EXPECTED}")
    return bool(plain)


def _keep_scalars(info: Any) -> dict[str, Scalar]:
    """Keep the numbers and texts of an `info`, as many as a trajectory may have. The rest is left out."""
    if not isinstance(info, Mapping):
        raise BadStepError(f"info is a {type(info).__name__}, and has to be a dict -> {_EXPECTED}")
    kept: dict[str, Scalar] = {}
    for key, value in islice(info.items(), _MAX_INFO):
        name = replace_surrogates(str(key), _MAX_NAME)
        plain = value.item() if getattr(value, "shape", None) == () else value
        if isinstance(plain, str):
            kept[name] = replace_surrogates(plain, _MAX_TEXT)
        elif isinstance(plain, bool | int | float) and abs(plain) < _MAX_NUMBER:  # not NaN
            kept[name] = plain
    return kept


def _show(value: Any) -> str:
    try:
        return repr(value)[:80]
    except Exception:  # noqa: BLE001 - its `__repr__` may raise anything
        return f"a {type(value).__name__}"
