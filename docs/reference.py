"""Writes docs/reference.md: magics, options of a job, calls of the session and errors, as the code has them.

Run it after one of these has changed: `python docs/reference.py`. A test compares the page with what this makes.
"""

import argparse
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, get_type_hints

from rolloutlab import errors, magics
from rolloutlab.magics.base import LabMagics
from rolloutlab.objective.algorithms import algorithm_table
from rolloutlab.objective.option_docs import markdown_table
from rolloutlab.session import Session
from rolloutlab.trajectories.collection import Collection

PAGE = Path(__file__).parent / "reference.md"

HEAD = """\
# Reference

Everything with its options, generated from the code by `python docs/reference.py`. In a notebook `%%chat?` shows the
same of one magic, and `lab.chat?` of one call.

[Magics](#magics) · [Options of a job](#options-of-a-job) · [Python API](#python-api) · [Errors](#errors)
"""


def magic_functions() -> list[tuple[str, Callable[..., Any]]]:
    """Each magic under the name that is typed, by name."""
    for module in pkgutil.iter_modules(magics.__path__, "rolloutlab.magics."):
        import_module(module.name)
    typed: dict[str, Callable[..., Any]] = {}
    for group in LabMagics.__subclasses__():
        line, cell = group.magics["line"], group.magics["cell"]
        for name, method in (line | cell).items():
            forms = [f"%{name}"] * (name in line) + [f"%%{name}"] * (name in cell)
            typed[", ".join(forms)] = getattr(group, method)
    return sorted(typed.items(), key=lambda each: each[0].lstrip("%"))


def one_line(text: str) -> str:
    """A text in one line, as the cell of a table."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


def described_magic(name: str, function: Any) -> str:
    """A magic's description and a table of its options."""
    parser = function.parser
    rows = [
        f"| `{', '.join(action.option_strings) or action.metavar or action.dest}`{shown_values(action)} "
        f"| {one_line(action.help or '')} |"
        for action in parser._actions
    ]
    table = ["| option | does |", "|---|---|", *rows, ""] if rows else []
    # the options of a job, which stand at the end of the help of %%train, have a table of their own
    description = inspect.cleandoc(parser.description).partition("\n\nThe options:")[0]
    return "\n".join([f"### {name}", "", code(description), *table])


def shown_values(action: argparse.Action) -> str:
    """What follows an option: the name of its value, or its choices."""
    if not action.option_strings or action.nargs == 0:
        return ""
    return f" {one_line(str(action.metavar or '|'.join(map(str, action.choices or ())) or action.dest.upper()))}"


def code(text: str) -> str:
    """A text as it stands, in a block."""
    return f"```text\n{text.strip()}\n```\n"


def described_call(name: str, function: Callable[..., Any]) -> str:
    """A call with its parameters and their defaults, and its docstring."""
    signature = inspect.signature(function)
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    kept = [parameter for parameter in bare if parameter.name != "self"]
    shown = str(signature.replace(parameters=kept, return_annotation=inspect.Signature.empty))
    typed = f"lab.{name}{shown.replace('<built-in function print>', 'print')}"
    typed = textwrap.fill(typed, 100, subsequent_indent="    ", break_on_hyphens=False)
    described = code("\n\n".join([typed, inspect.getdoc(function) or ""]))
    return f"### lab.{name}\n\n{described}"


def calls(kind: type, prefix: str = "") -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods of a class, in the order of the file."""
    for name, member in vars(kind).items():
        if not name.startswith("_") and isinstance(member, FunctionType | staticmethod):
            yield f"{prefix}{name}", getattr(kind, name)


def all_calls() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods of a session, of its parts, and of a collection."""
    yield from calls(Session)
    for name, kind in get_type_hints(Session).items():
        yield from calls(kind, f"{name}.")
    yield from calls(Collection, "collection(NAME).")


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            HEAD,
            "## Magics\n",
            *(described_magic(name, function) for name, function in magic_functions()),
            "## Options of a job\n",
            "One `name: value` per line of a `%%train` cell. `algorithm:` stands for several of them, and what is",
            "typed beside it wins. [Training](training.md) says when to use which.\n",
            algorithm_table() + "\n",
            markdown_table() + "\n",
            "## Python API\n",
            "`lab = rolloutlab.lab()` is the session of this notebook or script.\n",
            *(described_call(name, function) for name, function in all_calls()),
            "## Errors\n",
            code(inspect.cleandoc(errors.__doc__ or "")),
        ]
    ).replace("\n\n\n", "\n\n")


if __name__ == "__main__":
    PAGE.write_text(page())
