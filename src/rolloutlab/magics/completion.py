"""Tab completion of the magics: options, and values that the kernel knows. It neither starts nor asks a service."""

import os
import re
import sys
from argparse import Action, ArgumentParser
from collections.abc import Callable, Iterable, Mapping
from inspect import isasyncgenfunction, isclass, isfunction, isgeneratorfunction
from itertools import islice
from typing import TYPE_CHECKING, Any

from rolloutlab.errors import RolloutlabError
from rolloutlab.magics.base import LabMagics, kind_of
from rolloutlab.objective.algorithms import ALGORITHM, ALGORITHMS
from rolloutlab.objective.option_docs import OPTIONS
from rolloutlab.trajectories.files import readable_formats, writable_formats

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_COMPARE = "compare"
"""Collections of comparisons are offered only if a user begins to type this."""
_MAX_COMPLETIONS = 500  # a lab may hold more groups than a shell can show

_LINE = re.compile(r"(?:^|=)\s*(?P<name>%%?\w+)\s(?P<rest>.*)", re.DOTALL)
_OPTION_VALUE = re.compile(
    r"(?P<flag>--[\w-]+)(?:\s+|=)(?:(?P<quote>['\"])(?P<quoted>(?:(?!(?P=quote)).)*)|(?P<bare>[^\s'\"]*))$"
)
"""The value that is being typed for an option. It may have several words if it is quoted."""
_FIELD_VALUE = re.compile(r"(?P<field>[\w.]+)`?\s*(?:==|!=|(?:not )?in\s*[(\[].*)\s*['\"](?P<begun>[^'\"]*)$")
"""The text that is being typed as a value of a field, in a condition."""
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
"""A field that a condition can name without backticks."""
_FIELD_KINDS = ("where", "rank", "fields")  # kinds of values that name fields of trajectories
_TRAINING_LINE = re.compile(r"\s*(?P<name>\w*)(?P<colon>\s*:\s*(?P<value>\S*))?")


def _list_collections(magics: LabMagics) -> dict[str, int]:
    """Return the number of groups of each collection, by the names that select it."""
    return magics.session.store.sizes() if _has_lab(magics) else {}


def _groups(magics: LabMagics) -> Iterable[str]:
    return (f"{label}/{position}" for label, groups in _list_collections(magics).items() for position in range(groups))


def _jobs(magics: LabMagics) -> Iterable[str]:
    return (job.id[:8] for job in magics.session.store.jobs.newest_first()) if _has_lab(magics) else ()


def _policies(magics: LabMagics) -> Iterable[str]:
    """List what can be sampled: models, and checkpoints that a service listed or a job made."""
    jobs = magics.session.store.jobs.newest_first() if _has_lab(magics) else ()
    made = {f"{job.model}@{job.step}" for job in jobs if job.step is not None}
    return sorted({*magics.session.models.seen, magics.session.models.selected, *made, *(job.model for job in jobs)})


def _runs(magics: LabMagics) -> Iterable[str]:
    """List the models of which jobs of the lab have made a checkpoint."""
    jobs = magics.session.store.jobs.newest_first() if _has_lab(magics) else ()
    return list(dict.fromkeys(job.model for job in jobs if job.step is not None))


def _steps(magics: LabMagics) -> list[str]:
    """List the steps of the checkpoints of the selected model."""
    models = magics.session.models
    parts = [(name in models.seen, *name.partition("@")) for name in _policies(magics)]
    known = {step: listed for listed, name, at, step in parts if at and name == models.selected}
    # a service that lists any step lists all; otherwise the steps are those that jobs made, and 0
    return sorted(known if any(known.values()) else {"0", *known}, key=int)


def _functions(magics: LabMagics) -> Iterable[str]:
    return _variables(magics, isfunction)


def _is_environment(value: Any) -> bool:
    methods = ("reset",) if isclass(value) else ("environment", "rows")
    return isgeneratorfunction(value) or isasyncgenfunction(value) or all(hasattr(value, name) for name in methods)


