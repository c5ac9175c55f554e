"""Compare sampled tokens with a message by their text: a client sends both, and may use another tokenizer."""

import re
from collections.abc import Callable

from rolloutlab.api.wire.chat import AssistantMessage, CompletionMessage, FunctionToolCall
from rolloutlab.api.wire.reasoning import CLOSING, reasoning_of, split_reasoning
from rolloutlab.policy import harmony
from rolloutlab.policy.messages import content_of
from rolloutlab.policy.splicing import without_space

_MARK = re.compile(r"(?:<[^<>]+>|\[[^\[\]]+\])?")
"""One mark, such as the end of reasoning in any format, or nothing."""
AroundCalls = Callable[[str], list[str]]
"""Returns the text around the calls in a text, with special tokens and without; an empty list if it has no calls."""


def is_text_of(
    text: str,
    whole: str,
    message: AssistantMessage | CompletionMessage,
    *,
    ended: bool = False,
    around_calls: AroundCalls = lambda _: [],
) -> bool:
    """Whether a text is that of a message, except for white space.

    Tool calls may differ: `names_calls` compares them.

    Args:
        text: The text without special tokens.
        whole: The text with special tokens, except the end of the turn.
        message: The message.
        ended: Whether the end of the turn was sampled. If not, a stop string may have cut the turn. Services do not
            return what they cut off, so the text may go on after the content, and any text fits an empty content.
        around_calls: Returns the texts around calls in the policy's own form. If there are calls in another form, it is
            enough that the characters of the content occur in order.
    """
    fields, text_of_it = message.to_wire(), content_of(message)
    reasoning, content = (without_space(each) for each in reasoning_of(fields, text_of_it))
    if harmony.CHANNEL in whole and (harmony.parse(whole) or _names(message)):  # the content is between headers
        return _is_in_harmony(whole, content, ended)
    if _names(message):
        before, _, after = whole.rpartition(CLOSING)
        in_before = reasoning in without_space(before)
        texts = [(around_calls(after), "" if in_before else reasoning), (around_calls(whole), reasoning)]
        if not ended or not any(around for around, _ in texts):
            return _is_subsequence(content, without_space(whole))
        return any(
            _is_answer_in(
                without_space(each), reasoned, content, without_space(around[0]) != without_space(around[1]), ended
            )
            for around, reasoned in texts
            for each in around
        )
    given = without_space(reasoning_of(fields, "")[0]), without_space(text_of_it)
    if any(_is_parsed_from(split_reasoning(text, begun), *given, ended) for begun in (False, True)):
        return True
    marked = without_space(text) != without_space(
        whole
    )  # special tokens may be headers of reasoning in any format, before the content
    return any(_is_answer_in(without_space(each), reasoning, content, marked, ended) for each in (text, whole))


def is_empty(message: AssistantMessage | CompletionMessage) -> bool:
    """Whether a message has neither reasoning, nor content, nor calls."""
    return not any(reasoning_of(message.to_wire(), content_of(message).strip())) and not _names(message)


def names_calls(whole: str, message: AssistantMessage | CompletionMessage) -> bool:
    """Whether a text has the names of all functions that a message calls, in whatever form."""
    return all(name in without_space(whole) for name in _names(message))


def _is_parsed_from(parsed: tuple[str, str], reasoning: str, content: str, ended: bool) -> bool:
    """Whether this is the reasoning and the answer in a text, or what a stop string has left of them."""
    reasoned, answer = map(without_space, parsed)
    if ended:
        return (reasoned, answer) == (reasoning, content)
    return reasoned == reasoning and answer.startswith(content) if content else reasoned.startswith(reasoning)


def _is_answer_in(text: str, reasoning: str, content: str, marked: bool, ended: bool) -> bool:
    """Whether the content is the text, or what follows reasoning there; all without white space."""
    if reasoning:
        _, begins, answer = text.partition(reasoning)
        if not begins or not ended:
            return bool(begins) and content in answer  # anywhere: formats mark its beginning in ways of their own
        return answer.endswith(content) if content else _MARK.fullmatch(answer) is not None
    if not content:
        return not text or text.endswith(CLOSING)
    answers = text, text.rpartition(CLOSING)[2]  # a client may have left the reasoning out
    whole = content in answers if ended else any(answer.startswith(content) for answer in answers)
    return whole or (marked and text.endswith(content))


def _is_in_harmony(whole: str, content: str, ended: bool) -> bool:
    """Whether the content is that of harmony's messages. Without functions in the request, a call is content too."""
    if not ended:
        return _is_subsequence(content, without_space(whole))
    parsed = [harmony.parse(whole, tools) for tools in (True, False)]
    return any(without_space(each[1]) == content for each in parsed if each)


def _names(message: AssistantMessage | CompletionMessage) -> list[str]:
    """Names of the functions that a message calls, without white space."""
    names = [call.function.name if isinstance(call, FunctionToolCall) else "" for call in message.tool_calls or ()]
    return [without_space(name) for name in [*names, *([message.function_call.name] if message.function_call else [])]]


def _is_subsequence(part: str, text: str) -> bool:
    characters = iter(text)
    return all(character in characters for character in part)
