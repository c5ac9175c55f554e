"""Calls of reward functions: arguments by parameter name, as pytest passes fixtures; cells as functions."""

import ast
import inspect
import linecache
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, NamedTuple

from rolloutlab.api.wire.chat import Choice
from rolloutlab.errors import InputError, RewardError
from rolloutlab.store.models import Group, StoredTrajectory
from rolloutlab.trajectories.first_reward import NAMES

POSITIONAL = ("trajectory", "answer", "messages", "row")
"""Arguments of a function that is called by position."""
_OF_ONE: Mapping[str, Callable[[StoredTrajectory], Any]] = {
    "trajectory": lambda t: t,
    "answer": lambda t: t.answer,
    "reasoning": lambda t: t.reasoning,
    "messages": lambda t: t.messages,
    "row": lambda t: t.row,
    "prompt": lambda t: t.messages[: _first_completion(t)],
    "completion": lambda t: t.messages[_first_completion(t) :],
    "info": lambda t: _info(t.row),
}
_OF_GROUP: Mapping[str, Callable[[Sequence[StoredTrajectory], Group], Any]] = {
    "group": lambda members, _: list(members),
    "answers": lambda members, _: [t.answer for t in members],
    "row": lambda _, group: group.row,
    "prompt": lambda _, group: [message.to_wire() for message in group.prompt],
    "info": lambda _, group: _info(group.row),
}
_FILENAME = "<%%reward>"
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Arguments(NamedTuple):
    """Arguments of one call."""

    positional: tuple[Any, ...]
    by_name: Mapping[str, Any]


class _Signature(NamedTuple):
    """The parameters that need arguments, and the names that a `functools.partial` binds already."""

    parameters: Sequence[inspect.Parameter]
    bound: Set[str]


@dataclass(frozen=True)
class RewardCall:
    """A reward function, ready to be called.

    Attributes:
        name: The name of the component; empty if the user gave a single function.
        function: The function. It returns a number, or a mapping of components to numbers.
        per: `trajectory`, or `group`: then it is called once per group and returns one such value per member, in order.
        style: The library whose signature it has, for a note; empty for this project's own.
        asynchronous: Whether it is a coroutine function.
        arguments: Makes the arguments of a call, from the trajectory (a sequence of one) or all members of the group.
            It has no side effects.
        note: What the user should know about its arguments; empty if there is nothing.
    """

    name: str
    function: Callable[..., Any]
    per: Literal["trajectory", "group"]
    style: str
    asynchronous: bool
    arguments: Callable[[Sequence[StoredTrajectory], Group], Arguments]
    note: str = ""


