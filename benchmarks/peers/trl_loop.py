"""A loop of TRL's GRPOTrainer on the task of `animals.py`, on the CPU: held-out reward by tokens sampled and seconds.

Run it with the Python of TRL's own environment (benchmarks/peers/trl.txt):

    trl_loop.py FOLDER < job.json > curve.json

FOLDER holds a model. job.json: {"rounds": [[row, ...], ...], "held_out": [row, ...], "every": R, "group_size": 8,
"groups_per_step": 8, "max_tokens": 12, "learning_rate": 2e-4, "rank": 8, "seed": 1}, where a row has `word` and `kind`.
The completions of a round are sampled together and trained in steps of so many groups. The answer has a point before
the first round and after each `every` rounds: tokens sampled so far, seconds of sampling and training, and the mean
reward of eight completions of each held-out row, whose time is not counted.
"""

import contextlib
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean

import torch
import transformers
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl_settings import SETTINGS

sys.path.insert(0, str(Path(__file__).parent.parent))
from animals import judged, question

HELD_OUT_COMPLETIONS = 8
BATCH = 16
"""Completions of a forward and backward pass: of 64, activations of SmolLM2 take more than 8 GB."""


class Curve(TrainerCallback):
    """The points, with a clock that stands still while held-out rows are measured."""

    def __init__(self, job, tokenizer):
        self.job, self.tokenizer = job, tokenizer
        self.trainer = None
        self.tokens = self.seconds = self.began = 0.0
        self.points = []
        self.steps = len(job["rounds"][0]) // job["groups_per_step"]

    def rewards(self, completions, completion_ids, kind, **_):
        """The reward function; it also counts what was sampled."""
        self.tokens += sum(map(len, completion_ids))
        return [judged(each[0]["content"], this) for each, this in zip(completions, kind, strict=True)]

    def on_train_begin(self, *_, **__):
        self.measure()

    def on_step_end(self, _args, state, _control, **_):
        if state.global_step % (self.steps * self.job["every"]) == 0:
            self.seconds += time.perf_counter() - self.began
            self.measure()

    @torch.no_grad()
    def measure(self):
        model, rows = self.trainer.model, self.job["held_out"]
        texts = [
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": question(row)}], add_generation_prompt=True, tokenize=False
            )
            for row in rows
        ]
        read = self.tokenizer(texts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt")
        was_training = model.training
        model.eval()
        sampled = model.generate(
            **read,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=self.job["max_tokens"],
            num_return_sequences=HELD_OUT_COMPLETIONS,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        model.train(was_training)
        answers = self.tokenizer.batch_decode(sampled[:, read["input_ids"].shape[1] :], skip_special_tokens=True)
        kinds = [row["kind"] for row in rows for _ in range(HELD_OUT_COMPLETIONS)]
        held_out = fmean(judged(answer, kind) for answer, kind in zip(answers, kinds, strict=True))
        self.points.append({"tokens": self.tokens, "seconds": self.seconds, "held_out": held_out})
        self.began = time.perf_counter()


def configuration(job, folder):
    """The options of rolloutlab's `algorithm: grpo`, its optimiser and its steps."""
    size, prompts = job["group_size"], len(job["rounds"][0])
    completions = job["groups_per_step"] * size
    batch = math.gcd(completions, BATCH)
    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=completions // batch,
        steps_per_generation=prompts * size // batch,
        num_generations=size,
        max_completion_length=job["max_tokens"],
        max_steps=len(job["rounds"]) * prompts // job["groups_per_step"],
        shuffle_dataset=False,
        loss_type="grpo",
        learning_rate=job["learning_rate"],
        use_cpu=True,
        seed=job["seed"],
        **SETTINGS,
    )


def train(model, job, folder):
    """The points of a run."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    curve = Curve(job, tokenizer)
    asked = [{"prompt": [{"role": "user", "content": question(row)}], **row} for each in job["rounds"] for row in each]
    curve.trainer = GRPOTrainer(
        model=model,
        reward_funcs=curve.rewards,
        args=configuration(job, folder),
        train_dataset=Dataset.from_list(asked),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            task_type="CAUSAL_LM", r=job["rank"], lora_alpha=2 * job["rank"], target_modules="all-linear"
        ),
        callbacks=[curve],
    )
    curve.trainer.train()
    return curve.points


def main():
    job = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):  # the trainer prints
        points = train(sys.argv[1], job, folder)
    versions = {"trl": trl.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    json.dump({"points": points, "threads": torch.get_num_threads(), "versions": versions}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
