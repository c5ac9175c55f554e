"""Chat messages, choices and completions (specification: "Message kinds" to "Tools and calls")."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from rolloutlab.api.wire.base import Boolean, Integer, Items, ListedWire, Number, Wire, without_nulls
from rolloutlab.api.wire.endings import FinishReason, ending_of


class TextPart(Wire):
    type: Literal["text"]
    text: str


class ImageUrl(Wire):
    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(Wire):
    type: Literal["image_url"]
    image_url: ImageUrl


class InputAudio(Wire):
    data: str
    format: Literal["wav", "mp3"]


class InputAudioPart(Wire):
    type: Literal["input_audio"]
    input_audio: InputAudio


class File(Wire):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class FilePart(Wire):
    type: Literal["file"]
    file: File


class RefusalPart(Wire):
    type: Literal["refusal"]
    refusal: str


class FunctionDefinition(Wire):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: Boolean | None = None


class FunctionTool(Wire):
    """ChatCompletionFunctionToolParam of the specification."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionCall(Wire):
    name: str
    arguments: str


class FunctionToolCall(Wire):
    id: str
    type: Literal["function"]
    function: FunctionCall


class CustomCall(Wire):
    name: str
    input: str


class CustomToolCall(Wire):
    id: str
    type: Literal["custom"]
    custom: CustomCall


ToolCall = Annotated[FunctionToolCall | CustomToolCall, Field(discriminator="type")]


def _text_or_parts(content: Any) -> str:
    return "text" if isinstance(content, str) else "parts"


_BY_SHAPE = Discriminator(_text_or_parts)
"""Distinguishes a string from an array of parts by shape, so that errors are about one of them only."""

Text = Annotated[str, Tag("text")]
UserPart = Annotated[TextPart | ImagePart | InputAudioPart | FilePart, Field(discriminator="type")]
AssistantPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
TextContent = Annotated[Text | Annotated[Items[TextPart], Tag("parts")], _BY_SHAPE]
UserContent = Annotated[Text | Annotated[Items[UserPart], Tag("parts")], _BY_SHAPE]
AssistantContent = Annotated[Text | Annotated[Items[AssistantPart], Tag("parts")], _BY_SHAPE]


class DeveloperMessage(Wire):
    role: Literal["developer"]
    content: TextContent
    name: str | None = None


class SystemMessage(Wire):
    role: Literal["system"]
    content: TextContent
    name: str | None = None


class UserMessage(Wire):
    role: Literal["user"]
    content: UserContent
    name: str | None = None


class Audio(Wire):
    id: str


class AssistantMessage(Wire):
    """An assistant turn that is context only: it carries no logprobs and is never trained.

    `token_ids` is this project's addition: the vocabulary indices that were sampled for this turn, its end included.
    A service that lists them among what it reads continues from these instead of from a tokenization of the text.
    """

    role: Literal["assistant"]
    content: AssistantContent | None = None
    refusal: str | None = None
    name: str | None = None
    audio: Audio | None = None
    tool_calls: Items[ToolCall] | None = None
    function_call: FunctionCall | None = None
    reasoning_content: str | None = None
    token_ids: Items[Integer] | None = None


class ToolMessage(Wire):
    role: Literal["tool"]
    content: TextContent
    tool_call_id: str


class FunctionMessage(Wire):
    role: Literal["function"]
    content: str | None
    name: str


class TopLogprob(ListedWire):
    token: str
    logprob: Number
    bytes: Items[Integer] | None = None


class TokenLogprob(ListedWire):
    """One sampled token; `logprob` is of the unscaled full-vocabulary distribution, in nats.

    Two fields are this project's additions. `token_id`: the sampled vocabulary index, so that nothing is tokenized
    again. `forced`: true if the token was not sampled but inserted, because `tool_choice` requires a call.
    """

    token: str
    logprob: Number
    top_logprobs: Items[TopLogprob]
    bytes: Items[Integer] | None = None
    token_id: Integer | None = None
    forced: Boolean | None = None


