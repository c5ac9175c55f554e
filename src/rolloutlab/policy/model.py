"""Policies: causal language models of `transformers`, and copies of them with LoRA adapters."""

import copy
import hashlib
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import date
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from rolloutlab.errors import PolicyError
from rolloutlab.objective.option_docs import LARGE_POLICY_RATE, SMALL_POLICY_RATE
from rolloutlab.policy.adapter_folder import base_of_adapter, load_merged, merge_command, tokenizer_of
from rolloutlab.policy.base import Base, context_of
from rolloutlab.policy.capabilities import Probe
from rolloutlab.policy.decode import Completion, CompletionRequest, Decoder
from rolloutlab.policy.gguf import Note, notes_of
from rolloutlab.policy.lora_linear import fuse_lora
from rolloutlab.policy.packed_weights import PackedWeights
from rolloutlab.policy.rendering import Renderer
from rolloutlab.policy.source import source_of
from rolloutlab.policy.template_date import DATE, prints_date
from rolloutlab.settings import ModelSettings, short_name

Adapter = dict[str, Tensor]
"""The tensors of one LoRA adapter, under peft's names, fp32 on the CPU."""
_SMALL = 20_000_000
_MAX_WORKERS = 4
_FINGERPRINT_SAMPLES = 64
_RELEASE = re.compile(r'"transformers_version": "[^"]*"')
_HASHED_RELEASE = '"transformers_version": "5.23.0"'
"""transformers writes its own release into a configuration. With a newer one the same weights would be another base,
and no model of an older lab could be sampled, so `fingerprint` hashes the release of the first labs for all.
"""
_EXACT_GAP, _GAP = 0.01, 1.0
"""The largest mean difference of sampled logprobs from those of one pass over all tokens: in fp32, and in others."""
_OTHER_MODEL = "a model with attention layers only, such as Llama, Qwen, Mistral, Gemma or GPT-2"
_PEFT, _DOWN, _UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"


@dataclass(frozen=True)
class Policy:
    """A frozen base model with its tokenizer and settings.

    context: maximum tokens of a conversation, prompt and completion together. end_ids: tokens that end a turn.
    learning_rate, groups_per_step: defaults of a job. batch_tokens: maximum tokens of a batch, unless a single sequence
    has more. workers: threads, each with a batch, during training. bound_options: options of `rolloutlab serve` without
    which checkpoints would have other tensors or another scale, or prompts another date. gradient_checkpointing: see
    `training_copy`. template_date: what the chat template prints as the current date. about: what its user should know,
    a line each. source, merged: see `Base`. packed: weights of its layers, shared by its models.
    """

    name: str
    base: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    lora: LoraConfig
    context: int
    end_ids: frozenset[int]
    learning_rate: float
    batch_tokens: int
    workers: int
    probe: Probe
    groups_per_step: int = 8
    bound_options: tuple[str, ...] = ()
    gradient_checkpointing: bool = False
    template_date: date = DATE
    about: tuple[str, ...] = ()
    source: str = ""
    merged: bool = False
    packed: PackedWeights = field(default_factory=PackedWeights)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.base.device
        return device

    def lora_copy(self) -> PeftModel:
        """Make a copy with a new LoRA adapter, seeded by the base's name; the base's tensors are shared."""
        with torch.random.fork_rng(), warnings.catch_warnings():
            # peft warns of patterns that it sets itself for a mixture of experts
            warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys")
            torch.manual_seed(int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8]))
            return get_peft_model(self._copy(), self.lora)

    def training_copy(self) -> PeftModel:
        """Make a LoRA copy to train. With `gradient_checkpointing`, backward computes each layer's activations again.

        transformers' own checkpointing needs training mode, in which some layers have dropout, and the first ratio
        would not be 1. So the layers stay in inference mode, and are wrapped here.
        """
        model = self.lora_copy()
        fuse_lora(model, self.packed.multipliers(model))
        if self.gradient_checkpointing:
            for layer in _checkpointed_layers(model):
                layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
        return model

    def with_adapter(self, adapter: Adapter, previous: Any = None) -> Any:
        """Return a model to sample from under an adapter. It may reuse `previous`, which must not be used afterwards.

        In a small fp32 policy with linear layers, the adapter is merged into a copy of the weights, which halves the
        work per token. Otherwise weights stay shared, and the adapter is loaded into a LoRA copy: merging would cost
        memory, and round the adapter to bf16.
        """
        if self.small and self.base.dtype == torch.float32 and (merged := self._merge_into_copy(adapter)):
            return merged
        model = previous or self.lora_copy()
        write_adapter(model, adapter)
        return model

    @property
    def vocabulary(self) -> int:
        """The number of different tokens that can be sampled."""
        embeddings: Any = self.base.get_input_embeddings()
        return int(embeddings.weight.shape[0])

    @property
    def small(self) -> bool:
        """Whether a copy of the weights costs little."""
        return _count_parameters(self.base) < _SMALL

    def _copy(self) -> Any:
        shared: dict[int, Any] = {id(t): t for t in chain(self.base.parameters(), self.base.buffers())}
        return copy.deepcopy(self.base, shared)

    def _merge_into_copy(self, adapter: Adapter) -> PreTrainedModel | None:
        """Merge an adapter into a copy; None if it has layers other than `Linear` and GPT-2's `Conv1D`."""
        model: PreTrainedModel = self._copy()
        scale = self.lora.lora_alpha / self.lora.r
        for name, down in adapter.items():
            if not name.endswith(_DOWN):
                continue
            up = adapter[name.removesuffix(_DOWN) + _UP]
            try:
                layer: Any = model.get_submodule(name.removeprefix(_PEFT).removesuffix(_DOWN))
            except AttributeError:  # an adapter on a parameter, such as the experts of a mixture
                return None
            if type(layer) not in {nn.Linear, Conv1D}:
                return None
            change = scale * (up @ down).to(layer.weight)
            change = change.T if type(layer) is Conv1D else change
            layer.weight = nn.Parameter(layer.weight + change, requires_grad=False)
        return model


