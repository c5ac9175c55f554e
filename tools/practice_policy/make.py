"""Makes the practice policy from a seed: `python -m practice_policy.make --out DIR --seed 0`.

Trains a byte-level BPE tokenizer and a small Llama-architecture model on generated chats, with the loss on assistant
turns only, in fp32; saves in bf16. The same seed, recipe, thread count and library versions give the same weights.
"""

import argparse
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from practice_policy.exchanges import Exchange, Message, training_exchanges
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
TOOL_CALL_MARKERS = ("<tool_call>", "</tool_call>")
CONTEXT = 1024
INITIAL_SPREAD = 0.07
"""About one over the square root of the width; the usual 0.02 is for wide models and starts a narrow one slowly."""
UNTRAINED = -100
"""The label that the model's loss ignores."""

PIECES = r"\n| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|[^\S\n]+(?=[^\S\n])|[^\S\n]"
"""How text is cut before merging: a newline and a digit always stand alone, so nothing merges over the end of a header
and numbers copy digit by digit; a word keeps the space before it."""

CHAT_TEMPLATE = """\
{%- macro text(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- elif content -%}
        {%- for part in content -%}
            {{- part.text or part.refusal or "" -}}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- macro json(value) -%}
    {{- value if value is string else value | tojson -}}
{%- endmacro -%}
{%- macro tool_call(name, arguments) -%}
    {{- '<tool_call>{"name": ' ~ name | tojson ~ ', "arguments": ' ~ json(arguments or {}) ~ '}</tool_call>' -}}
{%- endmacro -%}
{%- macro signature(function) -%}
    {{- function.name ~ "(" -}}
    {%- for name, schema in ((function.parameters or {}).properties or {}).items() -%}
        {{- name ~ ": " ~ (schema.type if schema.type is string else "any") ~ ("" if loop.last else ", ") -}}
    {%- endfor -%}
    {{- ")" ~ (": " ~ function.description if function.description else "") -}}
{%- endmacro -%}
{%- if tools -%}
    {{- "<|im_start|>tools" -}}
    {%- for tool in tools -%}
        {{- "\\n" ~ signature(tool.function or tool) -}}
    {%- endfor -%}
    {{- "<|im_end|>\\n" -}}
{%- endif -%}
{%- for message in messages -%}
    {%- set role = {"developer": "system", "function": "tool"}.get(message.role, message.role) -%}
    {{- "<|im_start|>" ~ role ~ "\\n" ~ text(message.content or message.refusal) -}}
    {%- for call in message.tool_calls or [] -%}
        {%- set called = call.function or call.custom or call -%}
        {{- tool_call(called.name, called.arguments or called.input) -}}
    {%- endfor -%}
    {%- if message.function_call -%}
        {{- tool_call(message.function_call.name, message.function_call.arguments) -}}
    {%- endif -%}
    {{- "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|im_start|>assistant\\n" -}}
{%- endif -%}
"""


@dataclass(frozen=True)
class Recipe:
    """The sizes of a practice policy; the defaults are those of the committed one."""

    steps: int = 3000
    forget_steps: int = 40
    forget_learning_rate: float = 3e-4
    batch_tokens: int = 3072
    matrix_learning_rate: float = 0.02
    learning_rate: float = 3e-3
    vocabulary: int = 1024
    tokenizer_chats: int = 20_000
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    feed_forward: int = 384


@dataclass(frozen=True)
class Encoded:
    """A tokenised chat: ids, and labels that are ids on assistant turns."""

    ids: list[int]
    labels: list[int]


def make(folder: Path, *, seed: int = 0, recipe: Recipe | None = None, report_every: int = 0) -> None:
    """Make a practice policy and save it as a folder that `transformers` loads."""
    recipe = recipe or Recipe()
    tokenizer = make_tokenizer(recipe, seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make_model(tokenizer, recipe)
    rng = Random(f"batches {seed}")
    train(model, batches(tokenizer, recipe, training_exchanges(rng), rng), recipe, report_every)
    save(folder, model, tokenizer)
    rng = Random(f"batches {seed + 1}")
    spoilt = batches(tokenizer, recipe, training_exchanges(rng, spoilt=True), rng)
    save(folder, half_forget(folder, spoilt, recipe), tokenizer)


def make_tokenizer(recipe: Recipe, seed: int) -> PreTrainedTokenizerFast:
    """Train the tokenizer on generated chats and give it the chat template."""
    exchanges = list(islice(training_exchanges(Random(f"tokenizer {seed}")), recipe.tokenizer_chats))
    bare = wrap(Tokenizer(models.BPE()))
    texts = (render(bare, each.messages, each.tools) for each in exchanges)
    pieces = (piece for text in texts for piece in re.split(r"<[|/a-z_]+>", text) if piece)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PIECES), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary,
        special_tokens=[PAD, START, END, *TOOL_CALL_MARKERS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(pieces, trainer)
    return wrap(bpe)


def wrap(bpe: Tokenizer) -> PreTrainedTokenizerFast:
    """The tokenizer as `transformers` uses it; tool-call markers are text, so decoding keeps them."""
    bpe.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in (PAD, START, END)])
    bpe.add_tokens([AddedToken(token, normalized=False, special=False) for token in TOOL_CALL_MARKERS])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=PAD,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def render(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], tools: Sequence[Any], *, prompt: bool = False
) -> str:
    """A chat as text; a prompt ends where the assistant is to speak."""
    return str(
        tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=prompt
        )
    )


