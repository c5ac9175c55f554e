"""Whether sampled tokens are those of a message, by their text: a client sends both, and may have another tokenizer."""

from rolloutlab.api.wire.chat import AssistantMessage, CompletionMessage, FunctionToolCall
from rolloutlab.api.wire.reasoning import CLOSING, reasoning_of
from rolloutlab.policy.harmony import CHANNEL
from rolloutlab.policy.messages import content_of
from rolloutlab.policy.splicing import words


def is_text_of(text: str, whole: str, message: AssistantMessage | CompletionMessage) -> bool:
    """Whether a text is that of a message, but for white space.

    text: without special tokens; whole: with these, except the end. What a stop string cut off may follow the content,
    as services do not return it; nothing may where there is no content.
    """
    reasoning, content = reasoning_of(message.to_wire(), content_of(message))
    names = [_words_of_name(call) for call in message.tool_calls or ()]
    names += [words(message.function_call.name)] if message.function_call else []
    texts = words(text), words(whole)
    if names or CHANNEL in whole:  # the content is between calls, or the headers of messages
        return _is_subsequence(words(content), texts[1]) and all(name in texts[1] for name in names)
    marked = texts[0] != texts[1]  # special tokens may be headers of reasoning in any format, before the content
    return any(_is_answer_in(each, words(reasoning), words(content), marked) for each in texts)


def _is_answer_in(text: str, reasoning: str, content: str, marked: bool) -> bool:
    """Whether the content is the text, or what follows reasoning there; all without white space."""
    if reasoning:
        _, begins, answer = text.partition(reasoning)
        return bool(begins) and content in answer  # which other formats begin in other ways than `CLOSING`
    if not content:
        return not text or text.endswith(CLOSING)
    answers = text, text.rpartition(CLOSING)[2]  # a client may have left the reasoning out
    return any(answer.startswith(content) for answer in answers) or (marked and text.endswith(content))


def _words_of_name(call: object) -> str:
    return words(call.function.name) if isinstance(call, FunctionToolCall) else ""


def _is_subsequence(part: str, text: str) -> bool:
    characters = iter(text)
    return all(character in characters for character in part)