def load_policy(name: str, settings: ModelSettings | None = None, note: Note = lambda _: None) -> Policy:
    """Load a policy of a package, such as `practice`, a folder, a GGUF file, or a name of the Hugging Face hub.

    note: called with what is being done, while a file is converted.

    Raises:
        PolicyError: there is no such policy or device; or the policy cannot be loaded or sampled, has no chat template,
            or does not fit the settings.
        LabError: see `source_of`.
    """
    settings = settings or ModelSettings()
    source = source_of(name, note)
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    _check_device(device)
    dtype = getattr(torch, settings.dtype or ("bfloat16" if device == "cuda" else "float32"))
    with _map_load_errors(name):
        of_adapter = base_of_adapter(source, name)
        tokenizer = tokenizer_of(source, of_adapter)
        if of_adapter is None:
            base = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    if of_adapter is not None:
        base = load_merged(source, of_adapter, name, tokenizer, dtype)
    torch.nn.Module.to(base, device)
    policy = policy_of(name, base, tokenizer, settings)
    about = notes_of(source)
    if of_adapter is not None:
        what = f"{policy.name} is an adapter, and is merged into its base {of_adapter}"
        about.append(
            f"{what}: checkpoints are adapters of the merged model, which peft's merge_and_unload() makes elsewhere"
        )
    return replace(policy, about=(*about, *policy.about), source=source, merged=of_adapter is not None)


def policy_of(
    name: str, base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: ModelSettings | None = None
) -> Policy:
    """Make a policy of a model in memory, on its device and in its dtype. Its parameters no longer need gradients.

    Raises:
        PolicyError: as `load_policy` does.
    """
    settings = settings or ModelSettings()
    base.requires_grad_(False)
    small = _count_parameters(base) < _SMALL
    lora = _make_lora_config(small, base, settings)
    if settings.gradient_checkpointing and not _checkpointed_layers(base):
        raise PolicyError(f"the layers of {name!r} have no gradient checkpointing", hint="leave the setting out")
    policy = Policy(
        base=base,
        lora=lora,
        workers=min(torch.get_num_threads(), _MAX_WORKERS) if small and base.device.type == "cpu" else 1,
        probe=Probe(base),
        gradient_checkpointing=settings.gradient_checkpointing,
        **_read_facts(name, base, tokenizer, settings, lora, base.dtype),
    )
    _check_sampling(policy)
    if not _lora_targets(settings) and (untrained := _describe_unreached(policy)):
        why = "jobs leave these weights as they are, since they are not in linear layers"
        return replace(policy, about=(f"no adapter reaches {untrained} of {policy.name}: {why}",))
    return policy


def describe(name: str, settings: ModelSettings | None = None) -> tuple[Base, int]:
    """Describe a policy whose weights are elsewhere, from configuration and tokenizer; return also its adapters' rank.

    Raises PolicyError as `load_policy` does, and for an adapter folder.
    """
    settings = settings or ModelSettings()
    source = source_of(name)
    with _map_load_errors(name):
        if base_of_adapter(source, name):
            message = f"the policy {name!r} is an adapter, and this engine needs a whole model"
            raise PolicyError(message, hint=f'python -c "{merge_command(source)}"')
        tokenizer = AutoTokenizer.from_pretrained(source)
        config = AutoConfig.from_pretrained(source)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        with suppress(OSError):  # the file is missing: not all policies have one
            model.generation_config = GenerationConfig.from_pretrained(source)
    lora = _make_lora_config(_count_parameters(model) < _SMALL, model, settings)
    facts = _read_facts(name, model, tokenizer, settings, lora, torch.float32)
    digest = hashlib.sha256(b"without weights" + config.to_json_string().encode()).hexdigest()
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    return Base(fingerprint=digest, vocabulary=vocabulary, source=source, **facts), lora.r


