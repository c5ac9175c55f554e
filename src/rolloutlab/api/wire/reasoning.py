"""Reasoning of a message: a field beside its content, or `<think>…</think>` at the beginning of the content."""

import re
from collections.abc import Mapping
from typing import Any

OPENING, CLOSING = "<think>", "</think>"
FIELDS = "reasoning_content", "reasoning", "thinking"
"""The fields in which services send reasoning.

reasoning_content: DeepSeek, and vLLM until 0.11. reasoning: later vLLM, and OpenRouter. thinking: Ollama, and data sets
for gpt-oss.
"""
_ON_ITS_LINE = re.compile(rf"(^|\n)[ \t]*{CLOSING}|{CLOSING}[ \t]*(\n|$)")
"""A mark that begins or ends a line, as policies write it; one within a sentence is a word of the answer."""

UNREAD = "unread_reasoning"
"""A property of a Choice: the mark of reasoning that is part of its answer, because the service does not read it."""
_MARK = re.compile(
    r"[<\[◁]\|?/?(?!\|)[^\s<>\[\]|◁▷]{0,60}(?:think|thought|reason|channel|analysis|scratchpad)"
    r"[^\s<>\[\]|◁▷]{0,60}\|?[>\]▷]",  # else marks that do not close take the square of their length
    re.IGNORECASE,
)
_CLOSED = re.compile(rf"(?:{_MARK.pattern}\s*+\w*+\s*+{_MARK.pattern}|{CLOSING})\s*", re.IGNORECASE)
_READ = {OPENING, CLOSING, "<|channel|>"}  # harmony's channels are read


def is_unread_mark(token: str) -> bool:
    """Whether a token is a mark of reasoning in a format that is not read, such as `<|channel>` or `[THINK]`."""
    return _MARK.fullmatch(token.strip()) is not None and token.strip() not in _READ


def without_thought(prompt: str) -> str | None:
    """Remove an empty thought, or the end of a thought, from the end of a prompt; None if it ends with neither."""
    ends = (match for match in _CLOSED.finditer(prompt) if match.end() == len(prompt))
    return next((prompt[: match.start()] for match in ends), None)


def without_empty_thought(answer: str) -> str:
    """Remove an empty thought from the beginning of an answer."""
    match = _CLOSED.match(answer)
    return answer[match.end() :] if match else answer


def split_reasoning(text: str, begun: bool = False) -> tuple[str, str]:
    """Split a text into its reasoning and the answer. If the reasoning has no end, all of the text is reasoning.

    begun: whether the reasoning began in the prompt, before the text.
    """
    if not begun and not text.lstrip().startswith(OPENING):
        return "", text
    reasoning, _, answer = text.lstrip().removeprefix(OPENING).partition(CLOSING)
    return reasoning.strip(), answer.lstrip("\n")


def reasoning_of(message: Mapping[str, Any], text: str) -> tuple[str, str]:
    """Split a message, whose content has this text, into its reasoning and the answer without it."""
    if field := next((message[name] for name in FIELDS if message.get(name)), None):
        return str(field), text
    return split_content(text)


def split_content(text: str) -> tuple[str, str]:
    """Split the content of a message into its reasoning, which the prompt may have opened, and the answer after it."""
    begun = CLOSING in text and OPENING not in text and _ON_ITS_LINE.search(text) is not None
    return split_reasoning(text, begun)
