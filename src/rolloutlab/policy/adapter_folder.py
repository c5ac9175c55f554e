"""Adapter folders, as TRL and peft save them: an adapter beside a tokenizer, of a base model that is elsewhere."""

import json
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import load_peft_weights
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.peft_utils import find_adapter_config_file

from rolloutlab.errors import PolicyError

_KEYS_SHOWN = 3
_TOKENS_COMPARED = 8
_ROUNDING = 0.3, 0.01
"""How far the logits of a merged model may be from those of the adapter, relative to their norm: in bf16, and in fp32.

Shared weights that are changed twice are off by 1 and more.
"""


def base_of_adapter(source: str, name: str) -> str | None:
    """Return the base model that an adapter folder names; None if the source is no adapter folder.

    Raises:
        PolicyError: the folder names no base, as a checkpoint of a service does not. Its message has `name`.
    """
    path = find_adapter_config_file(source)
    if path is None:
        return None
    base = json.loads(Path(path).read_text()).get("base_model_name_or_path")
    if not base:
        message = f"the policy {name!r} is an adapter, and its adapter_config.json names no base model"
        raise PolicyError(message, hint="base_model_name_or_path in it: the folder or hub name of its base")
    return _base_path(str(base), Path(path).parent)


def _base_path(base: str, folder: Path) -> str:
    """Return where a base is. A relative path may start in the working folder, the adapter's, or that one's parent."""
    return next((str(each) for each in (Path(base), folder / base, folder.parent / base) if each.is_dir()), base)


def load_merged(source: str, base: str, name: str, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype) -> Any:
    """Load the base model and merge the adapter into its weights, so that checkpoint 0 samples as the adapter does.

    Args:
        source: The adapter folder.
        base: The folder or hub name of the base.
        name: The name of the policy, for errors.
        tokenizer: The adapter's tokenizer, which may have more tokens than the base.
        dtype: The dtype of the loaded weights.

    Raises:
        PolicyError: the base is not there, or the adapter is of another one or of a kind that cannot be merged.
    """
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    except (OSError, ValueError) as error:
        why = "there is no such folder" if _is_path(base) and not Path(base).is_dir() else str(error).splitlines()[0]
        message = f"the policy {name!r} is an adapter of {base!r}, which could not be loaded: {why}"
        raise PolicyError(message, hint="base_model_name_or_path in adapter_config.json: where its base is") from error
    return merge_adapter(model, source, base, name, tokens=len(tokenizer))


def merge_adapter(model: Any, source: str, base: str, name: str, *, tokens: int = 0) -> Any:
    """Merge the adapter of a folder into the weights of a model, in place.

    Args:
        model: The base, which is changed.
        source: The adapter folder.
        base: The name of the base, for errors.
        name: The name of the adapter, for errors.
        tokens: The size of the adapter's tokenizer, if it may have more tokens than the base.

    Raises:
        PolicyError: the adapter is of another base or of a kind that cannot be merged.
    """
    dtype = model.dtype
    try:
        kind = PeftConfig.from_pretrained(source).task_type
        saved = load_peft_weights(source, device="cpu")
        rows = max(tokens, _embedded_tokens(model, saved))
        if rows > model.get_input_embeddings().weight.shape[0]:  # tokens that were added in training
            model.resize_token_embeddings(rows)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are about missing and unexpected keys, which are checked below
            adapted = PeftModel.from_pretrained(model, source).eval()
            loaded = adapted.load_adapter(source, adapter_name="default")
            missing = [*loaded.missing_keys, *_missing_biases(adapted, saved)]
            unknown = [key for key in loaded.unexpected_keys if not _is_copy(key, saved, adapted)]
            expected = _compute_some_logits(adapted)
            _untie(adapted)
            merged: Any = adapted.merge_and_unload(safe_merge=True)
        away = float((_compute_some_logits(merged) - expected).norm() / expected.norm())
    except Exception as error:  # peft has an error for each way in which an adapter may not fit
        lines = str(error).split("\n", 2)[: 2 if ":\n" in str(error) else 1]  # torch names the tensor in the second one
        raise _merge_error(name, base, " ".join(map(str.strip, lines)) or type(error).__name__) from error
    if kind not in {None, "CAUSAL_LM"}:
        raise _merge_error(name, base, f"it is for {kind}, not for CAUSAL_LM")
    if unknown:
        raise _merge_error(name, base, f"it has other layers: {', '.join(unknown[:_KEYS_SHOWN])}")
    if missing:
        raise _merge_error(name, base, f"its file lacks {', '.join(missing[:_KEYS_SHOWN])}")
    if not away <= _ROUNDING[dtype is torch.float32]:  # also true if it is NaN
        raise _merge_error(name, base, f"merged, its logits differ by {away:.0%} from those of the adapter")
    return merged


