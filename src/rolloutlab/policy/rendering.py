"""Rendering of conversations to token ids: prompts for sampling, sequences for training.

Sampled token ids are read and trained as they are: if the chat template renders an earlier turn as it was sampled, its
text is not tokenized again. Sampler and trainer build the prompt of a turn by the same function.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cache, cached_property, lru_cache, partial
from itertools import takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase

from rolloutlab.api.wire.chat import (
    AssistantMessage,
    Choice,
    CompletionMessage,
    FunctionTool,
    Message,
    MessageOrChoice,
    SystemMessage,
    TokenLogprob,
)
from rolloutlab.api.wire.reasoning import CLOSING, OPENING, reasoning_of, without_thought
from rolloutlab.api.wire.trajectories import History
from rolloutlab.errors import Cancelled, ContextError, RenderingError, TemplateTimeError
from rolloutlab.policy.byte_tokens import raw_bytes
from rolloutlab.policy.call_forms import MarkedCalls, infer_call_form
from rolloutlab.policy.messages import Messages, Tools, content_of
from rolloutlab.policy.sampled_text import is_empty, is_text_of, names_calls
from rolloutlab.policy.splicing import Splicer, Turns, without_space
from rolloutlab.policy.template_date import DATE, with_date
from rolloutlab.policy.template_watch import template_watch
from rolloutlab.policy.token_sequence import TokenSequence
from rolloutlab.policy.tool_calls import CallExample, ToolCallFormat, after_prompt, call_example
from rolloutlab.policy.turn_ends import TurnEnd, end_of_answers, end_of_calls

_UNCHECKED_CHARS = 100_000
"""Texts up to this length are tokenized without a check whether they can fit."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_ID_DIGITS = 18
_CACHED_CHARS = 4096
"""Texts up to this length are tokenized once for all turns of a history; longer ones would fill the memory."""
_CACHED_TOKENS = 16_384
"""How many tokens' texts are kept: a large answer repeats a few, and other requests wait while it is written."""
_NOT_OF_MESSAGE = "these are not the tokens of the message"
_ITEMS = "messages_and_choices"
_ANSWERED = "rolloutlabtold"
Encode = Callable[[str], list[int]]


