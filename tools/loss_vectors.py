"""Golden vectors of the loss: numbers computed by openpipe-art's own `loss_fn`, for tests/policy/test_loss_vectors.py.

    python tools/loss_vectors.py > tests/policy/loss_vectors.json

Runs where openpipe-art 0.5.18 (Apache-2.0) and torch are installed. One row in double precision: three histories whose
tokens are interleaved, one token that does not train, and original logprobs that are unknown. Only numbers are written.
"""

import itertools
import json
import math
import sys
from typing import Any

import torch
from art.loss import loss_fn

NAN = math.nan
NEW = [-2.0, -0.5, -3.1, -0.2, -1.3, -0.7, -2.2, -0.9, -1.7]
OLD = [-3.9, -1.6, -3.15, -0.6, -1.7, -0.1, -1.9, -2.0, -1.55]
ORIGINAL = [-3.5, -1.0, -3.3, NAN, -1.2, -0.4, NAN, -2.6, -1.5]
REFERENCE = [-2.4, -0.9, -2.0, -0.3, -2.9, -0.6, -2.3, -0.1, -3.0]
ADVANTAGE = [1.5, -0.7, 0.3, 1.1, -1.2, -0.4, 0.8, -2.0, 0.6]
WEIGHT = [0.5, 1.5, 1.0, 0.8, 1.2, 0.3, 2.0, 0.9, 1.1]
HISTORY = [0, 1, 0, 0, 1, 1, 2, 1, 0]
PROMPT_AT = 4
"""Before the token of this index lies one that does not train."""


def placed(values: list[float], filling: float) -> list[float]:
    return [*values[:PROMPT_AT], filling, *values[PROMPT_AT:]]


def shifted(values: list[float], filling: float) -> torch.Tensor:
    """As the packed tensors hold what belongs to the logprob one position earlier."""
    return torch.tensor([[filling, *placed(values, filling)]], dtype=torch.float64)


def vector(options: dict[str, Any]) -> dict[str, Any]:
    inputs = {
        "logprobs": shifted(OLD, NAN),
        "original_logprobs": shifted(ORIGINAL, NAN),
        "advantages": shifted(ADVANTAGE, 5.0),
        "weights": shifted(WEIGHT, 7.0),
        "assistant_mask": shifted([1.0] * len(NEW), 0.0).bool(),
        "group_ids": shifted([float(h + 1) for h in HISTORY], 0.0).long(),
    }
    new = torch.tensor([[*placed(NEW, -1.0), -1.0]], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([[*placed(REFERENCE, -9.0), -9.0]], dtype=torch.float64)
    made = loss_fn(inputs, new, reference, None, options)
    made.policy_loss.backward()
    slopes = new.grad[0].tolist()
    del slopes[PROMPT_AT]
    kl = None if made.kl_policy_ref is None else float(made.kl_policy_ref)
    numbers = {"loss": float(made.policy_loss), "gradient": slopes[: len(NEW)], "kl": kl}
    return {"options": options, **numbers}


def cases() -> list[dict[str, Any]]:
    levels = ("token", "sequence", "average", "geometric_average")
    others = (
        {},
        {"kimi_k2_tau": 0.3, "mask_prob_ratio": True, "max_negative_advantage_importance_sampling_weight": 1.3},
    )
    made = []
    for level, ppo, kl, tis, rest in itertools.product(levels, (False, True), (0.0, 0.25), (0.0, 0.7, 2.0), others):
        extra = {"kl_penalty_coef": kl, "truncated_importance_sampling": tis, **rest}
        made.append({"importance_sampling_level": level, "ppo": ppo, **extra})
    return made


def main() -> None:
    row = {"new": NEW, "old": OLD, "original": ORIGINAL, "reference": REFERENCE}
    row |= {"advantage": ADVANTAGE, "weight": WEIGHT, "history": HISTORY}
    known = {name: [None if value != value else value for value in values] for name, values in row.items()}
    vectors = ",\n".join(json.dumps(vector(options)) for options in cases())
    sys.stdout.write(f'{{"row": {json.dumps(known)},\n"vectors": [\n{vectors}\n]}}\n')


if __name__ == "__main__":
    main()
