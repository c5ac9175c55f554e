"""Golden gradients of published algorithms, by TRL's own `_compute_loss`, for tests/policy/test_trl_vectors.py.

    make .venvs/trl/.ready
    .venvs/trl/bin/python tools/trl_vectors.py > tests/policy/trl_vectors.json
    .venvs/trl/bin/python tools/trl_vectors.py tests/policy/trl_vectors.json    # compares: make acceptance-trl

Runs where TRL 1.16 (Apache-2.0) is installed. One job in double precision: groups of three answers of unlike lengths,
one of which has equal rewards, answers whose reward is their group's mean, and answers that were cut off; and one of
answers of two turns. Advantages are given: R - mean, and divided by the population deviation where rewards are scaled,
without the factors that TRL (its sample deviation) and rolloutlab (the scale of a job) have. Only numbers are written.
"""

import contextlib
import json
import math
import sys
import tempfile
from pathlib import Path
from random import Random
from statistics import fmean, pstdev
from typing import Any

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

LONGEST = 7
REWARDS = [[0.0, 1.0, 3.0], [2.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.5, 0.0, 0.25], [-1.0, 4.0, 0.0]]
"""By group and answer: the third group is dead; the mean of the second and of the fourth is the reward of one of it."""
LENGTHS = [[2, 5, 7], [1, 6, 3], [4, 2, 5], [3, 7, 2], [6, 1, 4]]
TRUNCATED = [(0, 2), (3, 1), (4, 0)]
TURNS = [[(1, 1), (2, 3), (3, 4)], [(1, 2), (4, 2), (2, 1)], [(2, 2), (1, 1), (3, 2)]]
"""Of jobs with credit per turn: tokens of the two turns of each answer."""
TURN_REWARDS = [
    [(0.0, 1.0), (1.0, 0.0), (2.0, 1.0)],
    [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)],
    [(1.0, 2.0), (1.0, 0.0), (1.0, 1.0)],
]
BATCHES = {"job": [0, 1, 2, 3, 4], "trains": [0, 1, 3, 4], "first": [0, 1], "second": [3, 4]}
"""Groups of a batch: the whole job as TRL would have it, without the dead group, and its two steps of two groups."""
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "max_completion_length": LONGEST},
    "dapo": {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "rloo": {},
}


UNSCALED = {"dr_grpo", "rloo"}


class OnLogprobs(GRPOTrainer):
    """A trainer whose model's logprobs are given."""

    given: torch.Tensor

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> Any:
        return self.given, torch.zeros_like(self.given), None


class RlooOnLogprobs(RLOOTrainer):
    given: torch.Tensor

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> Any:
        return self.given, torch.zeros_like(self.given), None


def trainer_of(options: dict[str, Any], folder: str) -> Any:
    """TRL's trainer of an algorithm, on a model that is never used."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")), pad_token="a", eos_token="b"
    )
    config = LlamaConfig(
        vocab_size=2, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, head_dim=8
    )
    common = {
        "output_dir": folder,
        "per_device_train_batch_size": 3,
        "num_generations": 3,
        "beta": 0.0,
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
    }
    made = (GRPOConfig, OnLogprobs) if options else (RLOOConfig, RlooOnLogprobs)
    trainer = made[1](
        model=LlamaForCausalLM(config),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=made[0](**common, **options),
        train_dataset=Dataset.from_list([{"prompt": "a"}]),
        processing_class=tokenizer,
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def numbers(chance: Random, lengths: list[list[int]]) -> list[list[list[tuple[float, float]]]]:
    """New and old logprob of each token, exact in single precision; ratios lie on both sides of every bound."""
    away = (0.03125, -0.046875, 0.4375, -0.40625, 0.0001220703125, -0.25390625, 1.75, 0.15625)

    def token(i: int) -> tuple[float, float]:
        new = -chance.randrange(32, 320) / 64
        return new, new - away[i % len(away)]

    at = iter(range(10**6))
    return [[[token(next(at)) for _ in range(length)] for length in group] for group in lengths]


def gradient(trainer: Any, rows: list[dict[str, Any]]) -> list[list[float]]:
    """The gradient of TRL's loss of a batch by each logprob. rows: new, old, advantage of each token, and mask."""
    shape = len(rows), max(len(row["new"]) for row in rows)

    def padded(name: str, filling: float = 0.0) -> torch.Tensor:
        values_NT = torch.full(shape, filling, dtype=torch.float64)
        for i, row in enumerate(rows):
            values_NT[i, : len(row[name])] = torch.tensor(row[name], dtype=torch.float64)
        return values_NT

    mask_NT, trainer.given = padded("mask").long(), padded("new", -1.0).requires_grad_()
    inputs = {
        "prompt_ids": torch.zeros(len(rows), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(rows), 1, dtype=torch.long),
        "completion_ids": torch.zeros(shape, dtype=torch.long),
        "completion_mask": mask_NT,
        "advantages": padded("advantage"),
        "old_per_token_logps": padded("old", -1.0),
        "num_items_in_batch": mask_NT.sum(),
    }
    if isinstance(trainer, RLOOTrainer):
        inputs["advantages"] = inputs["advantages"][:, 0]
        inputs["old_logps"] = (trainer.given.detach() * mask_NT).sum(1)
    trainer._compute_loss(trainer.model, inputs).backward()
    return [trainer.given.grad[i, : len(row["new"])].tolist() for i, row in enumerate(rows)]