class Renderer:
    """Renders conversations with a tokenizer's own chat template.

    vocabulary: the size of the policy's vocabulary, often more than its tokenizer's. context: refuse longer texts if
    their characters alone show that they cannot fit; to tokenize megabytes takes minutes and gigabytes. day: what the
    template prints as today. check: called before each piece of work, of which one conversation needs many; what it
    raises ends the work.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_ids: frozenset[int],
        vocabulary: int | None = None,
        context: int | None = None,
        day: date = DATE,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._check = check
        self._context = context
        self._day = day
        self._last_rendered: tuple[tuple[Any, ...], str] | None = None
        """The last short text and what it was rendered from: the members of a group have one prompt."""
        self._tokenizer = tokenizer
        self._token = lru_cache(_CACHED_TOKENS)(self._read_token)
        self._end_ids = end_ids
        self._vocabulary = len(tokenizer) if vocabulary is None else vocabulary
        self._messages = Messages(self._template)
        self._splicer = Splicer(self._template, [self._decode([token_id]) for token_id in sorted(end_ids)])

    def prompt(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Render a conversation to token ids, with the generation prompt.

        An assistant's turn with `token_ids` is read as these if the template renders it as it was sampled.

        Raises:
            RenderingError: a part of the conversation is not text, or the chat template drops or refuses it, or token
                ids are not those of their message.
        """
        plain, sampled = self._plain(messages, tools)
        return self._prompt(plain, sampled, self._turns(sampled), tools)

    def reads(self, message: AssistantMessage) -> bool:
        """Whether the token ids of a message are one turn of this policy, with the message's text."""
        return self._find_wrong(message) is None

    def continues(self, prompt: Sequence[int], messages: Sequence[Message], tools: Tools = None) -> bool | None:
        """Whether the prompt of these messages begins with what was read and sampled for their last sampled turn.

        The last sampled turn is the last one with `token_ids`. None if there is none, or if its prompt cannot be
        rendered. If False, the next turn begins a new training sequence, as in `sequences`.
        """
        if not any(isinstance(message, AssistantMessage) and message.token_ids for message in messages):
            return None
        plain, sampled = self._plain(messages, tools)
        last = max(sampled)
        earlier = {i: ids for i, ids in sampled.items() if i < last}
        try:
            before = [*self._prompt(plain[:last], earlier, self._turns(earlier), tools), *sampled[last]]
        except RenderingError:
            return None
        return list(prompt[: len(before)]) == before

    def answer(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Render the last message, an assistant's, to token ids, with its end-of-turn token.

        Raises:
            RenderingError: as for a prompt. Or the template does not render an answer after its prompt, drops a part of
                it, or ends it with no token. Or the answer's reasoning does not end.
        """
        reasoning, text = self._split_answer(messages)
        plain = self._messages.adapt(messages, "messages", tools, whole=True)
        prompt, whole = self._template(plain[:-1], tools), self._check_length(self._template(plain, tools, begin=False))
        if reasoning and self._closes_thought and without_thought(prompt) is not None:
            raise self._dropped_error("the reasoning", messages)  # it would be a second thought
        answer = after_prompt(prompt, whole, reasoning, dropped=self._messages.drops_reasoning)
        if answer is None:
            raise RenderingError("the chat template does not render an answer after its prompt")
        for part, written in (("the reasoning", reasoning), ("a part", text)):
            if without_space(written) not in without_space(answer):
                raise self._dropped_error(part, messages)
        ids = self._cut_at_end(self._encode(answer))
        end = self.turn_ends[bool(plain[-1].get("tool_calls"))]
        if not ids and end:  # the template writes the end only before the next message
            ids = self._cut_at_end(self._encode(end.close(answer)))
        if not ids:
            raise RenderingError(
                "no token ends this answer in the chat template",
                hint="end the assistant's messages with {{ eos_token }} in the policy's chat_template",
            )
        return ids

    @staticmethod
    def _dropped_error(part: str, messages: Sequence[Message]) -> RenderingError:
        path, hint = f"messages.{len(messages) - 1}", "leave it out of the message"
        return RenderingError(f"{path}: the chat template drops {part} of the answer", hint=hint)

    @cached_property
    def _closes_thought(self) -> bool:
        """Whether the generation prompt ends with a finished thought, so that an answer has none of its own."""
        begun, _ = self._generation_prompt
        return begun is not None and without_thought(begun) is not None

    def _split_answer(self, messages: Sequence[Message]) -> tuple[str, str]:
        """Split the last message, an assistant's, into its reasoning and the rest."""
        message = messages[-1]
        if not isinstance(message, AssistantMessage | CompletionMessage):
            return "", ""
        fields, content = message.to_wire(), content_of(message)
        reasoning, text = reasoning_of(fields, content)
        begun = reasoning and CLOSING not in content and not reasoning_of(fields, "")[0]
        if begun and not self._messages.keeps_marks:  # it would be learned as an answer without reasoning
            path = f"messages.{len(messages) - 1}"
            raise RenderingError(f"{path}: the reasoning of the answer has no {CLOSING}", hint="leave the answer out")
        return reasoning, text

    def ends_within(self, text: str) -> bool:
        """Whether a text has a token that ends a turn. Of an answer with one, the rest would not be learned."""
        return self._splicer.has_end(text) and not self._end_ids.isdisjoint(self._encode(text))

    def render_at_once(
        self, messages: Sequence[Message], answers: Sequence[int], tools: Tools = None
    ) -> list[tuple[list[int], list[int]]] | None:
        """Render a conversation once, for several answers; return a pair of token ids for each.

        A pair has the ids between the answer before it and this answer, and those of this answer. They equal what
        `prompt` and `answer` return only if the template renders shorter conversations alike, which the caller has to
        check. None if an answer is not in the rendered text as it is written, or has no end of its own.

        Raises:
            RenderingError: as for a prompt. ContextError: the conversation is too long.
        """
        plain = self._messages.adapt(messages, "messages", tools)
        self._check_tools(messages, "messages", tools)
        whole = self._check_length(self._template(plain, tools, begin=False))
        texts = self._splicer.texts_between(plain, answers, tools)
        turns: list[tuple[list[int], list[int]]] = []
        position, previous = 0, -1
        for i, before, after in zip(answers, texts, texts[1:], strict=False):
            in_place = whole.startswith(before, position)
            position += len(before)
            content = plain[i]["content"]
            text = next((t for t in (content, content.strip()) if whole.startswith(t + after, position)), "")
            end = self.turn_ends[0]
            ids = self._encode(end.close(text) if end and not after else text + self._splicer.cut_at_end(after))
            written = without_space(self._decode(ids[:-1])) == without_space(text)
            ended = ids[-1:] and ids[-1] in self._end_ids and not self._end_ids.intersection(ids[:-1])
            if not in_place or not text or not written or not ended:
                return None
            position += len(text)
            context = self._encode(self._before_sampled(before))
            turns.append((context[1:] if context[:1] == [previous] else context, ids))
            previous = ids[-1]
        return turns if len(turns) == len(answers) else None

    def has_own_tokens(self, choice: Choice) -> bool:
        """Whether the sampled tokens of a choice are of this vocabulary, and decode to the text of its message.

        If a stop string has left nothing of the message, its tokens are compared with their own texts instead.
        """
        sampled, message = choice.sampled_tokens(), choice.message
        try:
            ids = self._ids(sampled, "")
        except RenderingError:
            return False
        if is_empty(message) and self.text(ids):
            return all(map(self._is_token, ids, sampled))
        return bool(ids) and self._are_of(ids, message) and names_calls(self._text_without_end(ids), message)

    def sequences(self, history: History) -> list[TokenSequence]:
        """Turn a history into sequences; the last ends with the last sampled token.

        Each turn is trained after the prompt that the sampler read. If the service has marked its Choice with
        `continues`, that prompt has the tokens of earlier turns with calls, in whatever form; else only of those whose
        text the template renders. A turn begins a new sequence if its prompt does not begin with the tokens read and
        sampled before it, for instance because the template drops earlier reasoning. `token_ids` of messages are read
        as those of sampled turns, but not trained. `reread` marks turns that may have been sampled after other tokens
        than they are trained after.

        Raises:
            RenderingError: as for a prompt, or a sampled token is not in the vocabulary.
        """
        items, tools = history.messages_and_choices, history.tools
        tokens = {i: item.sampled_tokens() for i, item in enumerate(items) if isinstance(item, Choice)}
        numbers = {i: k for k, i in enumerate(tokens)}
        trained = {i: self._ids(entries, f"{_ITEMS}.{i}") for i, entries in tokens.items() if entries}
        last = max(trained, default=0)  # this message and later ones are no context of any sampled token
        given = {i: m for i, m in enumerate(items[:last]) if isinstance(m, AssistantMessage) and m.token_ids}
        sampled = trained | {
            i: m.token_ids or [] for i, m in given.items() if not self._find_wrong(m)
        }  # else their text
        whole = self._messages.adapt(items[:last], _ITEMS, tools)
        self._check_tools(items, _ITEMS, tools)
        changes = bool(self._messages.find_unread(items[:last], tools))  # what is dropped may depend on later messages
        texts, bodies, encode = self._turns(sampled).texts, dict[int, str | None](), self._make_encode()
        sequences: list[TokenSequence] = []
        for i, ids in trained.items():
            plain = self._messages.adapt(items[:i], _ITEMS, tools) if changes else whole[:i]
            earlier = {j: text for j, text in texts.items() if j < i}
            turns = Turns(earlier, _has_mark(items[i]), {} if changes else bodies)
            prompt = self._prompt(plain, sampled, turns, tools, encode)
            if not sequences or prompt[: len(sequences[-1])] != list(sequences[-1].ids):
                sequences.append(TokenSequence())
            sequences[-1].turns.append((numbers[i], len(prompt)))
            sequences[-1].extend(prompt[len(sequences[-1]) :], ids, tokens[i])
        places = list(tokens)

        def of_text(turn: int) -> list[int]:
            i = places[turn]
            plain = self._messages.adapt(items[:i], _ITEMS, tools) if changes else whole[:i]
            return self._prompt(plain, {}, Turns({}), tools, encode)

        unmarked = {k for k, i in enumerate(places) if not _has_mark(items[i])}
        return [_mark_reread(sequence, unmarked, of_text) for sequence in sequences]

    def find_unread(self, messages: Sequence[Message], tools: Tools = None) -> list[int]:
        """Return the indices of messages with content beside their calls that the prompt does not have.

        Turns with `token_ids` are not among them: they are read as they were sampled.
        """
        plain = self._messages.find_unread(messages, tools)
        return [i for i in plain if not (isinstance(m := messages[i], AssistantMessage) and m.token_ids)]

    def render(self, messages: list[dict[str, Any]], begin: bool) -> str:
        """Render a conversation to text. begin: with the generation prompt.

        Raises:
            RenderingError: the template refuses it.
        """
        return self._template(messages, None, begin)

    def text(self, token_ids: Sequence[int]) -> str:
        """Decode tokens without special ones, except those around reasoning."""
        return self._decode([token_id for token_id in token_ids if token_id not in self._unseen])

    def token(self, token_id: int) -> tuple[str, list[int]]:
        """Return a token's text and bytes."""
        text, raw = self._token(token_id)
        return text, list(raw)

    def _read_token(self, token_id: int) -> tuple[str, bytes]:
        text = self._decode([token_id])
        raw = self._tokenizer.convert_ids_to_tokens([token_id])[0] or ""
        return text, raw_bytes(raw) if _REPLACEMENT in text else text.encode()

    def _template(self, messages: list[dict[str, Any]], tools: Tools, begin: bool = True) -> str:
        """Render a conversation to text. begin: with the generation prompt."""
        return self._render_template(_in_parts(messages) if self._takes_parts else messages, tools, begin)

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template reads content only as a list of parts, as those of some models that see images do."""
        user = [{"role": "user", "content": _ANSWERED}]

        def reads(messages: list[dict[str, Any]]) -> bool:
            try:
                return _ANSWERED in self._render_template(messages, None)
            except RenderingError:
                return False

        return not reads(user) and reads(_in_parts(user))

    def _render_template(self, messages: list[dict[str, Any]], tools: Tools, begin: bool = True) -> str:
        self._check()
        definitions: Any = [tool.to_wire() for tool in tools] if tools else None
        template = with_date(self._tokenizer.get_chat_template(tools=definitions), self._day)
        asked = template, begin, repr(messages), repr(definitions)
        if (last := self._last_rendered) and last[0] == asked:
            return last[1]
        render = partial(
            self._tokenizer.apply_chat_template,
            messages,
            tools=definitions,
            add_generation_prompt=begin,
            tokenize=False,
            chat_template=template,
        )
        try:
            text = template_watch().run(render, self._check)
        except (Cancelled, TemplateTimeError):
            raise
        except Exception as error:  # a template is a program, and may fail in any way
            raise RenderingError(f"the chat template refuses this conversation: {error}") from error
        if len(text) <= _CACHED_CHARS:
            self._last_rendered = asked, str(text)
        return str(text)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def _unseen(self) -> frozenset[int]:
        """Ids of special tokens that `text` leaves out."""
        added = self._tokenizer.added_tokens_decoder.items()
        return frozenset(i for i, token in added if token.special and token.content not in {OPENING, CLOSING})

    def _encode(self, text: str) -> list[int]:
        self._check()
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _make_encode(self) -> Encode:
        """Make a tokenizer that keeps the tokens of short texts, which the prompts of later turns have too."""
        kept = cache(self._encode)
        return lambda text: kept(text) if len(text) <= _CACHED_CHARS else self._encode(text)

    def _check_length(self, text: str) -> str:
        """Return the text; raise ContextError if it would be too long even with the longest tokens."""
        if self._context is not None and len(text) > max(_UNCHECKED_CHARS, self._context * self._longest_token):
            limit = f"the policy's context of {self._context:,} tokens"
            raise ContextError(f"{len(text):,} characters do not fit into {limit}", hint="shorten it")
        return text

    @cached_property
    def _longest_token(self) -> int:
        """The number of characters of the longest token. Byte-level tokens have at least as many as their text."""
        return max(map(len, self._tokenizer.get_vocab()))

    def _prompt(
        self,
        plain: list[dict[str, Any]],
        sampled: Mapping[int, list[int]],
        turns: Turns,
        tools: Tools,
        encode: Encode | None = None,
    ) -> list[int]:
        """Render to token ids, with the generation prompt. sampled: ids of sampled turns, by the message's index."""
        text = self._check_length(self._template(plain, tools))
        ids: list[int] = []
        parts = self._splicer.parts(text, plain, turns, tools)
        for i, part in enumerate(parts):
            if i % 2:
                ids += sampled[int(part)]
                continue
            context = (encode or self._encode)(self._before_sampled(part) if i + 1 < len(parts) else part)
            ids += self._without_sampled_end(ids, context)
        return ids

    def _without_sampled_end(self, ids: Sequence[int], context: list[int]) -> list[int]:
        """Return the tokens `context` that follow, without the template's end of a turn if the end was sampled."""
        if ids and ids[-1] in self._end_ids and ids[-1] in context:
            end = context.index(ids[-1])
            if not self._decode(context[:end]).strip():  # white space: a mark of the next role may be on its own line
                return context[end + 1 :]
        return context

    def _turns(self, sampled: Mapping[int, list[int]], **more: Any) -> Turns:
        return Turns({i: self._text_without_end(ids) for i, ids in sampled.items()}, **more)

    def _check_tools(self, items: Sequence[MessageOrChoice], path: str, tools: Tools) -> None:
        """Raise RenderingError if a conversation is the same text without its tools."""
        if not tools or self.renders_tools:
            return
        plain = self._messages.adapt(items, path, tools)
        if self._template(plain, tools, begin=False) == self._template(plain, None, begin=False):
            raise RenderingError("the policy's chat template does not render tools", hint="leave tools out")

    @cached_property
    def renders_tools(self) -> bool:
        """Whether the template renders tools in a conversation of one user's message, and so probably in all."""
        function = {"name": "rolloutlabtool", "parameters": {"type": "object", "properties": {}}}
        tools = [FunctionTool.model_validate({"type": "function", "function": function})]
        user = [{"role": "user", "content": "?"}]
        try:
            return self._template(user, tools) != self._template(user, None)
        except RenderingError:  # it may refuse only this conversation; if it refuses the real one, that raises again
            return True

    def _cut_at_end(self, ids: list[int]) -> list[int]:
        """Return token ids up to the first that ends a turn; none if none does."""
        return ids[: next((i + 1 for i, token_id in enumerate(ids) if token_id in self._end_ids), 0)]

    @cached_property
    def turn_ends(self) -> tuple[TurnEnd | None, TurnEnd | None]:
        """How the chat template ends an answer, and a turn with calls; None for one that it does not render."""
        marks = {*self._tokenizer.added_tokens_decoder, *self._tokenizer.all_special_ids}

        def render(messages: Sequence[Message]) -> str:
            try:
                return self._template(self._messages.adapt(messages, "messages"), None, begin=False)
            except RenderingError:  # some templates want a system message first
                first: list[Message] = [SystemMessage(role="system", content="rolloutlabsystem"), *messages]
                return self._template(self._messages.adapt(first, "messages"), None, begin=False)

        def tokenize(text: str) -> list[tuple[int, str]]:
            return [(i, self._decode([i]) if i in marks else "") for i in self._encode(text)]

        answer = end_of_answers(render, tokenize, self._end_ids)
        known = self._end_ids | ({answer.token_id} if answer and answer.token_id is not None else set())
        return answer, end_of_calls(render, tokenize, known)

    def _before_sampled(self, text: str) -> str:
        """Return the text before a sampled turn, ending with the white space that the generation prompt ends with."""
        begun, space = self._generation_prompt
        stripped = text.rstrip()
        return stripped + space if begun is not None and stripped.endswith(begun) else text

    @cached_property
    def _generation_prompt(self) -> tuple[str | None, str]:
        """The text of the generation prompt, which may be empty or None if refused, and the white space at its end."""
        user = [{"role": "user", "content": "?"}]
        try:
            prompt, without = self._template(user, None), self._template(user, None, begin=False)
        except RenderingError:
            return None, ""
        stripped = prompt.rstrip()
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(stripped, without, strict=False)))
        return stripped[same:], prompt[len(stripped) :]

    def _text_without_end(self, ids: Sequence[int]) -> str:
        return self._decode(ids[:-1] if ids and ids[-1] in self._end_ids else ids)

    def _plain(self, messages: Sequence[Message], tools: Tools) -> tuple[list[dict[str, Any]], dict[int, list[int]]]:
        """Return the messages for the template, and the token ids of those that have some, by their index."""
        plain = self._messages.adapt(messages, "messages", tools)
        sampled = {i: m for i, m in enumerate(messages) if isinstance(m, AssistantMessage) and m.token_ids}
        wrong = [
            f"messages.{i}.token_ids: {why}" for i, message in sampled.items() if (why := self._find_wrong(message))
        ]
        if wrong:  # all of them, so that a client needs one more request and no more
            raise RenderingError("; ".join(wrong), hint="leave token_ids out")
        return plain, {i: message.token_ids or [] for i, message in sampled.items()}

    def _find_wrong(self, message: AssistantMessage) -> str | None:
        """Say what is wrong with the `token_ids` of a message; None if nothing is.

        If a stop string has cut the turn, ids of what it cut off may follow those of the text.
        """
        ids = message.token_ids or []
        if any(not 0 <= token_id < self._vocabulary for token_id in ids):
            return "not all of them are in the policy's vocabulary"
        return None if self._are_of(ids, message, ended=self._is_ended(ids)) else _NOT_OF_MESSAGE

    def _are_of(
        self, ids: Sequence[int], message: AssistantMessage | CompletionMessage, *, ended: bool = False
    ) -> bool:
        """Whether token ids are one turn with the text of a message. Calls are not compared here.

        ended: whether no stop string has cut the turn, so that nothing may follow the text of the message.
        """
        one_turn = all(token_id not in self._end_ids for token_id in ids[:-1])
        whole = self._text_without_end(ids)
        return one_turn and is_text_of(self.text(ids), whole, message, ended=ended, around_calls=self._around_calls)

    def _is_ended(self, ids: Sequence[int]) -> bool:
        """Whether the end of a turn was sampled, so that no stop string cut it, and its message has all of its text.

        False for a tokenizer with a `response_template`, which may leave any part of a text out of the message.
        """
        return bool(self._end_ids.intersection(ids[-1:])) and not getattr(self._tokenizer, "response_template", None)

    def _around_calls(self, text: str) -> list[str]:
        """Return the text around the calls in a text, with and without special tokens; nothing if it has no calls."""
        around, calls = self.call_form.split(text) if self.call_form else ("", [])
        return [around, self.text(self._encode(around))] if calls else []

    @cached_property
    def call_form(self) -> ToolCallFormat | MarkedCalls | None:
        """The form of calls that the chat template writes; None if it is not known."""
        example = self.call_example
        return infer_call_form(example, self._splicer.end_in(example.text)) if example else None

    @cached_property
    def call_example(self) -> CallExample | None:
        """A call as the chat template writes it; None if it writes none."""
        try:
            return call_example(self.render)
        except RenderingError:
            return None

    def _ids(self, sampled: Sequence[TokenLogprob], path: str) -> list[int]:
        """Find the ids of the sampled tokens of the Choice at a path. Raises RenderingError if one is unknown."""
        ids = []
        for k, entry in enumerate(sampled):
            if (token_id := self._id(entry)) is None or not 0 <= token_id < self._vocabulary:
                raise RenderingError(f"{path}: the token {k}, {entry.token!r}, is not in the policy's vocabulary")
            ids.append(token_id)
        return ids

    def _id(self, entry: TokenLogprob) -> int | None:
        """Find the id of a sampled token: by its `token_id`, a text `token_id:N`, its bytes, or its text."""
        token_id = entry.token_id if entry.token_id is not None else _named_id(entry.token)
        if token_id is None and entry.bytes:
            token_id = self._ids_by_bytes.get(tuple(entry.bytes))
        return self._ids_by_text.get(entry.token) if token_id is None else token_id

    def _is_token(self, token_id: int, entry: TokenLogprob) -> bool:
        """Whether a sampled token has the text, or the bytes, that its id has here."""
        text, raw = self.token(token_id)
        return entry.token == text or entry.bytes == raw

    @cached_property
    def _ids_by_bytes(self) -> dict[tuple[int, ...], int]:
        return {tuple(self.token(i)[1]): i for i in reversed(range(len(self._tokenizer)))}

    @cached_property
    def _ids_by_text(self) -> dict[str, int]:
        texts = {self.token(i)[0]: i for i in reversed(range(len(self._tokenizer)))}
        return {text: i for text, i in texts.items() if _REPLACEMENT not in text}


