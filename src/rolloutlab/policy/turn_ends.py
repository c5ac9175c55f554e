"""End of an assistant's turn: the token after which a chat template ends it.

It is often not among the ends that a model's configuration names: a base model with a ChatML template ends its turns
with `<|im_end|>` and names `<|endoftext|>`, and turns of GLM-4.5 end with the mark of the role that speaks next. The
end is inferred from conversations of markers that the template renders, because a list of models would be out of date
with every new one.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

from rolloutlab.api.wire.chat import AssistantMessage, FunctionCall, FunctionToolCall, Message, ToolMessage, UserMessage
from rolloutlab.errors import RenderingError

Render = Callable[[Sequence[Message]], str]
"""Renders a conversation without a generation prompt; raises RenderingError if the template refuses it."""
_Token = tuple[int, str]
Tokenize = Callable[[str], list[_Token]]
"""Returns the tokens of a text, each with its text if it is a mark (special or added), else with an empty text."""
_ASKED, _ANSWERED, _NEXT = "rolloutlabasked", "rolloutlabtold", "rolloutlabnext"


@dataclass(frozen=True)
class TurnEnd:
    """The end of a turn. token_id: the token that ends it; None if no token does, and `text` is all that follows.

    Some templates write the end only before the next message. space: the white space that they write at the end of a
    conversation instead. closing: what they write there before a next message, up to the end of the turn. Both are
    empty if a conversation's last turn has the end too.
    """

    token_id: int | None
    text: str
    space: str = ""
    closing: str = ""

    def close(self, text: str) -> str:
        """Add the end to a conversation's last turn, as it was rendered."""
        return text.removesuffix(self.space) + self.closing


def end_of_answers(render: Render, tokenize: Tokenize, known: Collection[int]) -> TurnEnd | None:
    """Find how the template ends an answer; None if it renders none. known: tokens that end a turn."""
    talk: list[Message] = [
        UserMessage(role="user", content=_ASKED),
        AssistantMessage(role="assistant", content=_ANSWERED),
    ]
    last = _text_after(_ANSWERED, render, talk)
    if last is None:
        return None
    before_next = _text_before(_NEXT, _text_after(_ANSWERED, render, [*talk, UserMessage(role="user", content=_NEXT)]))
    own, whole = tokenize(last), tokenize(before_next)
    before_asked, after_asked = _tokenize_around_asked(render(talk), tokenize)
    end_of_asked = [token for token in after_asked if token[1]][:1]
    for i, token in enumerate(whole):
        # If a user's text also begins with this token, and the mark that ends questions precedes it here, it begins
        # the next turn: bos may be eos, too.
        if token[0] in known and not (token in before_asked and end_of_asked and end_of_asked[0] in whole[:i]):
            return _make_end(token[0], last, before_next, own, whole)
    if end := _find_own_end(own, whole, before_asked, after_asked):
        return end
    return _make_end(_find_following(own, whole), last, before_next, own, whole)


def end_of_calls(render: Render, tokenize: Tokenize, known: Collection[int]) -> TurnEnd | None:
    """Find how the template ends a turn with calls; None if it does not render one. known: as in `end_of_answers`."""
    asked = UserMessage(role="user", content=_ASKED)
    last = _text_after(_ANSWERED, render, [asked, _make_calls(1)])
    if last is None:
        return None
    result = ToolMessage(role="tool", tool_call_id="call00000", content=_NEXT)
    before_next = _text_before(_NEXT, _text_after(_ANSWERED, render, [asked, _make_calls(1), result]))
    own, whole = tokenize(last), tokenize(before_next)
    for token_id, text in own:
        if token_id in known:
            return TurnEnd(token_id, text)
    for token_id, _ in whole:
        if token_id in known:
            return _make_end(token_id, last, before_next, own, whole)
    calls_end = {text for _, text in own if text and _ends_each_call(text, render, asked)}
    mine, theirs = ([token for token in tokens if token[1] not in calls_end] for tokens in (own, whole))
    if end := _find_own_end(mine, theirs, *_tokenize_around_asked(render([asked, _make_calls(1)]), tokenize)):
        return end
    return _make_end(_find_following(own, whole), last, before_next, own, whole)


