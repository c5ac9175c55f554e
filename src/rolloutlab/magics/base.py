"""Base of the magics: parsed options or an `InputError`, results that -o binds, cells without a body."""

import ast
import difflib
import keyword
import re
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property, wraps
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from IPython.core import magic_arguments
from IPython.core.error import UsageError
from IPython.core.magic import Magics, magics_class, no_var_expand
from IPython.core.magic_arguments import parse_argstring

from rolloutlab.errors import InputError

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from rolloutlab.session import Session

F = TypeVar("F", bound=Callable[..., Any])

_OURS = ("%%chat", "%%reward", "%%rollout", "%%train")
"""Cell magics that accept an empty body."""


class argument(magic_arguments.argument):  # noqa: N801 - it takes the place of IPython's decorator
    """An option of a magic.

    values: the kind of its values, by which `rolloutlab.magics.completion` completes them; by default its name.
    """

    def __init__(self, *names: str, values: str | None = None, **keywords: Any) -> None:
        super().__init__(*names, **keywords)
        self._values = values

    def add_to_parser(self, parser: ArgumentParser, group: Any) -> None:
        action: Any = (group or parser).add_argument(*self.args, **self.kwds)
        action.values = self._values or action.dest


def magic(name: str | None = None, *, binds: str = "") -> Callable[[F], F]:
    """Make a magic of a method that takes parsed options.

    IPython does not expand `{x}` and `$x` in its line, because `{{x}}` and names such as `$knn` have a meaning here.

    binds: what the option -o binds to a variable, for its help. If it is empty, the magic has no option -o.
    """

    def decorate(function: F) -> F:
        if binds:
            help_ = f"bind {binds} to this variable"
            function = argument("-o", "--output", metavar="VARIABLE", help=help_)(function)
            # IPython lists the options from the last applied decorator to the first: this puts -o last
        function.decorators.insert(0, function.decorators.pop())  # type: ignore[attr-defined]

        @no_var_expand
        @wraps(magic_arguments.magic_arguments(name)(function))
        def run(magics: "LabMagics", line: str, *cell: str) -> Any:
            options = magics.options(run, line)
            result = function(magics, options, *cell)
            if getattr(options, "output", None):
                magics.variables[options.output] = result
            return result

        shown = signature(function)  # `%NAME?` shows it, with the parameters that IPython passes: line and cell
        magics, options, *cell = shown.parameters.values()
        parameters = [magics, options.replace(name="line", annotation=str), *cell]
        run.__signature__ = shown.replace(parameters=parameters)  # type: ignore[attr-defined]
        return cast("F", run)

    return decorate


def kind_of(action: Action) -> str:
    """Return the kind of values that an option takes."""
    return getattr(action, "values", action.dest)


class Opened:
    """The session of a notebook. It is made when a cell first needs it, because its imports take longer than pandas."""

    def __init__(self, session: "Session | None" = None) -> None:
        if session:
            self.session = session

    @cached_property
    def session(self) -> "Session":
        session: Session = import_module("rolloutlab").Session()  # imports in a thread that no interrupt reaches
        return session

    @property
    def is_open(self) -> bool:
        """Whether a cell has needed the session."""
        return "session" in self.__dict__