def _describe_unreached(policy: Policy) -> str:
    """Describe the tensors of experts that no adapter reaches, with their share of the parameters; empty if none.

    Many mixtures of experts have the weights of all experts in one tensor, which is no linear layer. For some of them,
    such as Mixtral, peft has adapters even so.
    """
    experts = {
        f"{name}.{own}": parameter.numel()
        for name, module in policy.base.named_modules()
        for own, parameter in module.named_parameters(recurse=False)
        if parameter.dim() > 2 and not isinstance(module, nn.Conv1d | nn.Conv2d)
    }
    if not experts:
        return ""
    reached = [*adapter_parameters(policy.lora_copy())]
    missed = {
        n: size for n, size in experts.items() if not any(f"{_PEFT}{n.rpartition('.')[0]}." in r for r in reached)
    }
    if not missed:
        return ""
    kinds = sorted({re.sub(r"\d+", "*", name) for name in missed})
    return f"{', '.join(kinds)} ({sum(missed.values()) / _count_parameters(policy.base):.0%} of the parameters)"


@contextmanager
def _map_load_errors(name: str) -> Iterator[None]:
    message = f"the policy {name!r} could not be loaded"
    if (name.startswith((".", "~")) or Path(name).is_absolute()) and not Path(name).expanduser().exists():
        raise PolicyError(f"{message}: there is no such folder", hint="practice, a folder, or ORG/NAME of the hub")
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        raise PolicyError(f"{message}: {_first_line(error)}") from error


def _read_facts(
    name: str,
    base: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: ModelSettings,
    lora: LoraConfig,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """Read what `Policy` and `Base` have in common. Raises PolicyError if there is no chat template, context or end."""
    if tokenizer.chat_template is None:
        raise PolicyError(f"the policy {name!r} has no chat template", hint="use an instruction-tuned model")
    # a date that the template does not print has no effect, so it must not bind models to the option
    day = settings.template_date if prints_date(str(tokenizer.chat_template)) else None
    small, context = _count_parameters(base) < _SMALL, context_of(base.config)
    if not context:
        hint = "max_position_embeddings in its config.json: the number of tokens that it was trained on"
        raise PolicyError(f"the policy {name!r} does not say how many tokens it can read", hint=hint)
    budget = 1024 if small else 2048  # of a batch: a multiple of the context, if it fits more than once
    return {
        "name": short_name(name),
        "tokenizer": tokenizer,
        "context": context,
        "end_ids": _end_ids(name, base, tokenizer, day or DATE),
        "learning_rate": SMALL_POLICY_RATE if small else LARGE_POLICY_RATE,
        "batch_tokens": budget // context * context or budget,
        "groups_per_step": 4 if small else 8,
        "bound_options": _bound_options(lora, small, _lora_targets(settings), dtype, day or DATE),
        "template_date": day or DATE,
    }


def _check_device(device: str) -> None:
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if not available[device]:
        raise PolicyError(f"torch {torch.__version__} has no device {device!r} on this machine", hint="--device cpu")


def _check_sampling(policy: Policy) -> None:
    """Raise PolicyError unless rows of different length, sampled in one batch, have the logprobs of a pass over each.

    Some models take a cache and do not use it, or keep states of their own. Their samples would be of other
    distributions.
    """
    try:
        model = policy.with_adapter(read_adapter(policy.lora_copy()))
        decoder, rows = Decoder(model, frozenset()), []
        for prompt in ((0,), (0, 1)):
            decoder.admit([CompletionRequest(prompt, max_tokens=3)])
            rows += decoder.step()
        while len(decoder):
            rows += decoder.step()
        gap = max(_gap_to_plain_pass(model, row) for row in rows)
    except Exception as error:  # a model can fail in any way
        reason = error.message if isinstance(error, PolicyError) else f"{type(error).__name__}: {_first_line(error)}"
        raise PolicyError(f"the policy {policy.name!r} cannot be sampled: {reason}", hint=_OTHER_MODEL) from error
    if not gap <= (_EXACT_GAP if policy.base.dtype == torch.float32 else _GAP):
        reason = f"logprobs of sampled tokens are {gap:.2g} from those of a pass over all tokens at once"
        raise PolicyError(f"the policy {policy.name!r} cannot be sampled: {reason}", hint=_OTHER_MODEL)


@torch.inference_mode()
def _gap_to_plain_pass(model: Any, row: Completion) -> float:
    """Return the mean distance of a completion's logprobs from those of a pass over all its tokens without a cache."""
    ids = torch.tensor([row.ids], device=model.device)
    logits_TV = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0].float()
    plain_T = logits_TV.log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[-len(row.tokens) :, 0]
    return float((plain_T.cpu() - torch.tensor(row.logprobs)).abs().mean())


