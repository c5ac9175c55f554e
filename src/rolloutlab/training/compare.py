"""Comparison of checkpoints: each samples the prompts of a collection, or reuses samples, and is scored."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypedDict

from rolloutlab.environments.protocol import Source
from rolloutlab.errors import InputError
from rolloutlab.sampling.config import SamplingConfig, read_config
from rolloutlab.sampling.plan import SamplingRun, plan_again, plan_resume
from rolloutlab.sampling.programs.program import Program
from rolloutlab.sampling.template import Prompt
from rolloutlab.sampling.tools import Tools
from rolloutlab.store.lab import Lab, texts_of
from rolloutlab.store.models import COMPARED, Group, NewGroup, StoredCollection
from rolloutlab.training.jobs import LabJobs
from rolloutlab.training.models import NEWEST, OLDEST, Checkpoint, Models
from rolloutlab.trajectories.collection import Collection

_OF_RUN: dict[str, Any] = {"step": None, "total": 0}
"""Settings that sampling changes, with their values before it."""
_OF_ROWS: dict[str, Any] = {"parts": {}, "types": {}, "template": [], "prompt_column": None}
"""Settings of all rows together. The samples of a single group do not depend on them."""
_EARLIER_RUN = re.compile(r"[\w.-]+/[\w.-]+:\d+(@.*)?")
"""The name of an earlier run of a model, such as `lab/practice:1`, also with a step."""


def find_samples(
    lab: Lab, name: str, plan: SamplingConfig, groups: Sequence[NewGroup | Group], *, unscored: bool
) -> StoredCollection | None:
    """The generation of `name` with what earlier comparisons have sampled of a run; None if there is nothing.

    If an earlier generation has the same groups, it is that generation. If earlier generations have only some of them,
    at the same positions and so with the same seeds, their samples are copied into a new generation.

    Args:
        lab: The lab.
        name: The name of the collection.
        plan: The settings of the run.
        groups: The groups of the run.
        unscored: No functions score the run. Then generations whose rewards functions have replaced are passed over.
    """
    if plan.checkpoint is None:
        return None
    wanted = [_key(plan, texts_of(NewGroup(group.prompt, group.row, group.script))) for group in groups]
    samples: dict[int, int] = {}
    for each in lab.generations(name):
        earlier = read_config(each.plan)
        if earlier is None or not _equal(plan, earlier, _OF_RUN | _OF_ROWS) or (unscored and lab.scorings.last(each)):
            continue
        there = [(group_id, _key(plan, texts)) for group_id, texts in lab.group_texts(each)]
        if [key for _, key in there] == wanted and _equal(plan, earlier, _OF_RUN):
            return each
        for place, (key, (group_id, other)) in enumerate(zip(wanted, there, strict=False)):
            if key == other:
                samples.setdefault(place, group_id)
    if not samples:
        return None
    new = [NewGroup(group.prompt, group.row, group.script) for group in groups]
    stored, by_program = plan.model_dump(mode="json", exclude_defaults=True), unscored and plan.program is not None
    return lab.copy_groups(name, stored, new, samples, by_program=by_program)


def _equal(one: SamplingConfig, other: SamplingConfig, but: dict[str, Any]) -> bool:
    return one.model_copy(update=but) == other.model_copy(update=but)


def _key(plan: SamplingConfig, texts: tuple[str, str, str]) -> tuple[str, ...]:
    """What a group is sampled from: prompt, row and script. For a program, which writes the prompt itself, the row."""
    return texts[1:2] if plan.program else texts


Play = Callable[[SamplingRun], Collection]
Given = str | int | None
"""A checkpoint as it is written: a step, `lab/sorter@3`, or `latest`."""


def best_checkpoint(given: Any) -> Given:
    """The best checkpoint of a run or a loop; anything else as it was given.

    Raises:
        InputError: no mean of it tells which is the best.
    """
    if not hasattr(given, "best"):
        return given  # type: ignore[no-any-return]
    if given.best is None:
        raise InputError(f"{given.name} has no best checkpoint: nothing of it has a mean reward", hint="%runs")
    return given.best  # type: ignore[no-any-return]


def find_checkpoints(
    models: Models, given: Sequence[Given], before: Given, after: Given, model: str | None, name: str
) -> list[Checkpoint]:
    """The checkpoints to compare, the base first: those in `given`, or `before` and `after`.

    Args:
        models: The models.
        given: Checkpoints, as a user wrote them.
        before: The base; None is the oldest checkpoint.
        after: The checkpoint that is compared with it; None is the newest.
        model: The model of checkpoints that are only steps; None is the selected one.
        name: The collection, for messages.

    Raises:
        InputError: there are fewer than two, or one of several twice; or `given` and `before` or `after` are both used.
        NotFoundError: a checkpoint does not exist.
    """
    if given and (before is not None or after is not None):
        hint = f"%compare {name} {' '.join(map(str, given))}"
        raise InputError("checkpoints are given both by name and as --before or --after", hint=hint)
    if len(given) == 1:
        hint = f"%compare {name} {given[0]} lab/practice@3"
        raise InputError(f"{given[0]} is one checkpoint: a comparison needs two", hint=hint)
    try:
        chosen = models.checkpoints(given or [OLDEST if before is None else before, after], model or models.selected)
    except InputError as error:
        if any(_EARLIER_RUN.fullmatch(str(each)) for each in given):
            runs = " ".join(str(each).partition("@")[0] for each in given)
            error.hint = f"%compare {name} {runs} --best"
        raise
    base, *others = chosen
    if not given and after in (None, NEWEST) and str(base) == str(others[0]):
        message = f"{base.model.name} has no checkpoint after {base.step} yet"
        raise InputError(message, hint=f"%%train {name}")
    if len(chosen) > 2 and (twice := [one for one, other in pairwise(sorted(map(str, chosen))) if one == other]):
        raise InputError(f"{twice[0]} is given twice", hint="each checkpoint once")
    return chosen


def note_on_base(given: Sequence[Given], before: Given, base: Checkpoint) -> list[str]:
    """A line that names the base of a comparison if it is the default one, and that is not checkpoint 0."""
    if given or before is not None or not base.step:
        return []
    made_from = base.model.made_from
    why = f", which was made from {made_from[0]}" if made_from and made_from[0].step == base.step else ""
    return [f"compared with {base}, the oldest checkpoint of {base.model.name}{why}"]


def find_collection(jobs: LabJobs, checkpoints: Sequence[Checkpoint], over: Any) -> str:
    """The collection that models were trained on last. A comparison without a name uses its prompt and settings.

    Raises:
        InputError: `over` has no rows; or there is no such collection, or several. The hint names what to give.
    """
    names, written = jobs.trained_last(checkpoints), " ".join(map(str, checkpoints))
    hint = f"%compare {names[0] if names else 'NAME'} {written} --over ROWS"
    if over is None:
        raise InputError("the collection is missing whose prompts they are to answer", hint=hint)
    if not names:
        raise InputError(f"no collection is known that {written} were trained on", hint=hint)
    if len(names) > 1:
        message = f"{written} were trained on {', '.join(names)}: say of which one the prompt is"
        raise InputError(message, hint=hint)
    return names[0]


class CompareOptions(TypedDict, total=False):
    """What a comparison can be sampled and judged with.

    n: completions per prompt. By default as many as the collection has.
    prompt: the prompt for other rows, if that of the collection is a function.
    model: the model of checkpoints that are given as steps. By default the selected one.
    tools: the tools that the collection was sampled with.
    env: the environment that the collection was sampled with.
    concurrency: requests at a time, or rollouts of a program. 64 by default.
    variables: values for `{{x}}` where a row has no column x.
    anytime: make a wider interval, which stays valid if you compare again and again while rows are added.
    bounds: the smallest and largest possible reward. By default those of its components; otherwise 0 and 1, or -1 and
        1, if all rewards are within. Without bounds there is no verdict.
    """

    n: int | None
    prompt: Prompt | None
    model: str | None
    tools: Sequence[Callable[..., Any]]
    env: Any
    concurrency: int
    variables: Mapping[str, Any] | None
    anytime: bool
    bounds: tuple[float, float] | None


@dataclass(frozen=True)
class SideSampler:
    """Samples the prompts of a collection from one checkpoint after another.

    lab: the lab.
    collection: the collection.
    play: executes a sampling run.
    source: the environment.
    program: the program, if the collection was captured from one.

    The other fields are as of `Session.compare`.
    """

    lab: Lab
    collection: StoredCollection
    play: Play
    over: Any = None
    variables: Mapping[str, Any] | None = None
    n: int | None = None
    tools: Sequence[Callable[..., Any]] = ()
    prompt: Prompt | None = None
    source: Source | None = None
    program: Program | None = None

    def sample(self, checkpoint: Checkpoint, *, scored: bool) -> tuple[Collection, int]:
        """Sample from a checkpoint; return the samples, and how many of them an earlier comparison had sampled.

        scored: functions will score the samples. Otherwise the environment or the program gives their rewards.
        """
        run = self._run(checkpoint)
        earlier = find_samples(self.lab, run.name, run.plan, run.groups, unscored=not scored)
        if earlier is None:
            return self.play(run), 0
        self.lab.keep_name(earlier.name, earlier.id)
        label = f"{earlier.name}:{earlier.generation}"
        reused = self.lab.collection(label).trajectories
        rest = self._rest(label, run)
        if rest is None:
            return Collection(self.lab, self.lab.by_id(earlier.id)), reused
        return self.play(rest), reused

    def _run(self, checkpoint: Checkpoint) -> SamplingRun:
        target, name = str(checkpoint), name_of_samples(self.collection.name, checkpoint)
        return plan_again(
            self.lab, self.collection.label, name, target, self.over, self.variables or {}, self.n, Tools(self.tools),
            self.prompt, self.source, {"checkpoint": checkpoint.key}, self.program,
        )  # fmt: skip

    def _rest(self, label: str, run: SamplingRun) -> SamplingRun | None:
        """The part of a run that is not sampled yet; None if nothing is left."""
        rest = plan_resume(self.lab, label, run.tools, run.source, program=run.program)
        return replace(rest, notes=run.notes) if rest.rollouts else None


def name_of_samples(name: str, checkpoint: Checkpoint) -> str:
    """The collection of what a checkpoint has sampled: `compare.NAME.lab.sorter.step3`."""
    model = re.sub(r"[^\w.-]", ".", checkpoint.model.name)
    return f"{COMPARED}{name}.{model}.step{checkpoint.step}"