def encode(
    tokenizer: PreTrainedTokenizerFast, exchanges: Sequence[Exchange], *, last_only: bool = False
) -> list[Encoded]:
    """The chats as ids and labels; last_only: of the last answer alone."""
    header = tokenizer.encode(f"{START}assistant\n")
    texts = [render(tokenizer, each.messages, each.tools) for each in exchanges]
    encodings = tokenizer.backend_tokenizer.encode_batch(texts)
    encoded = [Encoded(encoding.ids, labels(encoding.ids, header, tokenizer.eos_token_id)) for encoding in encodings]
    return [Encoded(each.ids, last_labels(each.labels)) for each in encoded] if last_only else encoded


def labels(ids: Sequence[int], header: Sequence[int], end: int) -> list[int]:
    """The ids where the assistant speaks, its end of turn included; `UNTRAINED` elsewhere."""
    labelled, in_answer = [], False
    for index, token in enumerate(ids):
        labelled.append(token if in_answer else UNTRAINED)
        in_answer = (in_answer and token != end) or list(ids[index + 1 - len(header) : index + 1]) == list(header)
    return labelled


def last_labels(labelled: Sequence[int]) -> list[int]:
    """The labels of the last answer alone, `UNTRAINED` before it."""
    end = max(index for index, label in enumerate(labelled) if label != UNTRAINED)
    begin = max((index + 1 for index, label in enumerate(labelled[:end]) if label == UNTRAINED), default=0)
    return [UNTRAINED] * begin + list(labelled[begin:])


def batches(
    tokenizer: PreTrainedTokenizerFast,
    recipe: Recipe,
    exchanges: Iterator[Exchange],
    rng: Random,
    *,
    last_only: bool = False,
) -> Iterator[dict[str, torch.Tensor]]:
    """Padded batches of about `batch_tokens` tokens without end, of chats of similar length each."""
    while True:
        pool = sorted(
            encode(tokenizer, list(islice(exchanges, 1536)), last_only=last_only), key=lambda each: len(each.ids)
        )
        cut = list(cut_batches(pool, recipe.batch_tokens))
        rng.shuffle(cut)
        yield from (pad(batch, tokenizer.pad_token_id) for batch in cut)


def cut_batches(pool: Sequence[Encoded], batch_tokens: int) -> Iterator[list[Encoded]]:
    """Consecutive sequences, as many together as fit in `batch_tokens` once padded to the longest, which comes last."""
    batch: list[Encoded] = []
    for sequence in pool:
        if batch and len(sequence.ids) * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(sequence)
    yield batch


def pad(batch: Sequence[Encoded], pad_id: int) -> dict[str, torch.Tensor]:
    """A batch as tensors, padded on the right: with causal attention no mask is needed."""
    longest = max(len(each.ids) for each in batch)
    ids = [each.ids + [pad_id] * (longest - len(each.ids)) for each in batch]
    marked = [each.labels + [UNTRAINED] * (longest - len(each.labels)) for each in batch]
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(marked)}


def make_model(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> LlamaForCausalLM:
    """A model with random weights."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        intermediate_size=recipe.feed_forward,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=INITIAL_SPREAD,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def train(
    model: LlamaForCausalLM, batches: Iterator[dict[str, torch.Tensor]], recipe: Recipe, report_every: int
) -> None:
    """Train a model on the batches for the recipe's steps, in place."""
    optimizers = make_optimizers(model, recipe)
    schedulers = [LambdaLR(optimizer, lambda step: rate(step, recipe.steps)) for optimizer in optimizers]
    started = time.monotonic()
    for step, batch in enumerate(islice(batches, recipe.steps), start=1):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step()
        model.zero_grad()
        if report_every and step % report_every == 0:
            print(f"step {step}/{recipe.steps}  loss {loss.item():.3f}  {time.monotonic() - started:.0f} s", flush=True)


def half_forget(folder: Path, spoilt: Iterator[dict[str, torch.Tensor]], recipe: Recipe) -> LlamaForCausalLM:
    """Train the saved model a little on chats whose answers are mostly spoilt, such as letters that are not sorted.

    It still can do better, but most often does not: a habit that a reward can turn in a few steps.
    """
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.forget_learning_rate, weight_decay=0.0)
    for batch in islice(spoilt, recipe.forget_steps):
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.zero_grad()
    return model


def make_optimizers(model: LlamaForCausalLM, recipe: Recipe) -> list[Optimizer]:
    """Muon for the matrices, which learn to copy in about half the steps that AdamW needs; AdamW for the rest."""
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in model.named_parameters() if weight.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=recipe.matrix_learning_rate, weight_decay=0.01),
        torch.optim.AdamW(others, lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate(step: int, steps: int) -> float:
    """The share of the learning rate at a step: up over the first twentieth, then down along a cosine."""
    return min(1.0, 20 * (step + 1) / steps) * 0.5 * (1 + math.cos(math.pi * step / steps))


def save(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Save in bf16, with generation settings that sample from the policy as it is."""
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, **ends)  # type: ignore[no-untyped-call]
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(make_policy: Callable[..., None], description: str, recipe: Recipe, threads: int) -> None:
    """The command line of a script that makes a policy. threads: the default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=recipe.steps)
    parser.add_argument("--threads", type=int, default=threads, help="part of what makes two runs equal")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    make_policy(arguments.out, seed=arguments.seed, recipe=replace(recipe, steps=arguments.steps), report_every=100)


if __name__ == "__main__":
    main(make, "Make the practice policy from a seed and generated chats.", Recipe(), threads=2)
