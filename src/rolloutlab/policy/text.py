"""The text of a completion while its tokens come, and the strings that end it."""

from collections.abc import Callable, Sequence

_UNREADABLE = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Tokens in, text out, as soon as it can no longer change.

    decode: turns token ids into text. stops: strings that end the text; it ends before the first of them.
    held: further strings in whose possible beginnings the text waits, such as the marker of a tool call.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = (), held: Sequence[str] = ()
    ) -> None:
        self._decode = decode
        self._stops = stops
        self._held = (*stops, *held)
        self._ids: list[int] = []
        self._known = self._read = 0
        self._text = ""
        self._sent = 0
        self.stopped = False

    def feed(self, token_id: int) -> str:
        """What can be shown on top of all that was returned before; sets `stopped` at a stop string."""
        self._ids.append(token_id)
        # a window over the last tokens: a token's text may depend on its neighbours, but not on those far away
        before, now = self._decode(self._ids[self._known : self._read]), self._decode(self._ids[self._known :])
        added = now[len(before) :]
        text = self._text + added.rstrip(_UNREADABLE)  # a character whose last bytes are yet to come
        if added and not added.endswith(_UNREADABLE):
            self._text = text
            self._known, self._read = self._read, len(self._ids)
        cut = cut_at_stop(text, self._stops)
        self.stopped = len(cut) < len(text)
        shown = cut[self._sent : len(cut) if self.stopped else _settled(cut, self._held)]
        self._sent += len(shown)
        return shown


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop string in it; all of it when there is none."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def _settled(text: str, held: Sequence[str]) -> int:
    """How much of the text is before the strings, and cannot be the beginning of one; an empty one holds everything."""
    ends = [len(text)]
    for string in held:
        at = text.find(string)
        ends += [at] if at >= 0 else [len(text) - n for n in range(1, len(string)) if text.endswith(string[:n])]
    return min(ends)
