"""What is said in a conversation and where the policy answers: a script, filled in for each row."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import PydanticSerializationError

from rolloutlab.errors import InputError
from rolloutlab.prompt import fill
from rolloutlab.store.records import NewGroup
from rolloutlab.wire.chat import Message

Turn = Sequence[Mapping[str, Any]]


def turns_of(messages: Turn) -> list[list[Mapping[str, Any]]]:
    """The messages before each answer: the policy answers at an empty assistant message, and at the end.

    Raises:
        InputError: nothing is said before an answer.
    """
    turns: list[list[Mapping[str, Any]]] = [[]]
    for message in messages:
        if _is_open(message):
            turns.append([])
        else:
            turns[-1].append(message)
    if len(turns) > 1 and not turns[-1]:
        turns.pop()  # an open answer at the end says what is so anyway
    if not all(turns):
        raise InputError("nothing is said before an answer", hint="user: ... before assistant:")
    return turns


def with_system(messages: Turn, system: str | None) -> list[Mapping[str, Any]]:
    """The messages after a system message of their own, when one is given."""
    if system is None:
        return list(messages)
    if messages and messages[0].get("role") in {"system", "developer"}:
        raise InputError("the cell has a system message of its own", hint="leave --system or the message out")
    return [{"role": "system", "content": system}, *messages]


def new_group(turns: Sequence[Turn], row: Mapping[str, Any], variables: Mapping[str, Any]) -> NewGroup:
    """The group of one row, with every `{{name}}` filled in.

    Raises:
        InputError: a name stands for nothing, a message is not one, or a text holds half of a character.
    """
    prompt, *later = [filled(turn, row, variables) for turn in turns]
    return NewGroup(prompt, row, [[], *later])


def filled(turn: Turn, row: Mapping[str, Any], variables: Mapping[str, Any]) -> list[Message]:
    """The messages of a turn with every `{{name}}` filled in; as `new_group`."""
    messages = fill(turn, row, variables)
    try:
        for message in messages:
            message.to_json()
    except PydanticSerializationError as error:
        raise InputError(
            "the prompt holds half of a character", hint="text.encode('utf-8', 'replace').decode()"
        ) from error
    return messages


def _is_open(message: Mapping[str, Any]) -> bool:
    said = (message.get(name) for name in ("content", "tool_calls", "refusal", "function_call"))
    return message.get("role") == "assistant" and not any(said)
