"""What a chat request may ask for besides what is offered: settings that change nothing, and fields that are ignored.

A setting that would change which tokens are sampled is refused, never ignored: what is sampled under it would train as
if it came from the policy's own distribution. Names and neutral values are those that OpenAI, vLLM, SGLang and
llama.cpp document for chat completions.
"""

from typing import Any
from urllib.parse import quote

from rolloutlab.errors import InputError
from rolloutlab.wire.chat import ChatRequest

IGNORED = "x-rolloutlab-ignored"
"""The header of an answer that names the fields of its request that had no effect, percent-encoded, with commas."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "allowed_token_ids": ([],),
    "audio": ({},),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": ("",),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "ebnf": ("",),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "grammar": ("",),
    "guided_choice": ([],),
    "guided_grammar": ("",),
    "guided_json": ("", {}),
    "guided_regex": ("",),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "json_schema": ({},),
    "length_penalty": (1,),
    "logit_bias": ({}, []),
    "min_p": (0,),
    "min_tokens": (0,),
    "mirostat": (0,),
    "modalities": ([], ["text"]),
    "no_repeat_ngram_size": (0,),
    "prediction": ({},),
    "presence_penalty": (0,),
    "regex": ("",),
    "repeat_penalty": (1,),
    "repetition_detection": ({},),
    "repetition_penalty": (1,),
    "response_format": ({}, {"type": "text"}),
    "stop_regex": ("", []),
    "stop_token_ids": ([],),
    "structured_outputs": ({},),
    "tfs_z": (1,),
    "thinking_token_budget": (-1,),
    "top_a": (0,),
    "top_k": (-1, 0),
    "top_n_sigma": (-1, 0),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "web_search_options": ({},),
    "xtc_probability": (0,),
}
"""Settings of other services that change what is sampled, or the prompt it is sampled from, and the values at which
each does not. Null is the same as absent."""

_WITHOUT_EFFECT = frozenset(
    {
        "cache_salt",
        "include_reasoning",
        "metadata",
        "parallel_tool_calls",
        "priority",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "return_assistant_tokens_mask",
        "return_prompt_text",
        "return_token_ids",
        "return_token_offsets",
        "return_tokens_as_token_ids",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Documented fields that change nothing of what is sampled; agent frameworks send them with every request."""

_SETTINGS = [name for name, field in ChatRequest.model_fields.items() if not field.is_required()]
_CLOSE = 2
_LONGEST_HEADER = 1000


def ignored(body: ChatRequest) -> tuple[str, ...]:
    """The names of a request's fields that have no effect here and are not known to be harmless.

    Raises:
        InputError: a setting would change what is sampled and is not offered, or a name is nearly one that is.
    """
    unknown = []
    for name, value in (body.model_extra or {}).items():
        if value is None or name in _WITHOUT_EFFECT:
            continue
        if name in _NEUTRAL:
            if value not in _NEUTRAL[name]:
                raise InputError(f"{name} is not offered by this service", hint=_typed(name))
        elif meant := _nearly(name):
            raise InputError(f"there is no setting {name!r}", hint=f"{meant}, or leave it out")
        else:
            unknown.append(name)
    return tuple(unknown)


def header(names: tuple[str, ...]) -> dict[str, str]:
    """The header that names what was ignored; none where nothing was. A very long list is cut between two names."""
    text = ", ".join(quote(name, safe="", errors="replace") or '""' for name in names)
    if len(text) > _LONGEST_HEADER:
        text = text[:_LONGEST_HEADER].rpartition(", ")[0] or text[:_LONGEST_HEADER]
    return {IGNORED: text} if text else {}


def _typed(name: str) -> str:
    """What to type instead of a setting that is refused."""
    numbers = [value for value in _NEUTRAL[name] if isinstance(value, int) and not isinstance(value, bool)]
    return f"leave {name} out, or {name}: {numbers[0]}" if numbers else f"leave {name} out"


def _nearly(name: str) -> str | None:
    """The offered setting that a name was probably meant to be: at most two letters are wrong, and not all of them."""
    distances = {own: _distance(name, own) for own in _SETTINGS if abs(len(own) - len(name)) <= _CLOSE}
    close = [own for own, wrong in distances.items() if wrong <= min(_CLOSE, len(own) - 1)]
    return min(close, key=lambda own: distances[own], default=None)


def _distance(a: str, b: str) -> int:
    """Insertions, deletions and substitutions that make one text of the other (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != other))
    return row[-1]
