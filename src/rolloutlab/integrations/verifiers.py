"""verifiers (to 0.3): functions of a `Rubric`, called with rollouts and their row by parameter names."""

import functools
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, Literal, NamedTuple

from rolloutlab.environments.adapters import packages_of
from rolloutlab.errors import InputError, RewardError
from rolloutlab.objective.preflight import count
from rolloutlab.runtime import call_in_thread
from rolloutlab.scoring.calls import Arguments, RewardCall, bound_names
from rolloutlab.scoring.foreign import ForeignReward
from rolloutlab.scoring.signatures import check_known, is_asynchronous, own_parameters, wanted, with_parts
from rolloutlab.store.decoded import decode_messages, split_messages
from rolloutlab.store.models import Group, StoredTrajectory
from rolloutlab.store.rewards import finite

ROLLOUT = ("prompt", "completion", "answer", "info", "task", "state")
"""What a function of a rollout gets besides columns and objects of its rubric."""
_ONLY_VERIFIERS = {"state", "states", "infos", "tasks", "parser"}
ROLLOUTS = ("prompts", "completions", "answers", "infos", "tasks", "states")
"""What a function of a group gets."""


_TYPED = f"from {__name__} import reward; reward(f"
_HINTS = {
    "answer": f'{_TYPED}, answer="capital"), the column with the ground truth',
    "answers": f'{_TYPED}, answer="capital"), the column with the ground truth',
    "parser": f"{_TYPED}, parser=vf.Parser())",
}


class _RubricPart(NamedTuple):
    """A function of a rubric, its weight (None without a rubric) and the objects that it can have by name."""

    function: Any
    weight: float | None
    objects: Mapping[str, Any]


