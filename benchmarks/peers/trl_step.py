"""Seconds of one optimiser step of TRL's GRPOTrainer on completions that are given, and nothing is generated.

Run it with the Python of TRL's own environment (benchmarks/peers/trl.txt):

    trl_step.py FOLDER < rows.json > seconds.json

FOLDER holds a model. rows.json has one entry per completion, the members of a group side by side:

    {"group_size": G, "prompt_ids": [[...], ...], "completion_ids": [[...], ...], "advantages": [...],
     "logprobs": [[...], ...]}

where `logprobs`, those at sampling, may be left out. The answer has the seconds of every timed step: forward, backward,
clipping and the optimiser, all completions in one batch or `--batch` at a time.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time

import torch
import transformers
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl_settings import SETTINGS


class GivenCompletions(GRPOTrainer):
    """A GRPOTrainer for which every generation is the same batch, given as tensors."""

    batch: dict[str, torch.Tensor]
    began = 0.0

    def _generate_and_score_completions(self, _inputs):
        self.began = time.perf_counter()
        return dict(self.batch)


class Stopwatch(TrainerCallback):
    """Seconds from the batch at hand to the optimiser's step taken, of each step."""

    def __init__(self):
        self.trainer = None
        self.seconds = []

    def on_optimizer_step(self, *_, **__):
        self.seconds.append(time.perf_counter() - self.trainer.began)


def padded(rows, fill, dtype, *, left):
    """Rows of different lengths as one tensor_NT, and its mask."""
    width = max(map(len, rows))
    values_NT = torch.full((len(rows), width), fill, dtype=dtype)
    mask_NT = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        values_NT[i, place] = torch.tensor(row, dtype=dtype)
        mask_NT[i, place] = 1
    return values_NT, mask_NT


def tensors(given, pad):
    """The batch in the form that GRPOTrainer's own generation returns."""
    prompt_ids, prompt_mask = padded(given["prompt_ids"], pad, torch.long, left=True)
    completion_ids, completion_mask = padded(given["completion_ids"], pad, torch.long, left=False)
    batch = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": torch.tensor(given["advantages"], dtype=torch.float32),
        "num_items_in_batch": completion_mask.sum(),
    }
    if "logprobs" in given:
        batch["old_per_token_logps"] = padded(given["logprobs"], 0.0, torch.float32, left=False)[0]
    return batch


def configuration(options, given, folder):
    """One epoch, one step per batch, no reference model, fp32; AdamW and clipping are rolloutlab's."""
    count = len(given["completion_ids"])
    batch = options.batch or count
    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=count // batch,
        num_generations=given["group_size"],
        num_iterations=1,
        loss_type=options.loss,
        max_steps=options.warm_up + options.steps,
        learning_rate=options.learning_rate,
        use_cpu=not torch.cuda.is_available(),
        seed=0,
        **SETTINGS,
    )


def train(options, given, folder):
    """The trainer after its steps, and the seconds of each."""
    tokenizer = AutoTokenizer.from_pretrained(options.folder)
    watch = Stopwatch()
    trainer = GivenCompletions(
        model=options.folder,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=configuration(options, given, folder),
        train_dataset=Dataset.from_list([{"prompt": "given"}] * (len(given["completion_ids"]) // given["group_size"])),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            task_type="CAUSAL_LM", r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear"
        ),
        callbacks=[watch],
    )
    device = trainer.accelerator.device
    trainer.batch = {name: tensor.to(device) for name, tensor in tensors(given, tokenizer.pad_token_id or 0).items()}
    watch.trainer = trainer
    trainer.train()
    return trainer, watch.seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=5, help="timed steps (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before, not timed (%(default)s)")
    parser.add_argument("--batch", type=int, help="completions per forward (all)")
    parser.add_argument("--loss", default="grpo", help="GRPOConfig.loss_type (%(default)s)")
    parser.add_argument("--rank", type=int, default=16, help="of LoRA on all linear layers (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    options = parser.parse_args()
    given = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):  # the trainer prints
        trainer, seconds = train(options, given, folder)
    answer = {
        "seconds": seconds[options.warm_up :],
        "completions": len(given["completion_ids"]),
        "completion_tokens": sum(map(len, given["completion_ids"])),
        "trainable_parameters": sum(p.numel() for p in trainer.model.parameters() if p.requires_grad),
        "threads": torch.get_num_threads(),
        "versions": {"trl": trl.__version__, "torch": torch.__version__, "transformers": transformers.__version__},
    }
    json.dump(answer, sys.stdout)
    print()


if __name__ == "__main__":
    main()