def _tokens_without_nulls(sent: Any) -> Any:
    """Remove the nulls in optional fields of tokens and of their `top_logprobs`."""
    if type(sent) is not list:
        return sent
    try:
        nulls = any([None in token.values() for token in sent])  # noqa: C419 - a generator takes twice as long
        nulls = nulls or any(None in top.values() for token in sent for top in token["top_logprobs"])
    except (AttributeError, KeyError, TypeError):  # they are validated already, or will be reported as invalid
        nulls = True
    return [_token_without_nulls(token) for token in sent] if nulls else sent


def _token_without_nulls(sent: Any) -> Any:
    token = without_nulls(TokenLogprob, sent)
    top = token.get("top_logprobs") if isinstance(token, Mapping) else None
    if not isinstance(top, list | tuple):
        return token
    return {**token, "top_logprobs": [without_nulls(TopLogprob, each) for each in top]}


Tokens = Annotated[Items[TokenLogprob], BeforeValidator(_tokens_without_nulls)]


class ChoiceLogprobs(Wire):
    content: Tokens | None = None
    refusal: Tokens | None = None


class UrlCitation(Wire):
    start_index: Integer
    end_index: Integer
    title: str
    url: str


class Annotation(Wire):
    type: Literal["url_citation"]
    url_citation: UrlCitation


class CompletionAudio(Wire):
    """ChatCompletionAudio of the specification."""

    id: str
    data: str
    expires_at: Integer
    transcript: str


class CompletionMessage(Wire):
    """ChatCompletionMessage of the specification.

    `reasoning_content` is the reasoning before the content, named as by DeepSeek and vLLM.
    """

    role: Literal["assistant"]
    content: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: Items[Annotation] | None = None
    audio: CompletionAudio | None = None
    function_call: FunctionCall | None = None
    tool_calls: Items[ToolCall] | None = None


REPORTED = "reported_finish_reason"
"""The property of a Choice that keeps the finish reason of its service, if the specification does not have it."""


class Choice(Wire):
    """One sampled completion. With `logprobs` it is trainable; without, it is context."""

    finish_reason: FinishReason
    index: Integer
    logprobs: ChoiceLogprobs | None = None
    message: CompletionMessage

    def sampled_tokens(self) -> list[TokenLogprob]:
        """Return the sampled tokens with the end-of-turn token: non-empty `content`, else `refusal`, else none."""
        if self.logprobs is None:
            return []
        return self.logprobs.content or self.logprobs.refusal or []

    @property
    def ending_note(self) -> str | None:
        """A sentence for the user about how it ended, if `finish_reason` does not say all; None for most choices."""
        return ending_of((self.model_extra or {}).get(REPORTED, self.finish_reason)).note

    def trained_tokens(self) -> list[TokenLogprob]:
        """Return the tokens that train: the sampled ones without forced ones, which the policy did not choose."""
        return [token for token in self.sampled_tokens() if not token.forced]


_REASONS = list(get_args(FinishReason))


def cut_off(item: Any) -> str | None:
    """Return the finish reason of an answer that was cut off; None if it came to its end, or has no finish reason.

    item: a Choice, or a message or other object with the `finish_reason` of a server.
    """
    further = item.model_extra or {}
    word = further.get(REPORTED, item.finish_reason) if isinstance(item, Choice) else further.get("finish_reason")
    cut = isinstance(word, str) and ending_of(word).reason in {"length", "content_filter", None}
    return word if cut else None


ROLES = ("developer", "system", "user", "assistant", "tool", "function")


_OF_MESSAGES = {"content", "refusal", "audio", "tool_calls", "function_call", "tool_call_id"}


def kind(item: Any) -> str | None:
    """Find the kind of a conversation item: its role, or `choice` for one with `finish_reason` and `message`."""
    # a message may have unknown properties of those names, but it has a role and a field of messages as well
    if isinstance(item, Wire):
        return "choice" if isinstance(item, Choice) else getattr(item, "role", None)
    if not isinstance(item, Mapping):
        return None
    marks = ("message" in item) + ("finish_reason" in item)
    role = item.get("role") if item.get("role") in ROLES else None
    if marks == 2 and not (role and item.keys() & _OF_MESSAGES):
        return "choice"
    return "choice" if marks and "role" not in item else role