def _in_parts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with their content as one part of text each."""
    return [message | {"content": [{"type": "text", "text": message["content"]}]} for message in messages]


def _has_mark(item: Any) -> bool:
    """Whether the service that sampled a Choice has marked (`continues`) if its prompt had the tokens before it."""
    return isinstance((item.model_extra or {}).get("continues"), bool)


def _mark_reread(
    sequence: TokenSequence, unmarked: Collection[int], of_text: Callable[[int], list[int]]
) -> TokenSequence:
    """Set `reread` of a sequence: where its first turn begins that may have been sampled after other tokens.

    A turn without the service's mark may have been sampled after the text of earlier turns, tokenized anew. Only where
    these tokens differ from the sequence's does it matter. Later turns continue such a turn, marked or not.

    Args:
        sequence: The sequence.
        unmarked: The numbers of turns without a mark.
        of_text: Returns the tokens of the text before a turn.
    """
    turns = [turn for turn, _ in sequence.turns[1:] if turn in unmarked]
    if not turns:
        return sequence
    other = of_text(turns[-1])
    pairs = enumerate(zip(sequence.ids, other, strict=False))
    same = next((i for i, (own, read) in pairs if own != read), min(len(sequence), len(other)))
    starts = (start for turn, start in sequence.turns if turn >= turns[0] and start > same)
    return replace(sequence, reread=next(starts, None))


def _named_id(token: str) -> int | None:
    """Return the N of `token_id:N`, which vLLM can return instead of a text."""
    name, _, number = token.partition(":")
    return int(number) if name == "token_id" and number.isdecimal() and len(number) <= _MAX_ID_DIGITS else None
