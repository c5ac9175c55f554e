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
    return f"{CHANNEL}analysis<|message|>" in chat_template and "<|start|>assistant" in chat_template


def parse(text: str, tools: bool = True, ended: bool = True) -> tuple[str, str, list[Call]] | None:
    """Reasoning (`analysis`), content (`final`, and `commentary` without a recipient) and calls of a completion.

    text: with its special tokens. tools: whether there are functions to call. ended: False for the beginning of a
    completion, of which only what further text cannot change is read. From the first message on that is none of these,
    everything is content, without its special tokens. If that is the very first message, the result is None.
    """
    reasoning, content, calls = list[str](), list[str](), list[Call]()
    rest = text
    while rest.strip():
        message, end, after = _until_end(rest)
        header, begun, body = message.partition("<|message|>")
        head, recipient, call = _HEADER.fullmatch(header) if begun else None, None, None
        if head and (recipient := head["before"] or head["after"]):
            call = _call(recipient, body) if tools and (end or ended) else None
        if call:
            calls.append(call)
        elif head and not recipient:
            (reasoning if head["channel"] == "analysis" else content).append(body if end or ended else _final(body))
        elif message.strip():
            if not ended:
                break
            if rest == text:
                return None
            content.append(_SPECIAL.sub("", rest))
            break
        rest = after
    return "\n".join(reasoning), "".join(content), calls


def _until_end(text: str) -> tuple[str, str, str]:
    """The first message of a text, its end token, and the text after that."""
    end = _ENDS.search(text)
    return (text[: end.start()], end[0], text[end.end() :]) if end else (text, "", "")


def _final(body: str) -> str:
    """A body without what may be the beginning of an end token."""
    return _BEGUN.sub("", body)


def _call(recipient: str, body: str) -> Call | None:
    """The call of a function; None for the built-in tools, which are not a client's, and for malformed arguments."""
    try:
        arguments = from_json(body, allow_inf_nan=False)
    except ValueError:
        return None
    if not recipient.startswith(_FUNCTIONS) or not isinstance(arguments, dict):
        return None
    return valid_call(recipient.removeprefix(_FUNCTIONS), arguments)
