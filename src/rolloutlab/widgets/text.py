"""Plain text of the views: aligned columns, and what is left out of a long list."""

from collections.abc import Sequence

from rolloutlab.objective.preflight import count

_MOST = 1e6
"""The largest number that is written with decimals. Larger ones could have hundreds of digits."""
_ROUNDING = 1e-12
"""The largest mean or difference that may be only a rounding error."""


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], columns: str) -> list[str]:
    """Write the lines of a table, each two blanks to the right; none without rows.

    columns: the alignment and the least width of every column but the last, such as `<16 >7`; each is as wide as its
    widest cell.
    """
    every = [head, *rows] if head and rows else rows
    formats = [
        f"{spec[0]}{max(int(spec[1:]), *(len(row[i]) for row in every))}" if every else spec
        for i, spec in enumerate(columns.split())
    ]
    lines = (" ".join(map(format, row[:-1], formats)) for row in every)
    return [f"  {line}  {row[-1]}".rstrip() for line, row in zip(lines, every, strict=True)]


def more(left: int, fix: str, noun: str = "") -> list[str]:
    """Write the last line of a list that leaves out `left` items, with what to type for them; none if `left` is 0."""
    items = count(left, f"more {noun}") if noun else f"{left:,} more"
    return [f"... and {items}: {fix}"] if left > 0 else []


def checkpoint_name(model: str, step: int | None) -> str:
    """Write `lab/practice@3`. The name of a model may already contain the step of a checkpoint."""
    return f"{model}@{step}" if step is not None and "@" not in model else model


def number(value: float | None) -> str:
    """Write a reward for a table."""
    return "-" if value is None else f"{value:{'.7g' if 1000 <= abs(value) < _MOST else '.3g'}}"


def distinct(one: float, other: float) -> tuple[str, str]:
    """Write two numbers with three digits, or with more if they would look the same."""
    for digits in (3, 6, 9, 17):
        texts = f"{one:.{digits}g}", f"{other:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts


def decimals(value: float, form: str = ".3f") -> str:
    """Write a number in a format such as `.3f`; a very small or large one with three significant digits."""
    return f"{value:{shape(value, form)}}"


def shape(value: float, form: str = ".3f") -> str:
    """Choose the format of a number: `form`, or three significant digits if the number is very small or large."""
    least = 10.0 ** -int(form[1:-1])  # a smaller number would be written as 0.00, or with one digit
    return ".3g" if _ROUNDING < abs(value) < least or abs(value) > _MOST else form


def signed(value: float, form: str = ".2f") -> str:
    """Write a change or an advantage with its sign; one that rounds to 0 has none."""
    shown = f"{value:+{'.3g' if form.endswith('f') and abs(value) > _MOST else form}}"
    return shown if float(shown) else shown[1:]


def with_minus(text: str) -> str:
    """Replace hyphens in numbers by minus signs, which are as wide as a plus."""
    return text.replace("-", "\N{MINUS SIGN}")
