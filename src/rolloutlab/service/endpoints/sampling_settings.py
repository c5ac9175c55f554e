"""What a chat request may ask for besides what is offered: settings that change nothing, and fields that are ignored.

A setting that would change which tokens are sampled, or which text is answered, is refused, never ignored: what is
sampled under it would train as if it came from the policy's own distribution. Names and neutral values are those that
OpenAI, vLLM, SGLang, TGI, llama.cpp's server, Ollama, LM Studio, Hugging Face's `generate` and the larger hosted
services document for chats.
"""

import re
from typing import Any
from urllib.parse import quote

from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.errors import InputError

IGNORED = "x-rolloutlab-ignored"
"""The header of an answer that names the fields of its request that had no effect, percent-encoded, with commas."""

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "adapter_id": ("",),
    "adaptive_target": (-1,),
    "add_bos_token": (True,),
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "allowed_token_ids": ([],),
    "audio": ({},),
    "bad_words": ([],),
    "bad_words_ids": ([],),
    "ban_eos_token": (False,),
    "banned_strings": ([],),
    "banned_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "best_of": (1,),
    "candidate_count": (1,),
    "cfg_scale": (1,),
    "chat_template": ("",),
    "chat_template_kwargs": ({},),
    "context_length_exceeded_behavior": ("error",),
    "continue_final_message": (False,),
    "custom_logit_processor": ("",),
    "custom_params": ({},),
    "custom_token_bans": ("",),
    "diversity_penalty": (0,),
    "do_sample": (True,),
    "documents": ([],),
    "dry_allowed_length": (2,),
    "dry_base": (1.75,),
    "dry_multiplier": (0,),
    "dry_penalty_last_n": (-1, 0),
    "dry_sequence_breakers": ([], ["\n", ":", '"', "*"]),
    "dynamic_temperature": (False,),
    "dynatemp_exponent": (1,),
    "dynatemp_range": (0,),
    "early_stopping": (False,),
    "ebnf": ("",),
    "echo": (False,),
    "enable_search": (False,),
    "enable_thinking": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": ([],),
    "extra_body": ({},),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "format": ("",),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "generation_config": ({},),
    "grammar": ("",),
    "grammar_lazy": (False,),
    "grammar_string": ("",),
    "grammar_triggers": ([],),
    "greedy": (False,),
    "guidance_scale": (1,),
    "guided_choice": ([],),
    "guided_decoding": ({},),
    "guided_grammar": ("",),
    "guided_json": ("", {}),
    "guided_regex": ("",),
    "guideline": ("",),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "json_schema": ({},),
    "k": (0,),
    "length_penalty": (1,),
    "logit_bias": ({}, []),
    "logits_processor": ([],),
    "logits_processors": ([],),
    "lora": ([],),
    "lora_path": ("",),
    "max_gen_len": (),
    "max_length": (),
    "max_new_tokens": (),
    "max_output_tokens": (),
    "max_time": (),
    "max_tokens_to_sample": (),
    "min_keep": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "min_p": (0,),
    "min_tokens": (0,),
    "mirostat": (0,),
    "mirostat_eta": (0.1,),
    "mirostat_lr": (),
    "mirostat_mode": (0,),
    "mirostat_target": (),
    "mirostat_tau": (5,),
    "modalities": ([], ["text"]),
    "n_cmpl": (1,),
    "n_indent": (0,),
    "n_keep": (0,),
    "n_predict": (-1,),
    "n_probs": (0,),
    "negative_prompt": ("",),
    "no_repeat_ngram_size": (0,),
    "no_stop_trim": (False,),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "num_predict": (-1,),
    "num_return_sequences": (1,),
    "options": ({},),
    "p": (1,),
    "penalize_newline": (False,),
    "penalize_nl": (False,),
    "penalty_alpha": (0,),
    "plugins": ([],),
    "prediction": ({},),
    "presence_penalty": (0,),
    "preserved_tokens": ([],),
    "prompt": ("", []),
    "prompt_truncate_len": (),
    "random_seed": (),
    "reasoning_budget": (-1,),
    "regex": ("",),
    "rep_pen": (1,),
    "repeat_last_n": (64, -1, 0),
    "repeat_penalty": (1,),
    "repetition_detection": ({},),
    "repetition_penalty": (1,),
    "repetition_penalty_range": (),
    "response_format": ({}, {"type": "text"}),
    "response_mime_type": ("", "text/plain"),
    "response_schema": ({},),
    "return_full_text": (False,),
    "safe_prompt": (False,),
    "sampler_order": ([],),
    "samplers": ([],),
    "sampling_params": ({},),
    "sampling_seed": (),
    "sequence_bias": ({}, []),
    "smoothing_curve": (1,),
    "smoothing_factor": (0,),
    "stop_regex": ("", []),
    "stop_sequences": ("", []),
    "stop_strings": ("", []),
    "stop_token_ids": ([],),
    "stop_words": ("", []),
    "stopping_strings": ("", []),
    "structural_tag": ("", {}),
    "structured_outputs": ({},),
    "suppress_tokens": ([],),
    "system": ("", []),
    "system_prompt": ("",),
    "t_max_predict_ms": (-1, 0),
    "temp": (1,),
    "temperature_last": (False,),
    "tfs": (1,),
    "tfs_z": (1,),
    "think": (),
    "thinking": ({},),
    "thinking_budget": (),
    "thinking_forced_open": (False,),
    "thinking_token_budget": (-1,),
    "token_healing": (False,),
    "tool_prompt": ("",),
    "top_a": (0,),
    "top_k": (-1, 0),
    "top_n_sigma": (-1, 0),
    "top_n_tokens": (0,),
    "transforms": ([],),
    "truncate": (False,),
    "truncate_prompt_tokens": (-1,),
    "typical": (1,),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermark": (False,),
    "watermarking_config": ({},),
    "web_search_options": ({},),
    "xtc_probability": (0,),
    "xtc_threshold": (0.1,),
}
"""Settings of other services that change what is sampled, the prompt it is sampled from, or the text that is answered,
and the values at which each does not. Null is the same as absent."""