def _services(magics: LabMagics) -> Iterable[str]:
    from rolloutlab.settings import (  # imported late: they import pydantic, which nothing needs before a first cell
        EMBEDDED,
        connectable,
        vendors,
    )

    settings = magics.session.settings
    return [
        EMBEDDED,
        *settings.profiles,
        *(f"{kind}:{settings.project or ''}" for kind in vendors()),
        *(f"{name}:" for name in connectable()),
    ]


def _servers(magics: LabMagics) -> Iterable[str]:
    """List the embedded service, and the MCP servers that you are signed in to or have added."""
    from rolloutlab.settings import EMBEDDED

    return list(dict.fromkeys([EMBEDDED, *magics.session.tools.urls()]))


def _server_tools(magics: LabMagics) -> list[str]:
    names = (f"{tools.name}.{tool.name}" for tools in magics.session.tools.servers.values() for tool in tools)
    return [name for name in names if name.isprintable() and " " not in name]


def _projects(magics: LabMagics) -> Iterable[str]:
    settings = magics.session.settings
    named = [settings.project, *(profile.project for profile in settings.profiles.values())]
    return list(dict.fromkeys(project for project in named if project))


VALUES: Mapping[str, Callable[[LabMagics], Iterable[str]]] = {
    **dict.fromkeys(("collections", "name", "names", "delete", "rename"), _list_collections),
    **dict.fromkeys(("groups", "group"), _groups),
    **dict.fromkeys(("job_id", "jobs"), _jobs),
    **dict.fromkeys(("model", "judge"), _policies),
    "runs": _runs,
    "restore": lambda magics: magics.session.store.lifecycle.deleted() if _has_lab(magics) else (),
    "models": lambda magics: [name for name in _policies(magics) if "@" not in name],
    "checkpoints": lambda magics: [name for name in _policies(magics) if "@" in name],
    "before": _steps,
    "after": lambda magics: ["latest", *_steps(magics)],
    "over": lambda magics: _variables(magics, lambda value: isinstance(value, list | tuple) or _is_frame(value)),
    "tools": lambda magics: [*_functions(magics), *magics.session.tools.servers, *_server_tools(magics)],
    "readable": lambda _magics: readable_formats(),
    "writable": lambda _magics: writable_formats(),
    "services": _services,
    "servers": _servers,
    "key variables": lambda _magics: sorted(name for name in os.environ if re.search("KEY|TOKEN", name)),
    "projects": _projects,
}
"""Functions that list the present values, by their kind. A kind that is not here has no completion."""


def _list_values(kind: str, magics: LabMagics, begun: str) -> Iterable[str]:
    """List the values of a kind. Environments are those of the notebook, and of an adapter whose prefix is typed."""
    if kind == "env":
        from rolloutlab.environments.adapters import complete_names  # imported late: `%load_ext` loads no plug-ins

        return [*_variables(magics, _is_environment), *complete_names(begun)]
    values = VALUES[kind](magics) if kind in VALUES else ()
    from rolloutlab.store.models import is_hidden  # imported late: it imports pydantic

    return values if begun.startswith(_COMPARE) else (value for value in values if not is_hidden(value))


