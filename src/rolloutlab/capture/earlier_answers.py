"""Earlier answers in what a program sends back: matched by their text, and replaced by what was sampled."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from rolloutlab.api.wire.chat import AssistantMessage, Choice, Message, ToolMessage
from rolloutlab.api.wire.turns import as_message, kept, kept_of


@dataclass
class _Answer:
    """Messages as they were sent to the service, and the answer to them."""

    messages: list[Message]
    continued: bool = False


@dataclass
class EarlierAnswers:
    """The answers of a program by the messages before them, in a form that frameworks keep.

    Most leave reasoning and token ids out, make parts of texts and other JSON of arguments, and some rename calls.
    """

    _answers: list[_Answer] = field(default_factory=list)
    _next: "dict[Hashable, EarlierAnswers]" = field(default_factory=dict)

    def add(self, messages: Sequence[Message], choices: Sequence[Choice]) -> None:
        """Add the answers to messages as they were sent to the service."""
        place = self
        for each in kept(messages):
            place = place._after(each)
        for choice in choices:
            answer = as_message(choice)
            place._after(kept_of(answer))._answers.append(_Answer([*messages, answer]))

    def restored(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with what was sent and sampled in the place of the longest beginning that is known."""
        place, length, answers = self, 0, list[_Answer]()
        for i, each in enumerate(kept(messages), 1):
            following = place._next.get(each)
            if following is None:
                break
            place = following
            if place._answers:
                length, answers = i, place._answers
        if not answers:
            return list(messages)
        answer = next((each for each in answers if not each.continued), answers[0])
        answer.continued = True
        names = _new_names(messages[:length], answer.messages)
        return [*answer.messages, *(_renamed(message, names) for message in messages[length:])]

    def _after(self, each: Hashable) -> "EarlierAnswers":
        return self._next.setdefault(each, EarlierAnswers())


def _new_names(sent: Sequence[Message], known: Sequence[Message]) -> dict[str, list[str]]:
    """The ids of calls that were sampled, by the one that the program has given them, or to several of an answer."""
    names: dict[str, list[str]] = {}
    for one, other in zip(sent, known, strict=True):
        if isinstance(one, AssistantMessage) and isinstance(other, AssistantMessage):
            names |= {call.id: [] for call in one.tool_calls or ()}
            for a, b in zip(one.tool_calls or (), other.tool_calls or (), strict=True):
                names[a.id].append(b.id)
    return names


def _renamed(message: Message, names: dict[str, list[str]]) -> Message:
    """A result with the id of the sampled call; those of calls with the same id are in the order of the calls."""
    if not isinstance(message, ToolMessage) or message.tool_call_id not in names:
        return message
    of_calls = names[message.tool_call_id]
    return message.model_copy(update={"tool_call_id": of_calls.pop(0) if len(of_calls) > 1 else of_calls[0]})
