"""Accuracy of a practice policy: `python -m practice_policy.evaluate FOLDER`.

Prints, as a markdown table, the share of right answers to held-out prompts of each kind: greedy, and sampled at
temperature 1 from the unchanged distribution.
"""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from practice_policy.exchanges import KINDS, Exchange, Message, held_out_exchanges
from practice_policy.make import render
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from rolloutlab.policy.practice import FOLDER

CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
LONGEST_ANSWER = 48


def load(folder: Path) -> tuple[Any, Any]:
    """The saved model, to compute in fp32, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder)


@torch.inference_mode()
def answers(
    model: Any, tokenizer: PreTrainedTokenizerFast, exchanges: Sequence[Exchange], *, sampled: bool
) -> list[Message]:
    """The policy's answers to the prompts, all in one batch."""
    texts = [render(tokenizer, each.prompt, each.tools, prompt=True) for each in exchanges]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
    settings = {"do_sample": True, "temperature": 1.0, "top_k": 0} if sampled else {"do_sample": False}
    ids = model.generate(**inputs, max_new_tokens=LONGEST_ANSWER, **settings)
    given = ids[:, inputs["input_ids"].shape[1] :]
    return [parse(str(tokenizer.decode(row, skip_special_tokens=True))) for row in given]


def parse(text: str) -> Message:
    """What the policy wrote, as an assistant message; a malformed tool call stays text."""
    try:
        functions = [json.loads(call) for call in CALL.findall(text)]
        calls = [{"name": each["name"], "arguments": json.dumps(each["arguments"])} for each in functions]
    except (ValueError, KeyError, TypeError):
        return {"role": "assistant", "content": text}
    if not calls:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": None, "tool_calls": [{"function": call} for call in calls]}


def accuracy(exchanges: Sequence[Exchange], given: Sequence[Message]) -> float:
    """The share of answers that pass the check of their exchange."""
    return sum(exchange.check(answer) for exchange, answer in zip(exchanges, given, strict=True)) / len(exchanges)


def table(folder: Path, count: int, seed: int) -> str:
    """Held-out accuracy per kind as a markdown table."""
    model, tokenizer = load(folder)
    lines = ["| kind | prompts | greedy | sampled |", "|---|---|---|---|"]
    for kind in KINDS:
        exchanges = held_out_exchanges(kind, count, seed=seed)
        torch.manual_seed(seed)
        greedy, sampled = (accuracy(exchanges, answers(model, tokenizer, exchanges, sampled=s)) for s in (False, True))
        lines.append(f"| {kind} | {len(exchanges)} | {greedy:.2f} | {sampled:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure a practice policy on held-out prompts.")
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--count", type=int, default=500, help="prompts per kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(table(arguments.folder, arguments.count, arguments.seed))


if __name__ == "__main__":
    main()