class Matcher:
    """Completes the line of one of the magics, or the options of a `%%train` cell."""

    def __init__(self, shell: "InteractiveShell") -> None:
        self._shell = shell

    def complete(self, cell: str, line: int, column: int) -> tuple[str, list[str]]:
        """Return the fragment before the cursor, and what can replace it."""
        lines = cell.split("\n")
        until = lines[line][:column] if line < len(lines) else ""
        if line and self._ours(lines[0]) and lines[0].split()[0] == "%%train":
            return complete_training_option(until)
        start = _LINE.search(until)
        if not start or (start["name"].startswith("%%") and line):
            return "", []
        magic = self._ours(start["name"])
        if magic is None:
            return "", []
        magics = magic.__self__
        try:
            typed = _OPTION_VALUE.search(start["rest"])
            option = typed and magic.parser._option_string_actions.get(typed["flag"])
            if typed and option and (kind := kind_of(option)) in _FIELD_KINDS:
                return complete_field(typed["quoted"] or typed["bare"] or "", magics, ticked=kind != "fields")
            if start["name"] == "%tools" and not typed and (words := complete_tool_word(start["rest"], magics)):
                return words
            begun = start["rest"].split(" ")[-1].rpartition("=")[2]
            return complete_word(start["rest"], magic.parser, lambda kind: _list_values(kind, magics, begun))
        except RolloutlabError:  # settings or a lab that cannot be read: the cell will raise it
            return "", []

    def _ours(self, line: str) -> Any:
        """Find the magic that a line begins with, a bound method of `LabMagics`; None if it is not one of ours."""
        word = (line.split() or [""])[0]
        magic = self._shell.find_magic(word.lstrip("%"), "cell" if word.startswith("%%") else "line")
        owner = getattr(magic, "__self__", None)
        return magic if isinstance(owner, LabMagics) and word.startswith("%") else None


def complete_word(rest: str, parser: ArgumentParser, values: Callable[[str], Iterable[str]]) -> tuple[str, list[str]]:
    """Return the last word of a magic's line, perhaps empty, and its completions.

    rest: the line after the name of the magic. values: lists the values of a kind.
    """
    *words, begun = re.split(r"\s+", rest.lstrip()) if rest.strip() else [""]
    options = parser._option_string_actions
    flag, equals, value = begun.partition("=")
    if equals and flag in options:
        return value, _starting_with(value, _values_of(options[flag], values))
    if words and words[-1] in options and options[words[-1]].nargs != 0:
        return begun, _starting_with(begun, _values_of(options[words[-1]], values))
    flags = [option for option in options if option.startswith("--") or len(option) == 2]
    given = {options[word].dest for word in words if word in options}
    flags = [flag for flag in flags if options[flag].dest not in given | {"help"}]
    if begun.startswith("-"):
        return begun, _starting_with(begun, flags)
    place = _next_positional(words, parser)
    matches = _starting_with(begun, _values_of(place, values)) if place else []
    return begun, matches or ([flag for flag in flags if flag.startswith("--")] if not begun else [])


def complete_tool_word(rest: str, magics: LabMagics) -> tuple[str, list[str]] | None:
    """Complete a word of `%tools`, which depends on the first word; None if an option is being typed."""
    *words, begun = re.split(r"\s+", rest.lstrip())
    if begun.startswith("-"):
        return None
    known = {
        (): ["add", "call", *magics.session.tools.servers],
        ("add",): _servers(magics),
        ("call",): _server_tools(magics),
    }
    return begun, _starting_with(begun, known.get(tuple(words), []))


def complete_field(typed: str, magics: LabMagics, *, ticked: bool) -> tuple[str, list[str]]:
    """Complete a field inside a condition, a rank or a list of fields; after `==`, a value of the field.

    ticked: put fields that are not Python names into backticks, as conditions and ranks need them.
    """
    if not magics.session.settings.search_database.exists():  # completion must not create the index
        return "", []
    index = magics.session.index
    if value := _FIELD_VALUE.search(typed):
        return value["begun"], _starting_with(value["begun"], index.values(value["field"]))
    begun = re.search(r"[\w.]*$", typed)[0]  # type: ignore[index]  # it may be empty, and always matches
    fields = _starting_with(begun, index.fields())
    return begun, [f"`{field}`" if ticked and not _DOTTED.fullmatch(field) else field for field in fields]


def complete_training_option(line: str) -> tuple[str, list[str]]:
    """Complete a line of a `%%train` cell: the name of an option, or its value if it has only a few."""
    typed = _TRAINING_LINE.fullmatch(line)
    if not typed:
        return "", []
    if not typed["colon"]:
        return typed["name"], _starting_with(typed["name"], [f"{name}: " for name in (ALGORITHM, *OPTIONS)])
    option = OPTIONS.get(typed["name"])
    values = ALGORITHMS if typed["name"] == ALGORITHM else option.values if option else ()
    return typed["value"], _starting_with(typed["value"], values)


