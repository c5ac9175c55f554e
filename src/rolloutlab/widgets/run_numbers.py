"""The numbers of a run: their names, titles and captions, in the order in which a view shows them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Unit = Literal["", "share", "$", "s"]


@dataclass(frozen=True)
class RunNumber:
    """A number of the steps of a run. says: its caption. unit: a share is shown as percent."""

    name: str
    title: str
    says: str
    unit: Unit = ""


NUMBERS = (
    RunNumber("held_out", "Mean reward, held out", "Of rows that are not trained on; a point is that checkpoint."),
    RunNumber("reward", "Mean reward, trained on", "A point is the checkpoint before its job."),
    RunNumber(
        "other_reward", "Mean reward of answers of another checkpoint", "What the job trained on, sampled before."
    ),
    RunNumber("nothing", "Groups with nothing to learn", "All their rewards are equal.", "share"),
    RunNumber("entropy", "Entropy, nats per token", "A slow fall is usual. Long answers can differ at 0.01."),
    RunNumber("kl_base", "KL to @0, nats per token", "Grows while it learns; no limit of its own."),
    RunNumber("length", "Answer length, tokens", "The mean over the answers that were trained on."),
    RunNumber("cut_off", "Cut off", "Answers that the token limit ended.", "share"),
    RunNumber("pass_rate", "Pass rate", "Answers with a reward of 1.", "share"),
    RunNumber("held_out_pass_rate", "Pass rate, held out", "Answers with a reward of 1.", "share"),
    RunNumber("held_out_length", "Answer length, held out, tokens", "The mean over the held-out answers."),
    RunNumber("held_out_cut_off", "Cut off, held out", "Held-out answers that the token limit ended.", "share"),
    RunNumber("kl", "KL to the sampler, nats per token", "The median over the steps of a job."),
    RunNumber("clipped", "Clipped", "Tokens whose gradient a bound changed.", "share"),
    RunNumber("loss", "Loss", "The mean over the steps of a job. No goal, any size or sign."),
    RunNumber("grad_norm", "Gradient norm", "Before clipping, the mean over the steps of a job."),
    RunNumber("tokens", "Tokens sampled", "Of the answers that were trained on."),
    RunNumber("trained_tokens", "Tokens trained", "Those that the job had something to learn from."),
    RunNumber("seconds", "Training time, s", "Of the job, without sampling.", "s"),
    RunNumber("cost", "Cost, $", "Sampling, judging and training, by the prices at that time.", "$"),
)
_PARTS = {"reward.": "{}, trained on", "held_out.": "{}, held out"}
"""Prefixes of the names of reward components, and their titles."""
REWARDS = ("held_out", "reward")
"""The numbers that are drawn in one chart."""
OPEN = 9
"""How many charts are open; the others are folded."""


def known_numbers(names: Iterable[str]) -> list[RunNumber]:
    """Find the numbers with these names, in the order of a view. Components of rewards come after the rewards."""
    there = set(names)
    parts = [
        RunNumber(name, title.format(name.removeprefix(prefix)), "A component of the reward.")
        for prefix, title in _PARTS.items()
        for name in sorted(there)
        if name.startswith(prefix)
    ]
    fixed = [each for each in NUMBERS if each.name in there]
    rewards = [each for each in fixed if each.name in REWARDS]
    return [*rewards, *parts, *fixed[len(rewards) :]]