_MESSAGES = (
    Annotated[DeveloperMessage, Tag("developer")]
    | Annotated[SystemMessage, Tag("system")]
    | Annotated[UserMessage, Tag("user")]
    | Annotated[AssistantMessage, Tag("assistant")]
    | Annotated[ToolMessage, Tag("tool")]
    | Annotated[FunctionMessage, Tag("function")]
)

_BY_ROLE = Discriminator(
    kind,
    custom_error_type="unknown_role",
    custom_error_message="role must be one of " + ", ".join(ROLES),
    custom_error_context={"field": "role"},
)

Message = Annotated[_MESSAGES, _BY_ROLE]
MessageOrChoice = Annotated[_MESSAGES | Annotated[Choice, Tag("choice")], _BY_ROLE]


class NamedFunction(Wire):
    name: str


class NamedToolChoice(Wire):
    """The choice of one function."""

    type: Literal["function"]
    function: NamedFunction


class StreamOptions(Wire):
    include_usage: Boolean = False


Stop = Annotated[str, Field(min_length=1)]
_Stops = Annotated[Annotated[str, Tag("text")] | Annotated[list[Stop], Field(max_length=4), Tag("parts")], _BY_SHAPE]
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("text")] | Annotated[NamedToolChoice, Tag("parts")], _BY_SHAPE
]


class ChatRequest(Wire):
    """Body of `POST {inference_base_url}/chat/completions`."""

    model: str
    messages: Items[Message] = Field(min_length=1)
    n: Integer = Field(default=1, ge=1, le=1024)
    temperature: Number = Field(default=1.0, ge=0, le=2)
    top_p: Number = Field(default=1.0, gt=0, le=1)
    max_tokens: Integer | None = Field(default=None, ge=1)
    max_completion_tokens: Integer | None = Field(default=None, ge=1)
    stop: _Stops | None = None
    seed: Integer | None = None
    logprobs: Boolean | None = None
    top_logprobs: Integer = Field(default=0, ge=0, le=20)
    tools: Items[FunctionTool] | None = None
    tool_choice: ToolChoice | None = None
    stream: Boolean = False
    stream_options: StreamOptions | None = None

    def stops(self) -> tuple[str, ...]:
        """Return the stop strings. An empty string, which forms of clients send, means that there are none."""
        stop = [self.stop] if isinstance(self.stop, str) and self.stop else self.stop
        return tuple(stop or ())


class Usage(Wire):
    """Counts of tokens."""

    prompt_tokens: Integer
    completion_tokens: Integer
    total_tokens: Integer


class AnsweredChoice(Choice):
    """A Choice of a response, whose `finish_reason` may be any word, or absent.

    A reason that training jobs do not accept is kept as `reported_finish_reason`; `finish_reason` is the nearest that
    they accept.
    """

    @model_validator(mode="before")
    @classmethod
    def _known_reason(cls, sent: Any) -> Any:
        if not isinstance(sent, Mapping) or sent.get("finish_reason") in _REASONS:
            return sent
        if (reported := sent.get("finish_reason")) is not None and not isinstance(reported, str | Mapping):
            return sent
        return {**sent, "finish_reason": ending_of(reported).reason, REPORTED: reported}


class ChatCompletion(Wire):
    """Response of chat completions; `created` is in seconds since the epoch."""

    id: str
    object: Literal["chat.completion"]
    created: Integer
    model: str
    choices: Items[AnsweredChoice]
    usage: Usage | None = None


class ToolCallDelta(FunctionToolCall):
    """A tool call of a stream; it comes whole. `index` is its place among the calls of the message."""

    index: Integer


class Delta(Wire):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | None = None
    reasoning_content: str | None = None
    content: str | None = None
    tool_calls: Items[ToolCallDelta] | None = None


class ChunkChoice(Wire):
    index: Integer
    delta: Delta
    finish_reason: FinishReason | None = None
    logprobs: ChoiceLogprobs | None = None


class ChatCompletionChunk(Wire):
    """One `data:` of a streamed chat completion; `created` is in seconds since the epoch."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Integer
    model: str
    choices: Items[ChunkChoice]
    usage: Usage | None = None
