"""Calls of reward functions of TRL: with prompts, completions and columns of a batch, for a value per completion.

https://huggingface.co/docs/trl/grpo_trainer#using-a-custom-reward-function
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from rolloutlab.errors import RewardError
from rolloutlab.scoring.calls import Arguments, RewardCall, bound_names
from rolloutlab.scoring.foreign import ForeignReward
from rolloutlab.scoring.signatures import check_known, is_asynchronous, own_parameters, wanted, with_parts
from rolloutlab.store.decoded import decode_conversation, decode_messages, parse_messages
from rolloutlab.store.models import Group, StoredTrajectory

BATCH = ("prompts", "completions", "completion_ids")
"""What a function gets besides columns."""
_OF_VERIFIERS = {"answers", "state", "states", "infos", "tasks", "parser"}
"""Parameters beside which `completions` is a parameter of verifiers, whose plug-in says what to type."""
_HINTS = {
    "trainer_state": "trainer_state=None in its parameters",
    "environments": "env = lab.environment(CLASS, reward_funcs=f), then %%chat NAME --env env",
}
_WRONG_FORM: Mapping[type, re.Pattern[str]] = {
    str: re.compile("string ind(ices|ex) must be|'str' object has no attribute"),
    list: re.compile("'list' object has no attribute|expected string or bytes-like object"),
}
"""Errors of functions that were given completions of this type and expect the other."""
Hinted = Callable[[Mapping[str, Any]], AbstractContextManager[Any]]
_LOGS = ("log_extra", "log_metric")


def reward(function: Callable[..., Any], *, conversational: bool | None = None) -> ForeignReward:
    """Wrap a reward function of TRL: `f(completions, prompts=None, **columns)` returns a number, or None, for each.

    conversational: completions are lists of messages, else texts. By default as its annotation of `completions` says,
    else as TRL has it: where the prompts are messages (a column `prompt` of messages, or more than one user's text).
    None means that the function does not apply: then it adds nothing to the reward.
    """
    return ForeignReward(function, partial(_call, function, conversational))


def recognise(function: Any, columns: Sequence[str]) -> ForeignReward | None:
    """Wrap a function with a parameter `prompts`, `completions` or `completion_ids` that is no column."""
    names = own_parameters(function, columns)
    return reward(function) if names & set(BATCH) and not names & _OF_VERIFIERS else None


def _call(function: Any, conversational: bool | None, name: str, columns: Sequence[str]) -> RewardCall:
    """Make the call. Raises InputError for a parameter that is neither of TRL nor a column."""
    known = [*BATCH, *_LOGS, *columns]
    check_known(function, known, _HINTS)
    named, all_columns = wanted(function)
    form = _annotated_form(named.get("completions")) if conversational is None else conversational

    def arguments(members: Sequence[StoredTrajectory], group: Group) -> Arguments:
        texts = not (_is_conversational(group) if form is None else form)
        given = {
            "prompts": [_text_prompt(t) if texts else [m.to_wire() for m in group.prompt] for t in members],
            "completions": [decode_conversation(t) if texts else _messages(t) for t in members],
            **{column: [t.row.get(column) for t in members] for column in {**dict.fromkeys(columns), **group.row}},
        }
        for own in ("prompt", "completion", "completion_ids"):  # TRL does not pass these columns on
            given.pop(own, None)
        if "completion_ids" in named or all_columns:
            given |= _completion_ids(members, named.get("completion_ids"))
        for name in bound_names(function) & given.keys():
            del given[name]
        return Arguments((), given if all_columns else {n: v for n, v in given.items() if n in named})

    logs = [log for log in _LOGS if log in named or all_columns]
    asynchronous = is_asynchronous(function)
    hinted: Hinted = nullcontext if form is not None else partial(_add_hint, name or getattr(function, "__name__", "f"))
    called = _with_logs_async(function, logs, hinted) if asynchronous else _with_logs(function, logs, hinted)
    return RewardCall(name, called, "group", "TRL", asynchronous, arguments)


def _with_logs(function: Any, logs: Sequence[str], hinted: Hinted) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def called(**arguments: Any) -> list[Any]:
        extra: dict[str, Sequence[Any]] = {}
        with hinted(arguments):
            return _trl_values(function(**arguments, **_log_functions(logs, extra)), extra)

    return called


def _with_logs_async(function: Any, logs: Sequence[str], hinted: Hinted) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    async def called(**arguments: Any) -> list[Any]:
        extra: dict[str, Sequence[Any]] = {}
        with hinted(arguments):
            return _trl_values(await function(**arguments, **_log_functions(logs, extra)), extra)

    return called


@contextmanager
def _add_hint(name: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Give an error a hint if a function reads texts as messages, or messages as texts."""
    try:
        yield
    except (TypeError, AttributeError) as error:
        first = next(iter(arguments.get("completions") or ()), None)
        wrong = _WRONG_FORM.get(type(first))
        if wrong and wrong.search(str(error)):
            other = "True" if isinstance(first, str) else "False"
            error.rolloutlab_hint = f"from {__package__} import reward; reward({name}, conversational={other})"  # type: ignore[union-attr]
        raise


def _log_functions(logs: Sequence[str], extra: dict[str, Sequence[Any]]) -> dict[str, Callable[..., None]]:
    def log_extra(column: str, values: Sequence[Any]) -> None:
        extra[column] = list(values)

    def log_metric(name: str, value: float) -> None:
        """A number of the whole batch, which no trajectory has."""

    both: dict[str, Callable[..., None]] = {"log_extra": log_extra, "log_metric": log_metric}
    return {name: both[name] for name in logs}


def _trl_values(outcome: Any, extra: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Return a value per completion. Numbers that were logged for each completion are components that do not count.

    NaN is None: the trainer makes NaN of None, and adds up the others (`nansum`).
    """
    values = outcome.tolist() if hasattr(outcome, "tolist") else outcome
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        message = f"a reward function of TRL must return a list of a value per completion, not {outcome!r}"
        raise RewardError(message, hint="return [0.0 for completion in completions]")
    values = [None if value != value else value for value in values]
    columns = {name: column for name, column in extra.items() if len(column) == len(values)}
    return [with_parts(v, {name: column[i] for name, column in columns.items()}) for i, v in enumerate(values)]


def _messages(trajectory: StoredTrajectory) -> list[dict[str, Any]]:
    """The completion as messages. TRL parses it only where there are tools; without any, `content` is all that was
    sampled, the reasoning with its marks included.
    """
    return parse_messages(trajectory) if trajectory.extra.get("tools") else decode_messages(trajectory)


def _annotated_form(parameter: inspect.Parameter | None) -> bool | None:
    """Whether `completions` is annotated as lists of messages; None without a clear annotation."""
    annotation = parameter.annotation if parameter else inspect.Parameter.empty
    if annotation is inspect.Parameter.empty:
        return None
    text = annotation if isinstance(annotation, str) else str(annotation)
    text = text.replace("typing.", "").replace(" ", "").lower()
    if text.startswith(("list[str", "sequence[str")):
        return False
    return True if text.startswith(("list[list[", "sequence[list[")) else None


def _is_conversational(group: Group) -> bool:
    if any(trajectory.extra.get("tools") for trajectory in group.trajectories):
        return True  # TRL calls tools from messages alone
    prompt = group.row.get("prompt")
    if isinstance(prompt, str | list):
        return isinstance(prompt, list)
    if any(isinstance(v, list) and v and isinstance(v[0], Mapping) and "role" in v[0] for v in group.row.values()):
        return True
    only = group.prompt[0] if len(group.prompt) == 1 else None
    return only is None or only.role != "user" or not isinstance(only.content, str)


def _text_prompt(trajectory: StoredTrajectory) -> str:
    prompt = trajectory.row.get("prompt")
    return prompt if isinstance(prompt, str) else trajectory.prompt


def _completion_ids(members: Sequence[StoredTrajectory], parameter: inspect.Parameter | None) -> dict[str, Any]:
    """Return token ids of each completion. If the service gave none, only a function that requires them fails."""
    ids = [[token.token_id for choice in t.choices for token in choice.sampled_tokens()] for t in members]
    for trajectory, own in zip(members, ids, strict=True):
        if not own or None in own:
            if parameter is None or parameter.default is not inspect.Parameter.empty:
                return {}
            message = f"the service gave no token ids for {trajectory.name}, which completion_ids would be"
            raise RewardError(message, hint=f"%logprobs {trajectory.name.partition('/')[0]}")
    return {"completion_ids": ids}
