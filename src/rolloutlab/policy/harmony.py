"""Harmony, the response format of gpt-oss: a completion is several messages, each with a channel and a recipient.

Source: https://developers.openai.com/cookbook/articles/openai-harmony.
"""

import re

from pydantic_core import from_json

from rolloutlab.policy.tool_calls import Call, valid_call

CHANNEL = "<|channel|>"
_ENDS = re.compile(r"<\|(?:end|return|call)\|>")
_HEADER = re.compile(
    r"\s*(?:<\|start\|>assistant)?\s*(?:to=(?P<before>[\w.-]+)\s*)?"
    r"<\|channel\|>(?P<channel>analysis|commentary|final)\s*(?:to=(?P<after>[\w.-]+)\s*)?(?:<\|constrain\|>)?\w*\s*"
)
_FUNCTIONS = "functions."


def is_harmony(chat_template: str) -> bool:
    return f"{CHANNEL}analysis<|message|>" in chat_template and "<|start|>assistant" in chat_template


def parse(text: str) -> tuple[str, str, list[Call]] | None:
    """Reasoning (`analysis`), content (`final`, and `commentary` without a recipient) and calls of a completion.

    text: with its special tokens. None if a part of it is none of these.
    """
    reasoning, content, calls = [], [], []
    for message in filter(str.strip, _ENDS.split(text)):
        header, begun, body = message.partition("<|message|>")
        head = _HEADER.fullmatch(header)
        if not begun or not head:
            return None
        if recipient := head["before"] or head["after"]:
            call = _call(recipient, body)
            if call is None:
                return None
            calls.append(call)
        elif head["channel"] == "analysis":
            reasoning.append(body)
        else:
            content.append(body)
    return "\n".join(reasoning), "".join(content), calls


def _call(recipient: str, body: str) -> Call | None:
    """The call of a function; None for the built-in tools, which are not a client's, and for malformed arguments."""
    try:
        arguments = from_json(body, allow_inf_nan=False)
    except ValueError:
        return None
    if not recipient.startswith(_FUNCTIONS) or not isinstance(arguments, dict):
        return None
    return valid_call(recipient.removeprefix(_FUNCTIONS), arguments)
