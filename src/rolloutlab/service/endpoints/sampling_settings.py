"""Unsupported sampling settings and unknown fields of chat requests: which are refused, and which ignored.

A setting that would change the sampled tokens or the text of the response is refused, never ignored: tokens sampled
without it would train as if the policy's own distribution had been requested. Names and neutral values are those that
OpenAI, vLLM, SGLang, TGI, llama.cpp's server, Ollama, LM Studio, Hugging Face's `generate` and the larger hosted
services document for chats.
"""

import re
from typing import Any
from urllib.parse import quote

from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.errors import InputError

IGNORED = "x-rolloutlab-ignored"
"""Response header with the request fields that had no effect: percent-encoded names, separated by commas."""

_NAMES_BY_NEUTRAL_VALUES: tuple[tuple[tuple[Any, ...], str], ...] = (
    ((0,),
     "diversity_penalty dry_multiplier dynatemp_range encoder_no_repeat_ngram_size epsilon_cutoff eta_cutoff "
     "frequency_penalty k min_keep min_length min_new_tokens min_p min_tokens mirostat mirostat_mode n_indent "
     "n_keep n_probs no_repeat_ngram_size penalty_alpha presence_penalty smoothing_factor top_a top_n_tokens "
     "xtc_probability"),
    ((False,),
     "add_special_tokens ban_eos_token continue_final_message dynamic_temperature early_stopping echo "
     "enable_search grammar_lazy greedy ignore_eos include_stop_str_in_output no_stop_trim penalize_newline "
     "penalize_nl return_full_text safe_prompt temperature_last thinking_forced_open token_healing truncate "
     "use_beam_search watermark"),
    (([],),
     "allowed_token_ids bad_words bad_words_ids banned_strings banned_tokens begin_suppress_tokens documents "
     "exponential_decay_length_penalty force_words_ids functions grammar_triggers guided_choice "
     "logits_processor logits_processors lora plugins preserved_tokens sampler_order samplers stop_token_ids "
     "suppress_tokens transforms"),
    ((1,),
     "best_of candidate_count cfg_scale dynatemp_exponent encoder_repetition_penalty guidance_scale "
     "length_penalty n_cmpl num_beam_groups num_beams num_return_sequences p rep_pen repeat_penalty "
     "repetition_penalty smoothing_curve temp tfs tfs_z typical typical_p"),
    ((),
     "enable_thinking forced_bos_token_id forced_eos_token_id max_gen_len max_length max_new_tokens "
     "max_output_tokens max_time max_tokens_to_sample mirostat_lr mirostat_target prompt_truncate_len "
     "random_seed repetition_penalty_range sampling_seed think thinking_budget"),
    (({},),
     "audio chat_template_kwargs custom_params extra_body generation_config guided_decoding json_schema options "
     "prediction repetition_detection response_schema sampling_params structured_outputs thinking vllm_xargs "
     "watermarking_config web_search_options"),
    (("",),
     "adapter_id chat_template custom_logit_processor custom_token_bans ebnf format grammar grammar_string "
     "guided_grammar guided_regex guideline lora_path negative_prompt regex system_prompt tool_prompt"),
    (("", []), "prompt stop_regex stop_sequences stop_strings stop_words stopping_strings system"),
    ((-1,), "adaptive_target n_predict num_predict reasoning_budget thinking_token_budget truncate_prompt_tokens"),
    ((-1, 0), "dry_penalty_last_n t_max_predict_ms top_k top_n_sigma"),
    ((True,), "add_bos_token add_generation_prompt do_sample"),
    (("", {}), "guided_json structural_tag"),
    ((0.1,), "mirostat_eta xtc_threshold"),
    (({}, []), "logit_bias sequence_bias"),
    (("", "text/plain"), "response_mime_type"),
    (("error",), "context_length_exceeded_behavior"),
    (("none", "auto"), "function_call"),
    ((1.75,), "dry_base"),
    ((2,), "dry_allowed_length"),
    ((5,), "mirostat_tau"),
    ((64, -1, 0), "repeat_last_n"),
    (([], ["\n", ":", '"', "*"]), "dry_sequence_breakers"),
    (([], ["text"]), "modalities"),
    (({}, {"type": "text"}), "response_format"),
)  # fmt: skip
"""Settings of other services that change what is sampled, the prompt, or the text of the response, by the values at
which they change nothing. Null is the same as absent."""

_NEUTRAL = {name: values for values, names in _NAMES_BY_NEUTRAL_VALUES for name in names.split()}

_NAMES_BY_EQUIVALENT = {
    "a checkpoint's name as model": "adapter_id lora lora_path",
    "n": "candidate_count n_cmpl num_return_sequences",
    "temperature: 0": "do_sample greedy",
    "its fields beside messages": "extra_body generation_config options sampling_params",
    "tools": "functions",
    "max_tokens": "max_gen_len max_length max_new_tokens max_output_tokens max_tokens_to_sample n_predict num_predict",
    "top_logprobs": "n_probs top_n_tokens",
    "top_p": "p",
    "messages": "prompt",
    "seed": "random_seed sampling_seed",
    "stop": "stop_sequences stop_strings stop_words stopping_strings",
    "a message of the role system": "system system_prompt",
    "temperature": "temp",
}
"""What to type instead of settings that are offered under another name."""