def _embedded_tokens(model: Any, saved: Mapping[str, Tensor]) -> int:
    """Count the rows of embeddings and output layers that an adapter stores whole; 0 if it stores none.

    Padding may make them more than the tokens.
    """
    layers = model.get_input_embeddings(), model.get_output_embeddings()
    names = [name for name, each in model.named_modules() if any(each is layer for layer in layers)]
    whole = [each for key, each in saved.items() if any(key.endswith(f".{name}.weight") for name in names)]
    return max((each.shape[0] for each in whole if each.ndim == 2), default=0)


def _is_path(base: str) -> bool:
    """Whether a base can only be a folder: names of the hub are `name` or `owner/name`."""
    return Path(base).is_absolute() or base.startswith((".", "~")) or base.count("/") > 1 or "\\" in base


def _missing_biases(adapted: PeftModel, saved: Mapping[str, Tensor]) -> list[str]:
    """Return the keys of biases that the adapter has and its file lacks; peft does not report them."""
    wanted = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    return [key for key in wanted if key.endswith(".bias") and key not in saved]


def _is_copy(key: str, saved: Mapping[str, Tensor], adapted: PeftModel) -> bool:
    """Whether a key that peft did not expect is a copy: if tokens were added, it saves some tensors under two keys."""
    own = next((each for name, each in adapted.state_dict().items() if name.replace(".default", "") == key), None)
    return own is not None and key in saved and torch.equal(own.cpu(), saved[key].to(own.dtype))


def _untie(adapted: PeftModel) -> None:
    """Give the output layer its own weights if it shares those of the embedding and either has an adapter.

    Otherwise merging would change both layers for an adapter of one, or change the weights twice.
    """
    model: Any = adapted
    layers = model.get_input_embeddings(), model.get_output_embeddings()
    if any(isinstance(layer, BaseTunerLayer) for layer in layers) and layers[0].weight is layers[1].weight:
        head = getattr(layers[1], "base_layer", layers[1])
        head.weight = torch.nn.Parameter(head.weight.detach().clone())


def _compute_some_logits(model: Any) -> Tensor:
    """Compute the logits of a few tokens, spread evenly over the vocabulary; the newest token is among them."""
    ids = torch.linspace(0, model.get_input_embeddings().weight.shape[0] - 1, _TOKENS_COMPARED).long()
    with torch.no_grad():
        return model(input_ids=ids[None], use_cache=False).logits.float()  # type: ignore[no-any-return]


def _merge_error(name: str, base: str, why: str) -> PolicyError:
    message = f"the adapter of the policy {name!r} cannot be merged into {base!r}: {why}"
    return PolicyError(message, hint="a LoRA adapter for text generation of that base, or a merged model")


def merge_command(source: str) -> str:
    """Return the Python code that saves the merged model of a folder."""
    return f"from rolloutlab.policy.adapter_folder import save_merged; save_merged({source!r})"


def save_merged(source: str) -> None:
    """Save the merged model of an adapter folder beside it, as `NAME-merged`. Raises as `load_merged` does."""
    base = base_of_adapter(source, source)
    if base is None:
        raise PolicyError(f"{source!r} is no adapter folder", hint="a folder with an adapter_config.json")
    tokenizer, dtype = tokenizer_of(source, base), AutoConfig.from_pretrained(base).dtype
    merged = load_merged(source, base, source, tokenizer, dtype or torch.float32)
    save_model(merged, tokenizer, f"{source.rstrip('/')}-merged")


def save_model(model: Any, tokenizer: PreTrainedTokenizerBase, folder: str) -> None:
    """Save a merged model with its tokenizer, so that `from_pretrained` loads the same weights again."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is not None and getattr(model.config, "tie_word_embeddings", False):
        # `_untie` may have parted them; loading by a configuration that ties them would then lose the head
        model.config.tie_word_embeddings = embedding.weight is head.weight
    for each in (model, tokenizer):
        each.save_pretrained(folder)


def tokenizer_of(source: str, base: str | None) -> Any:
    """Load the tokenizer of a source. What an adapter folder lacks, a tokenizer or its chat template, is the base's."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError):
        if base is None:
            raise
        return AutoTokenizer.from_pretrained(base)
    if base is not None and tokenizer.chat_template is None:
        with suppress(OSError, ValueError):
            tokenizer.chat_template = AutoTokenizer.from_pretrained(base).chat_template
    return tokenizer
