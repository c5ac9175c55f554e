"""Sampled turns as messages of later requests."""

from rolloutlab.api.wire.chat import AssistantMessage, Choice, Message, MessageOrChoice


def as_message(item: MessageOrChoice) -> Message:
    """The message of a choice with the token ids that were sampled, where all are known; another item as it is."""
    if not isinstance(item, Choice):
        return item
    ids = [token.token_id for token in item.sampled_tokens()]
    sampled = {"token_ids": ids} if ids and None not in ids else {}
    return AssistantMessage.model_validate(item.message.to_wire() | sampled)
