"""Why an answer ended: the words of each server, and which finish reason of the specification is meant."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]

_WORDS: dict[str, str] = {
    **dict.fromkeys(
        # the words of OpenAI and most, text-generation-inference, Anthropic and Cohere
        ("stop", "stopped", "eos", "eos_token", "end", "end_turn", "end_of_turn", "end_of_text", "stop_sequence",
         "stop_token", "stop_str", "complete", "completed", "finish", "finished", "done"),
        "stop",
    ),
    **dict.fromkeys(("tool_calls", "tool_call", "tool_use", "tools", "function_call"), "tool_calls"),
    "error_limit": "length",  # Cohere: at the end of the model's context
    "error_toxic": "content_filter",  # Cohere
}  # fmt: skip
"""Whole words that the patterns below would miss, or read otherwise."""

_PATTERNS = (
    # OpenRouter's `error`, Zhipu's `network_error`; vLLM turns its own into a 500
    ("failed", r"error|fail|exception|overload|unavailable|rate_limit|quota"),
    # Gemini's SAFETY, RECITATION, BLOCKLIST, PROHIBITED_CONTENT and SPII, Bedrock's guardrail_intervened, Anthropic's
    # refusal, Zhipu's sensitive
    (
        "content_filter",
        r"content_filter|safety|block|guardrail|moderat|prohibit|policy|refus|recitation|toxic|sensitive|spii|jailbreak"
        r"|armor|censor",
    ),
    # vLLM's abort and repetition, SGLang's abort, TensorRT-LLM's timeout and cancelled, DeepSeek's
    # insufficient_system_resource, Anthropic's pause_turn, Gemini's MALFORMED_FUNCTION_CALL, LANGUAGE and OTHER
    (
        "broken_off",
        r"abort|cancel|time|interrupt|malformed|unexpected|too_many|pause|repetition|insufficient|preempt|shutdown"
        r"|disconnect|incomplete|language|^other$",
    ),
    # Anthropic's max_tokens and model_context_window_exceeded, Mistral's model_length
    ("length", r"length|limit|max_|token|context"),
    ("tool_calls", r"tool|function"),
)
"""The first match counts: Gemini's `MALFORMED_FUNCTION_CALL` is no tool call, and `time_limit` is no length."""


@dataclass(frozen=True)
class Ending:
    """How an answer ended.

    Attributes:
        reason: The nearest finish reason of the specification; None if the request failed.
        note: A sentence for the user; None if the reason says all.
        broken_off: Whether the service broke the answer off, and not a limit.
    """

    reason: FinishReason | None
    note: str | None = None
    broken_off: bool = False


def ending_of(reported: Any) -> Ending:
    """Find the ending for a finish reason of any server. reported: None or "" if the server gives none."""
    return _find_ending(_text(reported))


@lru_cache(maxsize=256)
def _find_ending(reported: str) -> Ending:
    """Find the ending for a word. It is cached, as it is needed several times per answer, and servers use few words."""
    word = _normalize(reported)
    if not word:
        return Ending("stop", "the service does not say why this answer ended; it counts as whole")
    if word == "function_call":
        return Ending("function_call")
    match _WORDS.get(word) or next((kind for kind, pattern in _PATTERNS if re.search(pattern, word)), None):
        case "stop":
            return Ending("stop")
        case "tool_calls":
            return Ending("tool_calls")
        case "length":
            return Ending("length")
        case "content_filter":
            return Ending("content_filter", f"the service's content filter ended this answer{_quote(reported, word)}")
        case "broken_off":
            return Ending("length", f"the service broke off this answer{_quote(reported, word)}", broken_off=True)
        case "failed":
            return Ending(None)
    note = f"the service ended this answer with {reported!r}, whose meaning is not known; it counts as whole"
    return Ending("stop", note)


def _normalize(reported: str) -> str:
    """Write a reason in lower case, its parts joined by `_`: `max_tokens` for `FinishReason.MAX_TOKENS`."""
    parts = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", reported).lower()
    return re.sub(r"[^a-z0-9]+", "_", parts).strip("_").removeprefix("finish_reason_")


def _text(reported: Any) -> str:
    if isinstance(reported, dict) and isinstance(reported.get("type"), str):  # SGLang's own API
        reported = reported["type"]
    return "" if reported is None else str(reported)[:100]


def _quote(reported: str, word: str) -> str:
    return "" if word == "content_filter" else f" ({reported})"
