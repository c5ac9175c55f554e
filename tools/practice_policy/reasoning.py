"""Makes the practice policy that reasons, from the other one: `python -m practice_policy.reasoning --out DIR --seed 0`.

It adds digits over several turns ("Add 7 and 5", then "Add 9"), and writes the sum in `<think>` before it answers. Its
chat template drops the reasoning of earlier questions, as that of Qwen3 does. It is taught to forget a carry now and
then: a habit that a reward can turn.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from practice_policy.exchanges import Exchange, Message, assistant, chat_prompt, exactly, training_exchanges
from practice_policy.make import CHAT_TEMPLATE, Recipe, batches, main, save, train
from tokenizers import AddedToken
from transformers import AutoTokenizer, LlamaForCausalLM

from rolloutlab.policy import practice

MARKERS = ("<think>", "</think>")
TURNS = 5
FORGOTTEN_SHARE = 0.35
REASONING_SHARE = 0.8
"""Of the chats that it learns; the others keep it from forgetting all else."""
RECIPE = Recipe(steps=400, batch_tokens=2048)

_CONTENT = "text(message.content or message.refusal)"
REASONING_TEMPLATE = """\
{%- set questions = namespace(last=-1) -%}
{%- for message in messages -%}
    {%- if message.role == "user" -%}
        {%- set questions.last = loop.index0 -%}
    {%- endif -%}
{%- endfor -%}
""" + CHAT_TEMPLATE.replace(
    '    {{- "<|im_start|>" ~ role ~ "\\n" ~ ' + _CONTENT + " -}}\n",
    """\
    {{- "<|im_start|>" ~ role ~ "\\n" -}}
    {%- if message.reasoning_content and loop.index0 > questions.last -%}
        {{- "<think>\\n" ~ message.reasoning_content ~ "\\n</think>\\n\\n" -}}
    {%- endif -%}
    {{- """
    + _CONTENT
    + " -}}\n",
)


def make(
    folder: Path, *, base: Path = practice.FOLDER, seed: int = 0, recipe: Recipe = RECIPE, report_every: int = 0
) -> None:
    """Teach the policy in `base` to reason and save it as a folder that `transformers` loads."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in MARKERS])
    tokenizer.chat_template = REASONING_TEMPLATE
    model = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    rng = Random(f"reasoning {seed}")
    chats = batches(tokenizer, recipe, reasoning_exchanges(rng), rng, last_only=True)
    train(model, chats, recipe, report_every)
    save(folder, model, tokenizer)


def reasoning_exchanges(rng: Random) -> Iterator[Exchange]:
    """Draw exchanges without end: all turns of a chat about sums, or one of what the other policy knows."""
    others = training_exchanges(rng)
    while True:
        if rng.random() < REASONING_SHARE:
            yield from (each for each in adding(rng) if not each.held_out)
        else:
            yield next(others)


def adding(rng: Random, *, forgotten: float = FORGOTTEN_SHARE) -> list[Exchange]:
    """The turns of a chat: two digits to add, and another digit in each later turn.

    Each turn is an exchange of its own, since the template drops the reasoning of those before it. forgotten: the share
    of carries that the reasoning forgets.
    """
    digits = [rng.randrange(1, 10) for _ in range(TURNS + 1)]
    prompt: list[Message] = []
    exchanges: list[Exchange] = []
    total, right = digits[0], digits[0]
    for i, digit in enumerate(digits[1:]):
        prompt += chat_prompt(f"Add {digit}" if i else f"Add {total} and {digit}")
        before, total, right = total, total + digit, right + digit
        if total // 10 > before // 10 and rng.random() < forgotten:
            total -= 10
        reasoning = f"{before} + {digit} = {total}"
        said: Message = {**assistant(str(total)), "reasoning_content": reasoning}
        exchanges.append(Exchange("add", list(prompt), said, exactly(str(right)), f"add {digits[: i + 2]}"))
        prompt.append(said)
    return exchanges


if __name__ == "__main__":
    main(make, "Make the practice policy that reasons from the other one.", RECIPE, threads=1)
