"""What the magics share: typed options with our own errors, binding of results, cells without a body."""

import keyword
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from IPython.core.error import UsageError
from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import parse_argstring

from rolloutlab.errors import InputError
from rolloutlab.session import Session

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

T = TypeVar("T")

_OURS = ("%%chat", "%%reward", "%%train")


@magics_class
class LabMagics(Magics):
    """A magic of rolloutlab: it has the session of its notebook."""

    def __init__(self, shell: "InteractiveShell", session: Session) -> None:
        super().__init__(shell)
        self.session = session
        self.variables: dict[str, Any] = shell.user_ns

    def options(self, magic: Callable[..., Any], line: str) -> Namespace:
        """The options of a line, or InputError; IPython's own error would not stop a notebook that runs unattended."""
        try:
            parsed: Namespace = parse_argstring(magic, line)
        except UsageError as error:
            said = str(error).replace("argument ", "", 1)
            prefix = "%%" if magic.__name__ in self.magics["cell"] else "%"
            called = magic.__name__.rstrip("_")  # import_
            raise InputError(said, hint=f"{prefix}{called}? shows the options") from None
        name = getattr(parsed, "output", None)
        if name and (not name.isidentifier() or keyword.iskeyword(name)):
            raise InputError(f"{name!r} is no name for a variable", hint="-o NAME")
        return parsed

    def value(self, expression: str) -> Any:
        """What a notebook variable, or an expression of some such as `rows[:16]`, is worth; or InputError."""
        try:
            return eval(expression, self.variables)
        except NameError as error:
            raise InputError(
                f"there is no variable {error.name!r}", hint=f"{error.name} = ... in a cell before this one"
            ) from None
        except Exception as error:
            raise InputError(f"{expression} has no value: {error}", hint="a DataFrame or a list") from error

    def bound(self, name: str | None, result: T) -> T:
        """The result, also bound to a notebook variable when a name is given with -o."""
        if name:
            self.variables[name] = result
        return result


def unquoted(text: str) -> str:
    """An argument without the quotes around it, which IPython leaves there."""
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


def allow_empty_bodies(shell: "InteractiveShell") -> None:
    """Let a cell that is only `%%train NAME` reach the magic, which knows what an empty body means."""

    def with_body(lines: list[str]) -> list[str]:
        alone = lines and lines[0].split(None, 1)[:1] and lines[0].split(None, 1)[0] in _OURS
        return [lines[0].rstrip("\n") + "\n", "\n"] if alone and not "".join(lines[1:]).strip() else lines

    shell.input_transformers_cleanup.insert(0, with_body)