def fingerprint(policy: Policy) -> str:
    """Hash a base model's configuration and samples of its weights, because one name may stand for several models."""
    config = _RELEASE.sub(_HASHED_RELEASE, policy.base.config.to_json_string())
    digest = hashlib.sha256(config.encode())
    for name, weight in policy.base.state_dict().items():
        samples = weight.flatten()[:: max(1, weight.numel() // _FINGERPRINT_SAMPLES)].float().cpu().contiguous()
        digest.update(f"{name}{tuple(weight.shape)}".encode() + samples.numpy().tobytes())
    return digest.hexdigest()


def base_of(policy: Policy) -> Base:
    """Return what is known of a policy without its weights."""
    shared = {each.name: getattr(policy, each.name) for each in fields(Base) if each.name != "fingerprint"}
    return Base(fingerprint=fingerprint(policy), **shared)


def limit_threads(policy: Policy) -> None:
    """Compute each tensor in one thread if the policy is small; see `Policy.workers`.

    Threads that share a small tensor synchronise at every operation, and mostly wait when the machine is busy.
    """
    if policy.small:
        torch.set_num_threads(1)


def read_adapter(model: PeftModel) -> Adapter:
    """Copy the adapter's tensors."""
    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: tensor.detach().to("cpu", torch.float32, copy=True) for name, tensor in state.items()}


def write_adapter(model: PeftModel, adapter: Adapter) -> None:
    """Load an adapter into a model, in place."""
    with torch.no_grad():
        set_peft_model_state_dict(model, adapter)


def adapter_parameters(model: PeftModel) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _make_lora_config(small: bool, base: nn.Module, settings: ModelSettings) -> LoraConfig:
    """Make the configuration of adapters. Raises PolicyError for a target that is the name of no linear layer."""
    rank = settings.lora_rank or (16 if small else 8)
    targets = _lora_targets(settings)
    linear = [name for name, module in base.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            names = ",".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise PolicyError(f"the policy has no linear layer {target!r}", hint=f"--lora-targets={names}")
    return LoraConfig(
        r=rank,
        lora_alpha=settings.lora_alpha or 2 * rank,
        target_modules=targets or "all-linear",
        task_type="CAUSAL_LM",
        fan_in_fan_out=any(type(module) is Conv1D for module in base.modules()),  # GPT-2's weights are transposed
    )


def _lora_targets(settings: ModelSettings) -> list[str]:
    """Return the names of the modules that get adapters; an empty list for all linear layers."""
    names = {name.strip() for name in (settings.lora_targets or "all-linear").split(",")}
    return [] if names == {"all-linear"} else sorted(names)


def _bound_options(
    lora: LoraConfig, small: bool, targets: Sequence[str], dtype: torch.dtype, day: date
) -> tuple[str, ...]:
    options = {
        f"--lora-rank={lora.r}": lora.r != (16 if small else 8),
        f"--lora-alpha={lora.lora_alpha}": lora.lora_alpha != 2 * lora.r,
        f"--lora-targets={','.join(targets)}": bool(targets),
        "--dtype=bfloat16": dtype == torch.bfloat16,
        f"--template-date={day}": day != DATE,
    }
    return tuple(option for option, bound in options.items() if bound)


def _checkpointed_layers(model: nn.Module) -> list[GradientCheckpointingLayer]:
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def _count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _end_ids(name: str, base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, day: date) -> frozenset[int]:
    """Collect the tokens that end a turn, by the configuration, the tokenizer and the chat template.

    Raises:
        PolicyError: the chat template ends answers with no token, so that the end of answers could not be learned.
    """
    ends = base.generation_config.eos_token_id if base.generation_config else None
    generation = [ends] if isinstance(ends, int) else ends or []
    known = frozenset([*generation, tokenizer.eos_token_id]) - {None}
    answer, calls = Renderer(tokenizer, known, day=day).turn_ends
    if answer and answer.token_id is None:
        why = f"{answer.text!r} has none" if answer.text else "there is nothing after it"
        raise PolicyError(
            f"no token ends an assistant's turn in the chat template of {name!r}: {why}",
            hint="end the assistant's messages with {{ eos_token }} in its chat_template",
        )
    return known | {end.token_id for end in (answer, calls) if end and end.token_id is not None}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
