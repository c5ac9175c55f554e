"""Harmony, the response format of gpt-oss: a completion is several messages, each with a channel and a recipient.

Source: https://developers.openai.com/cookbook/articles/openai-harmony.
"""

import re

from pydantic_core import from_json

from rolloutlab.policy.tool_calls import Call, valid_call

CHANNEL = "<|channel|>"
_ENDS = re.compile(r"<\|(?:end|return|call)\|>")
_SPECIAL = re.compile(r"<\|\w+\|>")
_BEGUN = re.compile(r"<(?:\|\w*\|?)?$")
_HEADER = re.compile(
    r"\s*+(?:<\|start\|>assistant)?\s*+(?:to=(?P<before>[\w.-]++)\s*+)?"
    r"<\|channel\|>(?P<channel>analysis|commentary|final)\s*+(?:to=(?P<after>[\w.-]++)\s*+)?(?:<\|constrain\|>)?\w*+\s*+"
)
_FUNCTIONS = "functions."


def is_harmony(chat_template: str) -> bool:
    """Whether a chat template writes harmony."""
    return f"{CHANNEL}analysis<|message|>" in chat_template and "<|start|>assistant" in chat_template


def parse(text: str, tools: bool = True, ended: bool = True) -> tuple[str, str, list[Call]] | None:
    """Parse a completion into reasoning, content and calls; None if its first message is of no known kind.

    Reasoning is what has the channel `analysis`; content has `final`, or `commentary` without a recipient. From the
    first message of no known kind on, everything is content, without its special tokens.

    Args:
        text: The completion, with its special tokens.
        tools: Whether there are functions to call.
        ended: False for the beginning of a completion: only what further text cannot change is then returned.
    """
    reasoning, content, calls = list[str](), list[str](), list[Call]()
    rest = text
    while rest.strip():
        message, end, after = _split_message(rest)
        header, begun, body = message.partition("<|message|>")
        head, recipient, call = _HEADER.fullmatch(header) if begun else None, None, None
        if head and (recipient := head["before"] or head["after"]):
            call = _read_call(recipient, body) if tools and (end or ended) else None
        if call:
            calls.append(call)
        elif head and not recipient:
            (reasoning if head["channel"] == "analysis" else content).append(
                body if end or ended else _drop_partial_end(body)
            )
        elif message.strip():
            if not ended:
                break
            if rest == text:
                return None
            content.append(_SPECIAL.sub("", rest))
            break
        rest = after
    return "\n".join(reasoning), "".join(content), calls


def _split_message(text: str) -> tuple[str, str, str]:
    """Split a text into its first message, the end token of that, and the rest."""
    end = _ENDS.search(text)
    return (text[: end.start()], end[0], text[end.end() :]) if end else (text, "", "")


def _drop_partial_end(body: str) -> str:
    """Drop what may be the beginning of an end token from the end of a body."""
    return _BEGUN.sub("", body)


def _read_call(recipient: str, body: str) -> Call | None:
    """Read the call of a function; None for harmony's built-in tools, and for malformed arguments."""
    try:
        arguments = from_json(body, allow_inf_nan=False)
    except ValueError:
        return None
    if not recipient.startswith(_FUNCTIONS) or not isinstance(arguments, dict):
        return None
    return valid_call(recipient.removeprefix(_FUNCTIONS), arguments)