@magics_class
class LabMagics(Magics):
    """A magic of rolloutlab: it has the session of its notebook."""

    def __init__(self, shell: "InteractiveShell", opened: Opened) -> None:
        super().__init__(shell)
        self.opened = opened
        self.variables: dict[str, Any] = shell.user_ns

    @property
    def session(self) -> "Session":
        return self.opened.session

    def options(self, magic: Any, line: str) -> Namespace:
        """Parse the options of a line.

        A wrong line raises InputError, because IPython's own error would not stop a notebook that runs unattended.
        """
        magic.parser.allow_abbrev = False  # an abbreviation such as --k for --key-env is an error
        try:
            parsed: Namespace = parse_argstring(magic, line)
        except ValueError:
            raise InputError("unterminated quote", hint=f'"{line.strip()[:40]}"') from None
        except UsageError as error:
            message = str(error).replace("argument ", "", 1)
            prefix = "%%" if magic.__name__ in self.magics["cell"] else "%"
            usage = f"{prefix}{magic.__name__.rstrip('_')}? shows the options"  # the method of %import is `import_`
            raise InputError(message, hint=_find_closest(message, magic.parser) or usage) from None
        name = getattr(parsed, "output", None)
        if name and (not name.isidentifier() or keyword.iskeyword(name)):
            raise InputError(f"{name!r} is not a variable name", hint="-o NAME")
        return parsed

    def value(self, expression: str) -> Any:
        """Evaluate a notebook variable, or an expression such as `rows[:16]`; raise InputError if it has no value."""
        try:
            return eval(expression, self.variables)
        except NameError as error:
            hint = f"{error.name} = ... in a cell before this one"
            raise InputError(f"there is no variable {error.name!r}", hint=hint) from None
        except Exception as error:
            raise InputError(f"{expression} has no value: {error}", hint="a DataFrame or a list") from error

    def rows(self, expression: str) -> Any:
        """Evaluate an expression. If it has no value but is the name of a data file, return the path of that file."""
        from rolloutlab.sampling.data_files import is_data_file

        try:
            return self.value(expression)
        except InputError:
            with suppress(OSError):  # a long expression cannot be a file name
                if is_data_file(unquote(expression)) or Path(expression).is_file():
                    return Path(unquote(expression))
            raise

    def tools_named(self, names: str) -> list[Any]:
        """Return the tools in a list with commas or spaces.

        The name of a variable becomes its value, such as a function. Any other name stays: it is that of an MCP server
        or of one of its tools.
        """
        listed = names.replace(",", " ").split()
        return [self.value(name) if name.partition(".")[0] in self.variables else name for name in listed]

    def environment(self, text: str) -> Any:
        """Evaluate an expression such as `GuessNumber`. A name such as `textarena:Bandit` stays a text."""
        if re.match(r"['\"]?[a-z-]+:", text):
            return unquote(text)
        try:
            return self.value(text)
        except InputError as error:
            from rolloutlab.plugins import ENVIRONMENTS, names  # imported late: it imports importlib.metadata

            if text in names(ENVIRONMENTS):
                raise InputError(f"{text} has several environments", hint=f"--env {text}:NAME") from error
            raise

    @staticmethod
    def given(options: Namespace, *names: str) -> dict[str, Any]:
        """Return the named options that a user gave. Others are left out, so that the defaults of the call apply."""
        return {name: value for name in names if (value := getattr(options, name)) is not None}

    def check_fixed(self, options: Namespace, mode: str, *names: str, cell: str = "") -> None:
        """Raise InputError if an option or a text is given that the collection already has.

        mode: the magic and the option that continues the collection, such as `%%chat --resume`. names: the options that
        the collection has. cell: the text of the cell.
        """
        fixed = ["-n" if name == "n" else f"--{name.replace('_', '-')}" for name in self.given(options, *names)]
        fixed += ["a text"] if cell.strip() else []
        if fixed:
            what, (magic, option) = " and ".join(fixed), mode.split()
            hint = f"{magic} {options.name} {option}, without {what}"
            raise InputError(f"{option} keeps the settings of the collection and cannot take {what}", hint=hint)


_ALIKE = 0.75
"""The least similarity of a suggested option to a mistyped one: `--sort` suggests neither `--history` nor `--best`."""


def _find_closest(message: str, parser: ArgumentParser) -> str | None:
    """Find the option or choice closest to the one that a parser's error names."""
    wrong = re.search(r"invalid choice: '(.*?)'|unrecognized arguments: (--?[\w-]+)", message)
    if not wrong:
        return None
    choices = [str(choice) for action in parser._actions for choice in action.choices or ()]
    options = [option for action in parser._actions for option in action.option_strings]
    close = difflib.get_close_matches(wrong[1] or wrong[2], choices if wrong[1] else options, n=1, cutoff=_ALIKE)
    return close[0] if close else None


def unquote(text: str) -> str:
    """Remove the quotes around an argument, which IPython leaves there."""
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


def literal(text: str) -> str:
    """Read quoted text as a Python string, so that "\\n" is a new line. Other text stays as it is."""
    try:
        return str(ast.literal_eval(text)) if text[:1] in {"'", '"'} else text
    except (SyntaxError, ValueError):
        return text


def add_body(lines: list[str]) -> list[str]:
    """Add an empty body to a cell that is only `%%train NAME`, because IPython calls no cell magic without a body."""
    ours = bool(lines) and lines[0].split(None, 1)[:1] in [[name] for name in _OURS]
    return [lines[0].rstrip("\n") + "\n", "\n"] if ours and not "".join(lines[1:]).strip() else lines


add_body.has_side_effects = True  # type: ignore[attr-defined]  # without it, a terminal would not ask for the body
