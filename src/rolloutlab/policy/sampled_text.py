"""Whether sampled tokens are those of a message, by their text: a client sends both, and may have another tokenizer."""

from rolloutlab.api.wire.chat import AssistantMessage, CompletionMessage, FunctionToolCall
from rolloutlab.api.wire.reasoning import CLOSING, reasoning_of
from rolloutlab.policy.harmony import CHANNEL
from rolloutlab.policy.messages import content_of
from rolloutlab.policy.splicing import words


def is_text_of(text: str, whole: str, message: AssistantMessage | CompletionMessage) -> bool:
    """Whether a text is that of a message, but for white space.

    text: without special tokens; whole: with these, except the end. What a stop string cut off may follow the content,
    as services do not return it; nothing may where there is no content. Calls may be other ones: see `names_calls`.
    """
    reasoning, content = reasoning_of(message.to_wire(), content_of(message))
    texts = words(text), words(whole)
    if _names(message) or CHANNEL in whole:  # the content is between calls, or the headers of messages
        return _is_subsequence(words(content), texts[1])
    marked = texts[0] != texts[1]  # special tokens may be headers of reasoning in any format, before the content
    return any(_is_answer_in(each, words(reasoning), words(content), marked) for each in texts)


def names_calls(whole: str, message: AssistantMessage | CompletionMessage) -> bool:
    """Whether a text has the names of all functions that a message calls, in whatever form."""
    return all(name in words(whole) for name in _names(message))


def _is_answer_in(text: str, reasoning: str, content: str, marked: bool) -> bool:
    """Whether the content is the text, or what follows reasoning there; all without white space."""
    if reasoning:
        _, begins, answer = text.partition(reasoning)
        return bool(begins) and content in answer  # which other formats begin in other ways than `CLOSING`
    if not content:
        return not text or text.endswith(CLOSING)
    answers = text, text.rpartition(CLOSING)[2]  # a client may have left the reasoning out
    return any(answer.startswith(content) for answer in answers) or (marked and text.endswith(content))


def _names(message: AssistantMessage | CompletionMessage) -> list[str]:
    """Names of the functions that a message calls, without white space."""
    names = [call.function.name if isinstance(call, FunctionToolCall) else "" for call in message.tool_calls or ()]
    return [words(name) for name in [*names, *([message.function_call.name] if message.function_call else [])]]


def _is_subsequence(part: str, text: str) -> bool:
    characters = iter(text)
    return all(character in characters for character in part)