class _MessageDict(dict[str, Any]):
    """A message: older functions of verifiers read its keys, newer ones its attributes."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


def advice(environment: Any) -> str | None:
    """Say what to type for an environment of verifiers, which samples by itself."""
    if "verifiers" not in packages_of(environment):
        return None
    return "rolloutlab capture NAME --sessions -- the command that evaluates it: docs/capture.md"


def is_rubric(function: Any) -> bool:
    return any(c.__name__ == "Rubric" and c.__module__.split(".")[0] == "verifiers" for c in type(function).__mro__)


def check_version(function: Any) -> None:
    """Raise InputError for what verifiers 0.4 has in place of rubrics: tasks, judges, and methods marked as rewards."""
    owner = getattr(function, "__self__", function)
    classes = [*getattr(owner, "__mro__", ()), *type(owner).__mro__]
    if hasattr(function, "_vf_weight") or any(c.__module__.startswith("verifiers.v1") for c in classes):
        what = "verifiers 0.4 scores a Trace by methods of a Task, which is not supported: rubrics, up to 0.3, are"
        raise InputError(what, hint="def right(answer, COLUMN): ..., or %pip install 'verifiers<0.4'")


def _rubric_parts(function: Any, objects: Mapping[str, Any]) -> list[_RubricPart]:
    if not is_rubric(function):
        return [_RubricPart(function, None, objects)]
    own = {**function.class_objects, **objects}
    parts = [_RubricPart(f, float(w), own) for f, w in zip(function.funcs, function.weights, strict=True)]
    for rubric in getattr(function, "rubrics", ()):  # of a RubricGroup
        parts += _rubric_parts(rubric, objects)
    return parts


def _is_of_group(function: Any) -> bool:
    return bool(inspect.signature(function).parameters.keys() & set(ROLLOUTS))


def reward(function: Any, *, answer: str = "answer", **objects: Any) -> ForeignReward:
    """Wrap a reward function of verifiers, or a whole `Rubric` with its weights.

    answer: the column with the ground truth, which such functions call `answer`. objects: what a rubric would give to
    its functions by name, such as `parser`.
    """
    return ForeignReward(function, functools.partial(_call, function, answer, objects))


def recognise(function: Any, columns: Sequence[str]) -> ForeignReward | None:
    """Wrap a rubric. A function of a rubric is an error with what to type, as its `answer` may mean two things."""
    check_version(function)
    if is_rubric(function):
        return reward(function)
    names = own_parameters(function, columns)
    if names & _ONLY_VERIFIERS and names & {*ROLLOUT, *ROLLOUTS}:
        own = ", ".join(sorted(names & _ONLY_VERIFIERS))
        raise InputError(f"its parameter {own} is one of verifiers, not a column", hint=f"{_TYPED})")
    if {"completions", "answers"} <= names:
        raise InputError("completions and answers together are of verifiers", hint=f"{_TYPED})")
    if {"completion", "answer"} <= own_parameters(function, ()):
        raise _unclear(columns)
    return None


def _unclear(columns: Sequence[str]) -> InputError:
    """Make the error for a function of `completion` and `answer`, whose `answer` may mean two things."""
    message = "answer is the text of the completion; of verifiers it is the right answer, and no column here"
    hint = f'{_TYPED}, answer="capital") for a column; else completion[-1]["content"]'
    if "answer" in columns:
        message = "answer is the text of the completion, and a column"
        hint = f'{_TYPED}) for the column; else completion[-1]["content"], or row["answer"]'
    return InputError(f"{message}: which of them the function means is not clear", hint=hint)


def _call(function: Any, answer: str, objects: Mapping[str, Any], name: str, columns: Sequence[str]) -> RewardCall:
    check_version(function)
    parts = _rubric_parts(function, objects)
    if not parts:
        raise InputError("the rubric has no reward functions", hint="rubric.add_reward_func(f)")
    per: Literal["trajectory", "group"] = "group" if any(_is_of_group(p.function) for p in parts) else "trajectory"
    for part in parts:
        names = ROLLOUTS if _is_of_group(part.function) else ROLLOUT
        known = [n for n in names if n not in {"answer", "answers"} or answer in columns]
        check_known(part.function, [*known, *part.objects, *columns], _HINTS)

    marked = any(_reads_marks(p) for p in parts)
    note = "reasoning is in content, as <think>...</think>, which it reads" if marked else ""

    def arguments(members: Sequence[StoredTrajectory], _group: Group) -> Arguments:
        return Arguments(([_state(t, answer, marked) for t in members],), {})

    async def score(states: Sequence[dict[str, Any]]) -> Any:
        values = await _scores(parts, states)
        return values if per == "group" else values[0]

    named = type(function) if is_rubric(function) else function
    return RewardCall(name, functools.wraps(named, updated=())(score), per, "verifiers", True, arguments, note=note)


async def _scores(parts: Sequence[_RubricPart], states: Sequence[dict[str, Any]]) -> list[Any]:
    """Score each state. The functions of a rubric run in order: later ones may read what earlier ones stored."""
    named: list[dict[str, float]] = [{} for _ in states]
    totals, wrong = [0.0] * len(states), dict[int, Any]()
    for function, weight, objects in parts:
        if _is_of_group(function):
            plural = {f"{key}s": [state[key] for state in states] for key in ROLLOUT[:-1]}
            values = list(await _call_function(function, {**plural, "states": states, **objects}))
            if len(values) != len(states):
                got = (
                    f"{_name(function)} of the rubric returned {count(len(values), 'value')} for {len(states)} rollouts"
                )
                raise RewardError(got, hint="return [0.0 for completion in completions]")
        else:
            values = [await _call_function(function, {**state, "state": state, **objects}) for state in states]
        if weight is None:
            return values
        for i, value in enumerate(values):
            try:
                totals[i] += weight * finite(value, _name(function))
            except RewardError:
                if len(states) == 1:
                    raise
                wrong.setdefault(i, value)  # of this rollout alone
            named[i][_name(function)] = value
    return [wrong.get(i, with_parts(totals[i], parts_of)) for i, parts_of in enumerate(named)]


def _name(function: Any) -> str:
    """Return the name of a function, also of a partial one or of an object that is called, which have none."""
    return str(getattr(function, "__name__", getattr(getattr(function, "func", type(function)), "__name__", "reward")))


async def _call_function(function: Any, objects: Mapping[str, Any]) -> Any:
    """Call a function with the objects that it names. A plain function runs in a thread."""
    named, everything = wanted(function)
    unbound = objects.keys() - bound_names(function)
    arguments = {key: objects[key] for key in unbound if everything or key in named}
    if is_asynchronous(function):
        return await function(**arguments)
    return await call_in_thread(functools.partial(function, **arguments), "rolloutlab-reward")


def _reads_marks(part: _RubricPart) -> bool:
    """Whether a function or a parser of its rubric expects `<think>` marks in the content of a message.

    verifiers passes messages as the service gave them, with the reasoning in a field of its own where it was parsed;
    `ThinkParser`, and `XMLParser` with a field `think`, are for services that do not parse it.
    """
    for value in part.objects.values():
        if any(c.__name__ == "ThinkParser" for c in type(value).__mro__):
            return True
        if any("think" in tags for _, tags in getattr(value, "_fields", ())):
            return True
    return "think>" in " ".join(_texts_of(part.function))


def _texts_of(function: Any) -> Iterator[str]:
    """Yield the texts in a function's code, in what it closes over, and in the globals that it names."""
    function = inspect.unwrap(getattr(function, "func", function))
    code = getattr(function, "__code__", None)
    if code is None:
        return
    known = inspect.getclosurevars(function) if inspect.isfunction(function) else None
    named = [*known.nonlocals.values(), *known.globals.values()] if known else []
    for value in (*named, *_constants(code)):
        if isinstance(value, re.Pattern):
            yield str(value.pattern)
        elif isinstance(value, str):
            yield value
        elif inspect.isfunction(value) and value is not function:
            yield from (text for text in _constants(value.__code__) if isinstance(text, str))


def _constants(code: CodeType) -> Iterator[Any]:
    for constant in code.co_consts:
        yield from _constants(constant) if isinstance(constant, CodeType) else [constant]


def _state(trajectory: StoredTrajectory, answer: str, marked: bool) -> dict[str, Any]:
    """Return what a `State` of verifiers has of a finished rollout, and the columns of the row."""
    row, info = trajectory.row, trajectory.row.get("info") or {}
    messages = decode_messages(trajectory) if marked else split_messages(trajectory)
    completion = [_MessageDict(message) for message in messages]
    prompt = [_MessageDict(m) for m in trajectory.messages[: len(trajectory.items) - len(completion)]]
    return {
        **row,
        "prompt": prompt,
        "completion": completion,
        "answer": row.get(answer, ""),
        "info": json.loads(info) if isinstance(info, str) else info,
        "task": row.get("task", "default"),
        "input": dict(row),
        "model": trajectory.model,
        "is_completed": True,
        "is_truncated": trajectory.finish_reason in {"length", "content_filter"},
    }