_EQUIVALENT = {name: equivalent for equivalent, names in _NAMES_BY_EQUIVALENT.items() for name in names.split()}

_HARMLESS_NAMES = (
    "cache_prompt cache_salt include_reasoning metadata priority prompt_cache_key prompt_cache_options "
    "prompt_cache_retention request_id return_assistant_tokens_mask return_prompt_text return_token_ids "
    "return_token_offsets return_tokens_as_token_ids safety_identifier service_tier store user"
)
_HARMLESS = frozenset(_HARMLESS_NAMES.split())
"""Documented fields that do not change what is sampled; agent frameworks send them with every request."""

_REPORTED: dict[str, tuple[Any, ...]] = {
    "parallel_tool_calls": (True,), "skip_special_tokens": (True,), "spaces_between_special_tokens": (True,),
    "prompt_logprobs": (0, False), "verbosity": ("medium",),
    "prompts": (), "samples": (), "speed": (), "step": (), "stream_id": (), "tool": (),
}  # fmt: skip
"""Other known fields of services and frameworks. The header reports them, except at these values. They are listed so
that none is taken for a misspelt setting."""

_OFFERED = [name for name, field in ChatRequest.model_fields.items() if not field.is_required()]
_MAX_HEADER = 1000


def ignored_fields(body: ChatRequest) -> tuple[str, ...]:
    """Find the fields of a request that have no effect here and are not known to be harmless.

    Raises:
        InputError: an unsupported setting would change what is sampled, or a name is nearly that of a setting.
    """
    unknown = []
    for name, value in (body.model_extra or {}).items():
        if value is None or name in _HARMLESS or value in _REPORTED.get(name, ()):
            continue
        if name in _NEUTRAL:
            if value not in _NEUTRAL[name]:
                raise InputError(f"{name} is not offered by this service", hint=_replacement(name))
            continue
        setting = None if name in _REPORTED else _closest_setting(name)
        if setting and value not in _NEUTRAL.get(setting, ()):
            raise InputError(f"there is no setting {name!r}", hint=_correction(setting))
        unknown.append(name)
    return tuple(unknown)


def header(names: tuple[str, ...]) -> dict[str, str]:
    """Make the header with the ignored names, if there are any. A very long list is cut between two names."""
    text = ", ".join(quote(name, safe="", errors="replace") or '""' for name in names)
    if len(text) > _MAX_HEADER:
        text = text[:_MAX_HEADER].rpartition(", ")[0] or text[:_MAX_HEADER]
    return {IGNORED: text} if text else {}


def _replacement(name: str) -> str:
    """Say what to type instead of an unsupported setting."""
    if name in _EQUIVALENT:
        return f"leave {name} out, or type {_EQUIVALENT[name]}"
    numbers = [value for value in _NEUTRAL[name] if isinstance(value, int | float) and not isinstance(value, bool)]
    return f"leave {name} out, or {name}: {numbers[0]}" if numbers else f"leave {name} out"


def _correction(setting: str) -> str:
    """Say what to type instead of a misspelt setting."""
    if setting in _OFFERED:
        return f"{setting}, or leave it out"
    if setting in _EQUIVALENT:
        return f"{_EQUIVALENT[setting]}, or leave it out"
    return f"leave it out: {setting} is not offered either"


def _closest_setting(name: str) -> str | None:
    """Find the setting that a name misspells, within `_max_typos`. Case, hyphens and underscores do not count."""
    typed = _fold(name)
    distances = {own: _distance(typed, folded) for own, folded in _SETTINGS.items() if _may_be_close(typed, folded)}
    close = [own for own, distance in distances.items() if distance <= _max_typos(own, typed)]
    return min(close, key=lambda own: distances[own], default=None)


def _fold(name: str) -> str:
    return re.sub(r"[\W_]", "", name).casefold()


_SETTINGS = {name: _fold(name) for name in (*_OFFERED, *sorted(_NEUTRAL))}
_TYPOS = 2


def _max_typos(setting: str, typed: str) -> int:
    """Return how many typos are taken for a misspelling: none up to two letters, one up to five, two beyond.

    For a setting that is not offered, two count only from ten letters on.
    """
    shorter = min(len(_SETTINGS[setting]), len(typed))
    if shorter <= _TYPOS:
        return 0
    return 1 if shorter <= 5 or (setting in _NEUTRAL and shorter < 10) else _TYPOS


def _may_be_close(a: str, b: str) -> bool:
    """Test cheaply whether the distance can be at most two: each edit changes at most two letters of the sets."""
    return abs(len(a) - len(b)) <= _TYPOS and len(set(a) ^ set(b)) <= 2 * _TYPOS


def _distance(a: str, b: str) -> int:
    """Compute the Levenshtein distance."""
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != other))
    return row[-1]
