"""Adapter folders, as TRL and peft save them: an adapter beside a tokenizer, of a base model that is elsewhere."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase
from transformers.utils.peft_utils import find_adapter_config_file

from rolloutlab.errors import PolicyError

_KEYS_SHOWN = 3


def base_of_adapter(source: str, name: str) -> str | None:
    """The base model that an adapter folder names; None where the source is no such folder.

    Raises:
        PolicyError: it names none, as in a checkpoint of a service. name: of the policy, for errors.
    """
    path = find_adapter_config_file(source)
    if path is None:
        return None
    base = json.loads(Path(path).read_text()).get("base_model_name_or_path")
    if not base:
        message = f"the policy {name!r} is an adapter, and its adapter_config.json names no base model"
        raise PolicyError(message, hint="base_model_name_or_path in it: the folder or hub name of its base")
    return str(base)


def load_merged(source: str, base: str, name: str, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype) -> Any:
    """The base model with the adapter merged into its weights, so that checkpoint 0 is what the adapter is.

    Raises:
        PolicyError: the base is not there, or the adapter is of another one or of a kind that cannot be merged.
    """
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    except (OSError, ValueError) as error:
        message = (
            f"the policy {name!r} is an adapter of {base!r}, which could not be loaded: {str(error).splitlines()[0]}"
        )
        raise PolicyError(message, hint="base_model_name_or_path in adapter_config.json: where its base is") from error
    try:
        kind = PeftConfig.from_pretrained(source).task_type
        if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:  # tokens that were added in training
            model.resize_token_embeddings(len(tokenizer))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is checked below
            adapted = PeftModel.from_pretrained(model, source)
            loaded = adapted.load_adapter(source, adapter_name="default")
        merged = adapted.merge_and_unload(safe_merge=True)
    except Exception as error:  # peft has an error for each way in which an adapter may not fit
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise _unmerged(name, base, why) from error
    if kind not in {None, "CAUSAL_LM"}:
        raise _unmerged(name, base, f"it is for {kind}, not for CAUSAL_LM")
    if odd := [*loaded.unexpected_keys, *(key for key in loaded.missing_keys if "lora_" in key)]:
        raise _unmerged(name, base, f"it has other layers: {', '.join(odd[:_KEYS_SHOWN])}")
    return merged


def _unmerged(name: str, base: str, why: str) -> PolicyError:
    message = f"the adapter of the policy {name!r} cannot be merged into {base!r}: {why}"
    return PolicyError(message, hint="a LoRA adapter for text generation of that base, or a merged model")


def merge_command(source: str) -> str:
    """What to type to have a folder with the merged model."""
    return (
        "from peft import PeftModel; from transformers import AutoModelForCausalLM as M, AutoTokenizer as T;"
        f" import json; p = {source!r}; b = json.load(open(p + '/adapter_config.json'))['base_model_name_or_path'];"
        " PeftModel.from_pretrained(M.from_pretrained(b), p).merge_and_unload().save_pretrained(p + '-merged');"
        " T.from_pretrained(p).save_pretrained(p + '-merged')"
    )