def advantages_of(values: list[float], scaled: bool) -> list[float]:
    if max(values) == min(values):
        return [0.0] * len(values)
    mean = fmean(values)
    return [(value - mean) / (pstdev(values) + 1e-6 if scaled else 1.0) for value in values]


def whole(made: Any, scaled: bool, masked: bool) -> list[list[dict[str, Any]]]:
    """The job's answers by group."""
    return [
        [
            {
                "new": [new for new, _ in made[g][i]],
                "old": [old for _, old in made[g][i]],
                "advantage": [advantage] * len(made[g][i]),
                "mask": [float(not (masked and (g, i) in TRUNCATED))] * len(made[g][i]),
            }
            for i, advantage in enumerate(advantages_of(rewards, scaled))
        ]
        for g, rewards in enumerate(REWARDS)
    ]


def by_turn(made: Any, scaled: bool) -> list[list[dict[str, Any]]]:
    """The answers of two turns: the advantage of a turn is that of its reward to go, and one of 0 does not train."""
    groups = []
    for g, rewards in enumerate(TURN_REWARDS):
        credit_sequence = [advantages_of([sum(each[k:]) for each in rewards], scaled) for k in range(2)]
        groups.append([])
        for i, lengths in enumerate(TURNS[g]):
            advantages = [credit_sequence[k][i] for k in range(2) for _ in range(lengths[k])]
            pairs = made[g][i]
            groups[-1].append(
                {
                    "new": [new for new, _ in pairs],
                    "old": [old for _, old in pairs],
                    "advantage": advantages,
                    "mask": [float(a != 0) for a in advantages],
                }
            )
    return groups


def result(trainer: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The gradient, and which tokens train: those that are not masked, and have an advantage."""
    trains = [[int(m * a != 0) for m, a in zip(row["mask"], row["advantage"], strict=True)] for row in rows]
    return {"gradient": gradient(trainer, rows), "trains": trains}


def vectors(folder: str) -> list[dict[str, Any]]:
    plain = numbers(Random(0), LENGTHS)
    turns = numbers(Random(1), [[sum(each) for each in group] for group in TURNS])
    found = []
    for name, options in ALGORITHMS.items():
        trainer, scaled = trainer_of(options, folder), name not in UNSCALED
        for masked in (False, True):
            groups = whole(plain, scaled, masked)
            for batch, places in BATCHES.items():
                rows = [row for g in places for row in groups[g]]
                found.append({"algorithm": name, "masked": masked, "batch": batch, **result(trainer, rows)})
        if name != "rloo":  # which has one advantage for each answer
            rows = [row for group in by_turn(turns, scaled) for row in group]
            found.append({"algorithm": name, "masked": False, "batch": "turns", **result(trainer, rows)})
    return found


def main() -> None:
    assert trl.__version__.startswith("1.16"), trl.__version__
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):  # the trainer prints
        found = vectors(folder)
    job = {"rewards": REWARDS, "lengths": LENGTHS, "truncated": TRUNCATED, "batches": BATCHES, "longest": LONGEST}
    job |= {"logprobs": numbers(Random(0), LENGTHS)}
    turns = {"rewards": TURN_REWARDS, "lengths": TURNS}
    turns |= {"logprobs": numbers(Random(1), [[sum(each) for each in group] for group in TURNS])}
    lines = ",\n".join(json.dumps(each) for each in found)
    text = f'{{"job": {json.dumps(job)},\n"turns": {json.dumps(turns)},\n"vectors": [\n{lines}\n]}}\n'
    if sys.argv[1:]:
        compare(json.loads(Path(sys.argv[1]).read_text()), json.loads(text))
    else:
        sys.stdout.write(text)


def compare(stored: Any, found: Any, at: str = "") -> None:
    """AssertionError where two files differ by more than rounding."""
    if isinstance(stored, dict | list):
        assert len(stored) == len(found), at
        for key in stored if isinstance(stored, dict) else range(len(stored)):
            compare(stored[key], found[key], f"{at}/{key}")
    else:
        assert stored == found or math.isclose(stored, found, rel_tol=1e-9), (at, stored, found)


if __name__ == "__main__":
    main()
