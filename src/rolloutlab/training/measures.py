"""Measured mean rewards of a loop: how each was measured, and which can be compared."""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from rolloutlab.sampling.code_digest import changed_parts, is_part
from rolloutlab.sampling.config import SamplingConfig
from rolloutlab.store.models import Group, NewGroup, dump_items
from rolloutlab.store.scorings import NewScoring

SETTINGS = (
    "temperature", "top_p", "max_tokens", "stop", "max_turns", "tools", "env", "program", "fixed", "prompt_column",
)  # fmt: skip
"""Settings that two means must share to be comparable. Seeds and `n` are left out: they only change the noise."""


BEGINS_RUN = frozenset({"reward", "prompt", "env", "program"})
"""Differences by which the jobs of a model begin another run. Other rows do so only if they are held out."""


@dataclass(frozen=True)
class Measure:
    """How a mean was measured.

    scoring: the scoring that gave the rewards; None if the environment or the program gave them.
    plan: the settings of the sampling; None if it was not sampled in this lab.
    rows: digests of the rows of the groups, sorted.
    prompts: digests of rows with their prompts, sorted. Environments and programs make their own prompts, which are
        left out.
    """

    scoring: NewScoring | None
    plan: SamplingConfig | None
    rows: tuple[str, ...]
    prompts: tuple[str, ...]

    @property
    def is_described(self) -> bool:
        """Whether the reward code was stored part by part, and not as one digest, as earlier versions did."""
        of_code = self.plan is None or not isinstance(self.plan.code, str)
        return of_code and (
            self.scoring is None or self.scoring.source != "function" or "parts" in self.scoring.options
        )

    @property
    def state(self) -> Set[str]:
        """The paths of parts of the reward code that scoring itself changed."""
        return frozenset(self.plan.state if self.plan else ())

    def differences(self, other: "Measure", state: Set[str], *, rows: bool = True) -> list[str]:
        """Return what differs from another measure, as words; none if the two means can be compared.

        state: paths of parts of the reward code to leave out. rows: compare the rows as well.
        """
        words = [] if _same_reward(self, other, state) else ["reward"]
        changed = [] if self.plan is None or other.plan is None else _find_changes(self.plan, other.plan)
        same_rows = self.rows == other.rows
        if "template" in changed or (same_rows and self.prompts != other.prompts):
            words.append("prompt")
        words += [name for name in changed if name != "template"]
        return words + (["rows"] if rows and not same_rows else [])


def measure(scoring: NewScoring | None, plan: SamplingConfig | None, groups: Sequence[Group | NewGroup]) -> Measure:
    """Describe how the mean of groups is measured, which are stored or still to be sampled."""
    rows = [json.dumps(dict(group.row), sort_keys=True) for group in groups]
    own = plan is not None and (plan.env or plan.program)
    turns = [[] if own else [group.prompt, *group.script] for group in groups]
    prompts = [f"{row}{''.join(map(dump_items, each))}" for row, each in zip(rows, turns, strict=True)]
    return Measure(scoring, plan, digest_texts(rows), digest_texts(prompts))


def were_changed(words: Sequence[str]) -> str:
    """Return that these were changed, as a clause: `reward was changed`, `prompt and held-out rows were changed`."""
    named = [word for word in words if word.removeprefix("held-out ") not in words or not word.startswith("held-out ")]
    were = "were" if len(named) > 1 or named[0].endswith("rows") else "was"
    return f"{' and '.join(named)} {were} changed"


def held_out_name(name: str) -> str:
    """Return the name of the collection of a loop's held-out rows."""
    return f"held_out.{name}"


def again_name(name: str) -> str:
    """Return the name of the collection of a loop's held-out rows under its best checkpoint, with other seeds."""
    return f"best.{name}"


def digest_texts(texts: Sequence[str]) -> tuple[str, ...]:
    """Hash each text. The digests are sorted, so that the order of the texts does not matter."""
    return tuple(sorted(sha256(text.encode()).hexdigest() for text in texts))


def _find_changes(one: SamplingConfig, other: SamplingConfig) -> list[str]:
    """Return the names of the settings that differ; `template` stands for the prompt."""
    names = [name for name in SETTINGS if getattr(one, name) != getattr(other, name)]
    return ["template", *names] if one.template != other.template else names


def _same_reward(one: Measure, other: Measure, state: Set[str]) -> bool:
    """Whether two measures give the same rewards, as far as their code and settings show."""
    codes = [each.plan.code for each in (one, other) if each.plan and each.plan.code]
    if len(codes) == 2 and not _same_parts(codes[0], codes[1], state):
        return False
    return _same_scoring(one.scoring, other.scoring, state)


def _same_parts(one: Mapping[str, str] | str, other: Mapping[str, str] | str, state: Set[str]) -> bool:
    """Whether two descriptions are of the same code. One digest, as earlier versions stored, equals any parts."""
    if isinstance(one, str) or isinstance(other, str):
        return type(one) is not type(other) or one == other
    return all(is_part(path, state) for path in changed_parts(one, other))


def _same_scoring(one: NewScoring | None, other: NewScoring | None, state: Set[str]) -> bool:
    """Whether two scorings give the same rewards, as far as what the lab stores of them shows."""
    if one is None or other is None:
        return one is other
    if _weights(one.options) != _weights(other.options) or one.source != other.source:
        return False
    parts = [scoring.options.get("parts") for scoring in (one, other)]
    if parts[0] and parts[1]:
        return list(one.names) == list(other.names) and _same_parts(parts[0], parts[1], state)
    for kind in ("digests", "fingerprints"):  # labs of earlier versions have these, or the text alone
        prints = [scoring.options.get(kind) or {} for scoring in (one, other)]
        if all(each and all(each.values()) for each in prints):
            return prints[0] == prints[1]
    return (list(one.names), one.code) == (list(other.names), other.code)


def _weights(options: Mapping[str, Any]) -> dict[str, Any]:
    return dict(options.get("weights") or {})