def _find_following(own: Sequence[_Token], whole: Sequence[_Token]) -> int | None:
    """Find the first mark that is written only before a next message."""
    written = sum(1 for _, text in own if text)
    return next((token_id for token_id, _ in [token for token in whole if token[1]][written:]), None)


def _tokenize_around_asked(text: str, tokenize: Tokenize) -> tuple[list[_Token], list[_Token]]:
    """Return the tokens before a user's text, and those after it."""
    before, _, after = text.partition(_ASKED)
    return tokenize(before), tokenize(after)


def _find_own_end(
    own: Sequence[_Token], whole: Sequence[_Token], before_asked: Sequence[_Token], after_asked: Sequence[_Token]
) -> TurnEnd | None:
    """Find the mark that ends a conversation's last turn; None if no mark does.

    Not every mark after a turn is its end. Marks before the end close the content, such as `</response>`. Marks after
    it end the conversation, such as `<|endoftext|>`, or belong to the next message.

    Args:
        own: The tokens after the turn, if it is the last one.
        whole: The tokens between the turn and the text of the next message.
        before_asked: The tokens before a user's text.
        after_asked: The tokens after a user's text, whose turn often ends alike.
    """
    marks, before_next, after = ([token for token in each if token[1]] for each in (own, whole, after_asked))
    pairs = zip(marks, before_next, strict=False)
    both = [mark for mark, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    end = next(iter(after), None)
    if end in both:
        return TurnEnd(*end)
    if end and end not in before_asked and end in before_next[len(both) : len(both) + 1]:
        end = next(iter(marks[len(both) :]), None)  # the last turn has another, such as `<|return|>`, or none
    else:
        end = both[-1] if both else next(iter(marks), None)
    return TurnEnd(*end) if end else None


def _ends_each_call(text: str, render: Render, asked: UserMessage) -> bool:
    """Whether a mark at the end of a call is that of a call, such as `</tool_call>`, and not of the turn."""
    try:
        return render([asked, _make_calls(2)]).count(text) > render([asked, _make_calls(1)]).count(text)
    except RenderingError:
        return False


def _make_calls(number: int) -> AssistantMessage:
    """Make a message with so many calls, each with the answer's marker as its argument."""
    function = FunctionCall(name="rolloutlabcall", arguments=f'{{"a": "{_ANSWERED}"}}')
    calls = [FunctionToolCall(id=f"call{i:05}", type="function", function=function) for i in range(number)]
    return AssistantMessage(role="assistant", tool_calls=calls)


def _make_end(token_id: int | None, last: str, before_next: str, own: list[_Token], whole: list[_Token]) -> TurnEnd:
    """Make the end of a turn by a token that may be written only before the next message."""
    text = next((text for each, text in whole if each == token_id), "")
    if token_id is None or not text:
        return TurnEnd(None, before_next or last)
    if token_id in {each for each, _ in own}:
        return TurnEnd(token_id, text)
    stripped = last.rstrip()
    if not before_next.startswith(stripped):
        return TurnEnd(token_id, text)
    before, mark, _ = before_next.removeprefix(stripped).partition(text)
    return TurnEnd(token_id, text, last[len(stripped) :], before + mark)


def _text_after(marker: str, render: Render, messages: Sequence[Message]) -> str | None:
    """Return what follows the last marker in a conversation; None if it has none, or is refused."""
    try:
        _, mark, after = render(messages).rpartition(marker)
    except RenderingError:
        return None
    return after if mark else None


def _text_before(marker: str, text: str | None) -> str:
    """Return a text before a marker; nothing if it has none."""
    before, mark, _ = (text or "").partition(marker)
    return before if mark else ""
