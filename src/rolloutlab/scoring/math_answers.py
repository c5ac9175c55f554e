"""Answers to mathematical problems: compared with the right one as expressions, by math-verify (`rolloutlab[math]`)."""

import logging
import re
import threading
from typing import Any

from rolloutlab.errors import InputError, RewardError

_LONGEST = 50_000
"""Characters of an answer that is read; a longer one is wrong."""

_BOX = "\\boxed"
_MINUS = "\N{MINUS SIGN}"
"""As models write it in text; math-verify reads no number after it."""
_LETTER = "(?<![A-Za-z])[A-Za-z](?![A-Za-z])"
_FORMULA = re.compile(rf"(?:{_LETTER}\s*=\s*)?(?=.*[()\[\]+<>])(?:[\d\s.,;()\[\]+<>*/^|-]|{_LETTER})+")
"""A text that is nothing but a formula, such as `(1, 2)` or `x + 1`: outside of `$` only its last number is read."""


def math_answer(answer: str | None, gold: Any) -> float:
    """1.0 if the answer is equal to `gold` as a number, expression, set, interval or equation, else 0.0.

    answer: the text of a completion, or None; of several results the last `\\boxed{...}` counts, else the last one.
    An answer that is not a number is read in a box, between `$` signs, or if it is the whole text. gold: the right
    answer, LaTeX or plain. In the main thread a comparison ends after 5 s. In other threads, such as those of
    `%%reward`, only `--timeout` or `--processes` limits it.

    Raises:
        RewardError: `gold` is not mathematics. InputError: math-verify is not installed.
    """
    try:
        from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
    except ImportError:
        raise InputError("math_answer needs math-verify", hint="%pip install rolloutlab[math]") from None
    seconds = 5 if threading.current_thread() is threading.main_thread() else None  # it stands on signal.alarm
    if seconds is None:
        for name in ("math_verify.parser", "math_verify.grader"):
            logging.getLogger(name).setLevel(logging.ERROR)  # it warns at each call without a time limit
    text, answer = (str(each).replace(_MINUS, "-") for each in (gold, answer or ""))
    bare = set(text) & set("\\^_{}") and "$" not in text and "boxed" not in text  # LaTeX is parsed between signs only
    right = parse(f"${text}$" if bare or _FORMULA.fullmatch(text) else text, parsing_timeout=seconds)
    if not right:
        raise RewardError(f"{text!r} is not mathematics", hint="math_answer(answer, row[COLUMN]), the right answer")
    if len(answer) > _LONGEST:
        return 0.0
    if answer.count(_BOX) > 1:  # the library reads no box of several outside of `$`
        answer = answer[answer.rindex(_BOX) :]
    boxed_first = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    given = parse(
        f"${answer}$" if _FORMULA.fullmatch(answer) else answer, extraction_config=boxed_first, parsing_timeout=seconds
    )
    return float(verify(right, given, timeout_seconds=seconds))