class RewardCell:
    """The body of a reward function, from a cell. variables: the notebook's variables, which it can use.

    Raises:
        InputError: the body is empty, is not Python, or returns nothing.
    """

    def __init__(self, body: str, variables: dict[str, Any]) -> None:
        if not body.strip():
            raise InputError("the cell is empty: there is no reward function", hint="return float(len(answer) > 0)")
        self.body = body
        self._variables = variables
        try:
            self._lines = ast.parse(body, _FILENAME).body
            self._function(())
        except SyntaxError as error:
            problem = f"{error.msg} (line {error.lineno})"
            hint = "%%reward? shows an example"
            raise InputError(f"the reward function is not Python: {problem}", hint=hint) from None
        if not any(isinstance(node, ast.Return) and node.value for node in self._own_nodes()):
            raise InputError("the reward function returns nothing", hint="return float(...) in the last line")

    def __call__(self, trajectory: Any, answer: Any, messages: Any, row: Any) -> Any:
        """Call the body with the four arguments of `POSITIONAL`; `compiled` offers it all names."""
        return self._function(POSITIONAL)(trajectory, answer, messages, row)

    def compiled(self, names: Sequence[str], columns: Sequence[str]) -> Callable[..., Any]:
        """The function whose parameters are those of the names and columns that the body uses.

        A column takes precedence over a variable of the notebook, as in `%%chat`. A variable, or a name that the body
        assigns, takes precedence over the names that are not in `POSITIONAL`: these names are newer, and older cells
        that use them for something else must keep working.
        """
        return self._function(self.parameters(names, columns))

    def parameters(self, names: Sequence[str], columns: Sequence[str]) -> list[str]:
        """The parameters of `compiled`."""
        used = [node for node in self._nodes() if isinstance(node, ast.Name)]
        read = dict.fromkeys(node.id for node in used if isinstance(node.ctx, ast.Load))
        assigned = {node.id for node in used if isinstance(node.ctx, ast.Store)}
        own = {name for name in names if name not in POSITIONAL and (name in self._variables or name in assigned)}
        row_columns = {name for name in columns if name.isidentifier()} - (own & self._variables.keys())
        return [name for name in read if name in ({*names} - own) | row_columns]

    def shadowed(self, names: Sequence[str], columns: Sequence[str]) -> list[str]:
        """Notes on variables of the notebook that have the name of a column or of an argument."""
        parameters = self.parameters(names, columns)
        read = {node.id for node in self._nodes() if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        by_column = [n for n in parameters if n in columns and n not in names and n in self._variables]
        by_variable = [n for n in names if n in read and n not in parameters and n in self._variables]
        return [
            *(f"{name} is the column of the row, not the variable of the notebook" for name in by_column),
            *(f"{name} is the variable of the notebook, not what a trajectory has" for name in by_variable),
        ]

    def _nodes(self) -> list[ast.AST]:
        return [node for line in self._lines for node in ast.walk(line)]

    def _own_nodes(self) -> list[ast.AST]:
        """The nodes without those of functions and classes within the body."""
        nodes: list[ast.AST] = [*self._lines]
        for node in nodes:  # which grows
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
                nodes += ast.iter_child_nodes(node)
        return nodes

    def _function(self, parameters: Sequence[str]) -> Callable[..., Any]:
        is_async = any(
            isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)
            or (isinstance(node, ast.comprehension) and node.is_async)
            for node in self._own_nodes()
        )
        module = ast.parse(f"{'async ' if is_async else ''}def reward({', '.join(parameters)}): pass")
        function = module.body[0]
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        function.body = self._lines  # keeps the cell's line numbers
        code = compile(module, _FILENAME, "exec")
        linecache.cache[_FILENAME] = (len(self.body), None, self.body.splitlines(keepends=True), _FILENAME)
        scope: Mapping[str, Any] = {}
        exec(code, self._variables, scope)
        compiled: Callable[..., Any] = scope["reward"]
        return compiled


def reward_call(name: str, function: Any, columns: Sequence[str]) -> RewardCall:
    """Make the call of a function whose parameters are known names (`NAMES`) or columns of the row.

    - A known name takes precedence over a column of the same name, which the function can read from `row`.
    - A parameter with a default keeps it if its name is neither known nor a column.
    - A parameter that a `functools.partial` binds by name keeps the bound value.
    - `**kwargs` gets every column that no parameter has taken.
    - A parameter `group` or `answers` makes it a function of a group.
    - A function with `*args`, or with four required parameters of other names, is called with `POSITIONAL` by position
      (`_is_positional`).

    Raises:
        InputError: it is not callable, or a parameter without a default has an unknown name.
    """
    if isinstance(function, RewardCell):
        function = function.compiled(NAMES, columns)
    if not callable(function):
        raise InputError(f"{function!r} is not a reward function", hint="lambda answer: float(len(answer) < 80)")
    asynchronous = _is_asynchronous(function)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some built-in functions have no signature
        parameters = [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]
    parameters = [p for p in parameters if p.name not in bound_names(function)]
    signature = _Signature(parameters, bound_names(function))
    if _is_positional(parameters, columns):
        note = _positional_note(parameters, columns)
        return RewardCall(name, function, "trajectory", "", asynchronous, _positional, note=note)
    names = {p.name for p in parameters}
    clashes = [p.name for p in parameters if p.name in NAMES and p.name in columns]
    note = "; ".join(f'{name} is that of the trajectory, not the column, which is row["{name}"]' for name in clashes)
    if names & {"group", "answers"}:
        _check(name, parameters, [*_OF_GROUP, *columns])
        of_group = partial(_of_group, signature)
        return RewardCall(name, function, "group", "", asynchronous, of_group, note=note)
    _check(name, parameters, [*_OF_ONE, "group", "answers", *columns])
    return RewardCall(name, function, "trajectory", "", asynchronous, partial(_of_one, signature), note=note)


