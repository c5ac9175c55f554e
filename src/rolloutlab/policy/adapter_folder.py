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
    return _base_path(str(base), Path(path).parent)


def _base_path(base: str, folder: Path) -> str:
    """Where a base is: a relative path is of the working folder, the adapter's, or the one around it."""
    return next((str(each) for each in (Path(base), folder / base, folder.parent / base) if each.is_dir()), base)


def load_merged(source: str, base: str, name: str, tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype) -> Any:
    """The base model with the adapter merged into its weights, so that checkpoint 0 is what the adapter is.

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
    """A model with the adapter of a folder merged into its weights, in place.

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
            warnings.simplefilter("ignore")  # of what is checked below
            adapted = PeftModel.from_pretrained(model, source).eval()
            loaded = adapted.load_adapter(source, adapter_name="default")
            missing = [*loaded.missing_keys, *_missing_biases(adapted, saved)]
            unknown = [key for key in loaded.unexpected_keys if not _is_copy(key, saved, adapted)]
            expected = _some_logits(adapted)
            _untie(adapted)
            merged: Any = adapted.merge_and_unload(safe_merge=True)
        away = float((_some_logits(merged) - expected).norm() / expected.norm())
    except Exception as error:  # peft has an error for each way in which an adapter may not fit
        lines = str(error).split("\n", 2)[: 2 if ":\n" in str(error) else 1]  # torch names the tensor in the second one
        raise _unmerged(name, base, " ".join(map(str.strip, lines)) or type(error).__name__) from error
    if kind not in {None, "CAUSAL_LM"}:
        raise _unmerged(name, base, f"it is for {kind}, not for CAUSAL_LM")
    if unknown:
        raise _unmerged(name, base, f"it has other layers: {', '.join(unknown[:_KEYS_SHOWN])}")
    if missing:
        raise _unmerged(name, base, f"its file lacks {', '.join(missing[:_KEYS_SHOWN])}")
    if not away <= _ROUNDING[dtype is torch.float32]:  # NaN is none either
        raise _unmerged(name, base, f"merged, its logits differ by {away:.0%} from those of the adapter")
    return merged


def _embedded_tokens(model: Any, saved: Mapping[str, Tensor]) -> int:
    """Rows of the embeddings and output layers that an adapter has whole; padded, there are more than tokens."""
    layers = model.get_input_embeddings(), model.get_output_embeddings()
    names = [name for name, each in model.named_modules() if any(each is layer for layer in layers)]
    whole = [each for key, each in saved.items() if any(key.endswith(f".{name}.weight") for name in names)]
    return max((each.shape[0] for each in whole if each.ndim == 2), default=0)


def _is_path(base: str) -> bool:
    """Whether a base can only be a folder: names of the hub are `name` or `owner/name`."""
    return Path(base).is_absolute() or base.startswith((".", "~")) or base.count("/") > 1 or "\\" in base


def _missing_biases(adapted: PeftModel, saved: Mapping[str, Tensor]) -> list[str]:
    """Biases that the adapter has and its file lacks, which peft does not report."""
    wanted = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    return [key for key in wanted if key.endswith(".bias") and key not in saved]


def _is_copy(key: str, saved: Mapping[str, Tensor], adapted: PeftModel) -> bool:
    """Whether a tensor of the file is there under another key, too: peft saves some twice where tokens were added."""
    own = next((each for name, each in adapted.state_dict().items() if name.replace(".default", "") == key), None)
    return own is not None and key in saved and torch.equal(own.cpu(), saved[key].to(own.dtype))


def _untie(adapted: PeftModel) -> None:
    """Give the output layer weights of its own where it shares the embedding's and an adapter is on one of both.

    Merging would change the shared ones for both, or twice.
    """
    model: Any = adapted
    layers = model.get_input_embeddings(), model.get_output_embeddings()
    if any(isinstance(layer, BaseTunerLayer) for layer in layers) and layers[0].weight is layers[1].weight:
        head = getattr(layers[1], "base_layer", layers[1])
        head.weight = torch.nn.Parameter(head.weight.detach().clone())


def _some_logits(model: Any) -> Tensor:
    """Of a few tokens of the whole vocabulary, the newest among them."""
    ids = torch.linspace(0, model.get_input_embeddings().weight.shape[0] - 1, _TOKENS_COMPARED).long()
    with torch.no_grad():
        return model(input_ids=ids[None], use_cache=False).logits.float()  # type: ignore[no-any-return]


def _unmerged(name: str, base: str, why: str) -> PolicyError:
    message = f"the adapter of the policy {name!r} cannot be merged into {base!r}: {why}"
    return PolicyError(message, hint="a LoRA adapter for text generation of that base, or a merged model")


def merge_command(source: str) -> str:
    """What to type to have a folder with the merged model."""
    return f"from rolloutlab.policy.adapter_folder import save_merged; save_merged({source!r})"


def save_merged(source: str) -> None:
    """Save the merged model of an adapter folder beside it, as `NAME-merged`; raises as `load_merged`."""
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
        # an adapter on one of both has parted them, and a configuration that ties them would lose the head
        model.config.tie_word_embeddings = embedding.weight is head.weight
    for each in (model, tokenizer):
        each.save_pretrained(folder)


def tokenizer_of(source: str, base: str | None) -> Any:
    """The tokenizer of a source; that of its base where an adapter folder has none, or none with a chat template."""
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