_EQUAL = {
    "adapter_id": "a checkpoint's name as model",
    "candidate_count": "n",
    "do_sample": "temperature: 0",
    "extra_body": "its fields beside messages",
    "functions": "tools",
    "generation_config": "its fields beside messages",
    "greedy": "temperature: 0",
    "lora": "a checkpoint's name as model",
    "lora_path": "a checkpoint's name as model",
    "max_gen_len": "max_tokens",
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_tokens_to_sample": "max_tokens",
    "n_cmpl": "n",
    "n_predict": "max_tokens",
    "n_probs": "top_logprobs",
    "num_predict": "max_tokens",
    "num_return_sequences": "n",
    "options": "its fields beside messages",
    "p": "top_p",
    "prompt": "messages",
    "random_seed": "seed",
    "sampling_params": "its fields beside messages",
    "sampling_seed": "seed",
    "stop_sequences": "stop",
    "stop_strings": "stop",
    "stop_words": "stop",
    "stopping_strings": "stop",
    "system": "a message of the role system",
    "system_prompt": "a message of the role system",
    "temp": "temperature",
    "top_n_tokens": "top_logprobs",
}
"""What to type for those that are offered in another way."""

_WITHOUT_EFFECT = frozenset(
    {
        "cache_prompt",
        "cache_salt",
        "include_reasoning",
        "metadata",
        "priority",
        "prompt_cache_key",
        "prompt_cache_options",
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

_NAMED: dict[str, tuple[Any, ...]] = {
    "parallel_tool_calls": (True,),
    "prompt_logprobs": (0, False),
    "prompts": (),
    "samples": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "speed": (),
    "step": (),
    "stream_id": (),
    "tool": (),
    "verbosity": ("medium",),
}
"""Other fields of services and of frameworks, which are named in the header but at these values. They are listed so
that none is taken for a slip."""

_OFFERED = [name for name, field in ChatRequest.model_fields.items() if not field.is_required()]
_LONGEST_HEADER = 1000


def ignored(body: ChatRequest) -> tuple[str, ...]:
    """The names of a request's fields that have no effect here and are not known to be harmless.

    Raises:
        InputError: a setting would change what is sampled and is not offered, or a name is nearly that of a setting.
    """
    unknown = []
    for name, value in (body.model_extra or {}).items():
        if value is None or name in _WITHOUT_EFFECT or value in _NAMED.get(name, ()):
            continue
        if name in _NEUTRAL:
            if value not in _NEUTRAL[name]:
                raise InputError(f"{name} is not offered by this service", hint=_typed(name))
            continue
        meant = None if name in _NAMED else _nearly(name)
        if meant and value not in _NEUTRAL.get(meant, ()):
            raise InputError(f"there is no setting {name!r}", hint=_meant(meant))
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
    if name in _EQUAL:
        return f"leave {name} out, or type {_EQUAL[name]}"
    numbers = [value for value in _NEUTRAL[name] if isinstance(value, int | float) and not isinstance(value, bool)]
    return f"leave {name} out, or {name}: {numbers[0]}" if numbers else f"leave {name} out"


def _meant(name: str) -> str:
    """What to type instead of a name that was probably meant to be this one."""
    if name in _OFFERED:
        return f"{name}, or leave it out"
    return f"{_EQUAL[name]}, or leave it out" if name in _EQUAL else f"leave it out: {name} is not offered either"


def _nearly(name: str) -> str | None:
    """The setting that a name was probably meant to be, but for upper case, hyphens, underscores and a slip or two."""
    typed = _folded(name)
    distances = {own: _distance(typed, folded) for own, folded in _SETTINGS.items() if _comparable(typed, folded)}
    close = [own for own, wrong in distances.items() if wrong <= _most_slips(own, typed)]
    return min(close, key=lambda own: distances[own], default=None)


def _folded(name: str) -> str:
    return re.sub(r"[\W_]", "", name).casefold()


_SETTINGS = {name: _folded(name) for name in (*_OFFERED, *_NEUTRAL)}
_SLIPS = 2


def _most_slips(own: str, typed: str) -> int:
    """How many letters may be wrong: none of two, one of five, two of more; of what is not offered, two of ten."""
    shorter = min(len(_SETTINGS[own]), len(typed))
    if shorter <= _SLIPS:
        return 0
    return 1 if shorter <= 5 or (own in _NEUTRAL and shorter < 10) else _SLIPS


def _comparable(a: str, b: str) -> bool:
    """Whether two names can be within two slips of each other, quickly: each changes at most two of the letters."""
    return abs(len(a) - len(b)) <= _SLIPS and len(set(a) ^ set(b)) <= 2 * _SLIPS


def _distance(a: str, b: str) -> int:
    """Insertions, deletions and substitutions that make one text of the other (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != other))
    return row[-1]