def _is_asynchronous(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(function.__call__)


def _required(parameter: inspect.Parameter) -> bool:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in variable


def _is_positional(parameters: Sequence[inspect.Parameter], columns: Sequence[str]) -> bool:
    """Whether a function is called with `POSITIONAL` by position.

    Its first positional parameters, at most four, must be exactly its required ones, and then:

    - If they are fewer than four, it needs `*args`, no column may be among them, and each known name must be at its
      place.
    - If all four are known names or columns, the first must be `trajectory`, at least three must be at their place, and
      none may be a column.
    - Otherwise each known name must be at its place, and other names must outnumber the columns.
    """
    first = [p.name for p in parameters if p.kind in _BY_POSITION][: len(POSITIONAL)]
    required = [p.name for p in parameters if _required(p)]
    in_place = sum(name == usual for name, usual in zip(first, POSITIONAL, strict=False))
    known = sum(name in NAMES for name in first)
    of_row = sum(name in columns and name not in NAMES for name in first)
    if required != first:  # some have defaults, or there are more
        return False
    if len(first) < len(POSITIONAL):
        open_ended = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
        return open_ended and known == in_place and of_row == 0
    if known + of_row == len(POSITIONAL):
        return first[0] == POSITIONAL[0] and in_place >= len(POSITIONAL) - 1 and of_row == 0
    return known == in_place and len(POSITIONAL) - known - of_row > of_row


def _positional_note(parameters: Sequence[inspect.Parameter], columns: Sequence[str]) -> str:
    """Return a note if parameters are named like columns but get other values; empty if there are none."""
    pairs = zip(parameters, POSITIONAL, strict=False)
    own = [f"{p.name} gets the {usual}, not the column" for p, usual in pairs if p.name in columns]
    order = ", ".join(POSITIONAL)
    return f"{', '.join(own)}: four parameters with names of their own get {order} in this order" if own else ""


def _positional(members: Sequence[StoredTrajectory], _group: Group) -> Arguments:
    (trajectory,) = members
    return Arguments((trajectory, trajectory.answer, trajectory.messages, trajectory.row), {})


def bound_names(function: Any) -> Set[str]:
    """The parameters that a `functools.partial` binds by name; a column does not replace them."""
    return function.keywords.keys() if isinstance(function, partial) else set()


def _of_one(signature: _Signature, members: Sequence[StoredTrajectory], _group: Group) -> Arguments:
    (trajectory,) = members
    return _bound(signature, {name: partial(get, trajectory) for name, get in _OF_ONE.items()}, trajectory.row)


def _of_group(signature: _Signature, members: Sequence[StoredTrajectory], group: Group) -> Arguments:
    return _bound(signature, {name: partial(get, members, group) for name, get in _OF_GROUP.items()}, group.row)


def _bound(signature: _Signature, known: Mapping[str, Callable[[], Any]], row: Mapping[str, Any]) -> Arguments:
    positional: list[Any] = []
    by_name: dict[str, Any] = {}
    taken = {p.name for p in signature.parameters} | signature.bound
    for parameter in signature.parameters:
        name = parameter.name
        positional_only = parameter.kind is inspect.Parameter.POSITIONAL_ONLY
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            by_name |= {column: value for column, value in row.items() if column not in taken}
        elif name in known or name in row:
            value = known[name]() if name in known else row[name]
            if positional_only:
                positional.append(value)
            else:
                by_name[name] = value
        elif _required(parameter):
            raise RewardError(f"its row has no column {name!r}", hint=f"{name}=None in the function's parameters")
        elif positional_only:
            positional.append(parameter.default)
    return Arguments(tuple(positional), by_name)


def _check(function: str, parameters: Sequence[inspect.Parameter], known: Sequence[str]) -> None:
    """Raise InputError for a parameter without a default whose name is unknown; the message lists the known ones."""
    for name in (p.name for p in parameters if _required(p) and p.name not in known):
        who = f"the reward function {function}" if function else "the reward function"
        listed = ", ".join(dict.fromkeys(known))
        if name in NAMES:
            message = f"{who} is called once per group, so it cannot take {name!r}; available: {listed}"
        else:
            message = (
                f"{who} has a parameter {name!r}, which is neither a known argument nor a column; available: {listed}"
            )
        close = get_close_matches(name, known, n=1)
        raise InputError(message, hint=close[0] if close else f"{name}=None, or row.get({name!r})")


def _first_completion(trajectory: StoredTrajectory) -> int:
    """The index of the first completion among the messages."""
    if trajectory.given is not None and not trajectory.choices:
        return trajectory.given
    return next((i for i, item in enumerate(trajectory.items) if isinstance(item, Choice)), len(trajectory.items))


def _info(row: Mapping[str, Any]) -> Any:
    return row.get("info") or {}
