"""Sampled turns that clients send back without their tokens: found by their conversation and text."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import sha256

from rolloutlab.api.wire.chat import AssistantMessage, Choice, Message
from rolloutlab.api.wire.reasoning import reasoning_of
from rolloutlab.api.wire.turns import as_message, kept, kept_of

_MAX_TOKENS = 4_000_000
"""The most tokens that are kept: about 200 MB. Turns that were not added or restored for longest are dropped."""


class EarlierTurns:
    """Restores the tokens of earlier turns, so that a later turn is sampled after what will be trained.

    If the text of a turn is tokenized again, the tokens often differ from the sampled ones. The next turn would then
    train with importance ratios far from 1. Most clients also leave out the reasoning; it is restored with the tokens.
    """

    def __init__(self, reads: Callable[[AssistantMessage], bool]) -> None:
        """reads: tells whether the policy can read a message with token ids."""
        self._reads = reads
        self._turns: OrderedDict[bytes, list[AssistantMessage]] = OrderedDict()
        self._tokens = 0
        self._lock = threading.Lock()

    def add(self, messages: Sequence[Message], choices: Sequence[Choice]) -> None:
        """Keep the turns that were sampled after these messages, where their tokens are known."""
        answers = [message for each in choices if isinstance(message := as_message(each), AssistantMessage)]
        before = _hash_beginnings(messages)[-1]
        with self._lock:
            for answer in answers:
                if answer.token_ids:
                    self._keep(sha256(before + repr(kept_of(answer)).encode(errors="surrogatepass")).digest(), answer)
            while self._tokens > _MAX_TOKENS:
                _, oldest = self._turns.popitem(last=False)
                self._tokens -= sum(len(each.token_ids or ()) for each in oldest)

    def restore(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages, those of sampled turns with their tokens. A message that has tokens stays as it is."""
        turns = enumerate(zip(messages, _hash_beginnings(messages)[1:], strict=True))
        own = {i: digest for i, (each, digest) in turns if isinstance(each, AssistantMessage) and not each.token_ids}
        return [self._restore_message(each, own[i]) if i in own else each for i, each in enumerate(messages)]

    def _restore_message(self, message: Message, digest: bytes) -> Message:
        with self._lock:
            answers = self._turns.get(digest)
            if not answers:
                return message
            self._turns.move_to_end(digest)
            answer = answers.pop(0)  # several samples may have the same text: they are used in turn
            answers.append(answer)
        given, sampled = (reasoning_of(each.to_wire(), "")[0] for each in (message, answer))
        if given.strip() not in {"", sampled.strip()}:
            return message
        reasoning = {"reasoning_content": sampled} if sampled else {}
        restored = message.model_copy(update={"token_ids": answer.token_ids, **reasoning})
        return restored if isinstance(restored, AssistantMessage) and self._reads(restored) else message

    def _keep(self, digest: bytes, answer: AssistantMessage) -> None:
        known = self._turns.setdefault(digest, [])
        self._turns.move_to_end(digest)
        if all(each.token_ids != answer.token_ids for each in known):
            known.append(answer)
            self._tokens += len(answer.token_ids or ())


def _hash_beginnings(messages: Sequence[Message]) -> list[bytes]:
    """Hash what clients keep of each beginning of a conversation, the empty one included."""
    digests = [b""]
    for each in kept(messages):
        digests.append(sha256(digests[-1] + repr(each).encode(errors="surrogatepass")).digest())
    return digests