def register(shell: "InteractiveShell") -> None:
    """Let a shell complete the magics that it has."""
    matcher = Matcher(shell)
    if _takes_matchers():
        shell.Completer.custom_matchers.append(_as_matcher(matcher))
        return
    for kind, prefix in (("line", "%"), ("cell", "%%")):  # IPython before 8.6
        for name, magic in shell.magics_manager.magics[kind].items():
            if isinstance(getattr(magic, "__self__", None), LabMagics):
                shell.set_hook("complete_command", _as_hook(matcher), str_key=f"{prefix}{name}")


def unregister(shell: "InteractiveShell") -> None:
    """Undo `register`."""
    if _takes_matchers():
        others = [matcher for matcher in shell.Completer.custom_matchers if not _is_ours(matcher)]
        shell.Completer.custom_matchers[:] = others
        return
    hooks = shell.strdispatchers["complete_command"].strs
    for key in [key for key, chain in hooks.items() if any(_is_ours(hook) for _, hook in chain)]:
        del hooks[key]


_NAME = "rolloutlab"


def _as_matcher(matcher: Matcher) -> Any:
    from IPython.core.completer import SimpleCompletion, context_matcher

    @context_matcher(identifier=_NAME)
    def matches(context: Any) -> Any:
        begun, texts = matcher.complete(context.full_text, context.cursor_line, context.cursor_position)
        completions = [SimpleCompletion(text, type="magic") for text in texts]
        return {"completions": completions, "matched_fragment": begun, "suppress": bool(texts)}

    return matches


def _as_hook(matcher: Matcher) -> Callable[[Any, Any], list[str]]:
    """Make a hook for IPython before 8.6, which passes one line and replaces only a symbol, a part of a word."""

    def matches(_shell: Any, event: Any) -> list[str]:
        begun, texts = matcher.complete(event.text_until_cursor, 0, len(event.text_until_cursor))
        before_symbol = len(begun) - len(event.symbol) if begun.endswith(event.symbol) else 0
        return [text[max(before_symbol, 0) :] for text in texts]

    matches.matcher_identifier = _NAME  # type: ignore[attr-defined]
    return matches


def _is_ours(matcher: Any) -> bool:
    return getattr(matcher, "matcher_identifier", "") == _NAME


def _takes_matchers() -> bool:
    """Whether the shell takes matchers, which see the whole cell. IPython has them since 8.6."""
    from IPython.core import completer

    return hasattr(completer, "context_matcher")


def _next_positional(words: list[str], parser: ArgumentParser) -> Action | None:
    """Return the positional argument that comes after these words, if one may."""
    options = parser._option_string_actions
    takers = {i + 1 for i, word in enumerate(words) if word in options and options[word].nargs != 0}
    done = sum(1 for i, word in enumerate(words) if word and not word.startswith("-") and i not in takers)
    places = [action for action in parser._actions if not action.option_strings]
    many = bool(places) and places[-1].nargs in {"+", "*"}
    return places[done] if done < len(places) else places[-1] if many else None


def _values_of(action: Action, values: Callable[[str], Iterable[str]]) -> Iterable[str]:
    return map(str, action.choices) if action.choices else values(kind_of(action))


def _starting_with(begun: str, words: Iterable[str]) -> list[str]:
    return list(islice((word for word in words if word.startswith(begun)), _MAX_COMPLETIONS))


def _has_lab(magics: LabMagics) -> bool:
    """Whether there is a lab: completion must not create one."""
    return magics.session.settings.database.exists()


def _variables(magics: LabMagics, fits: Callable[[Any], bool]) -> list[str]:
    hidden: Any = getattr(magics.shell, "user_ns_hidden", ())
    names = [name for name in magics.variables if not name.startswith("_") and name not in hidden]
    return sorted(name for name in names if fits(magics.variables[name]))


def _is_frame(value: Any) -> bool:
    """Whether a value is a DataFrame, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)
