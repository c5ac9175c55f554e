"""What the lab has measured of a checkpoint: its mean held-out reward, and its comparison with checkpoint 0."""

from collections.abc import Iterator
from dataclasses import dataclass

from rolloutlab.sampling.config import read_config
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import COMPARED, StoredCollection
from rolloutlab.training.compare import name_of_samples
from rolloutlab.training.jobs import LabJobs
from rolloutlab.training.measures import Measure, again_name, held_out_name, measure
from rolloutlab.training.models import Checkpoint
from rolloutlab.trajectories.collection import Collection

_PREFIXES = COMPARED, held_out_name(""), again_name("")
"""The beginnings of names of collections that comparisons and loops sample to measure a checkpoint."""


@dataclass(frozen=True)
class Evaluation:
    """The newest measurement of a checkpoint.

    Attributes:
        label: The collection that the checkpoint sampled.
        mean: The mean reward.
        interval: The interval of the mean, as `%rewards` shows it; None if there is none.
        prompts: The number of prompts.
        completions: The number of completions.
        trained: How many of the prompts the checkpoint was trained on.
        compared: The lines of `%compare` for checkpoint 0 and this one. Empty unless checkpoint 0 answered the same
            prompts with the same seeds, and was scored alike.
        notes: Notes on jobs whose prompts are not known.
    """

    label: str
    mean: float
    interval: tuple[float, float] | None
    prompts: int
    completions: int
    trained: int = 0
    compared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_evaluation(lab: Lab, jobs: LabJobs, checkpoint: Checkpoint) -> Evaluation | None:
    """Find the newest measurement of a checkpoint, if possible on prompts that it was not trained on; None if none.

    Raises:
        ServiceError: the service does not say which jobs trained the model.
    """
    base = Checkpoint(checkpoint.model, 0)
    [(trained, notes)] = jobs.trained_between(base, [checkpoint])
    listed = [(stored, len(trained & lab.prompts([_label(stored)]))) for stored in _find_measurements(lab, checkpoint)]
    chosen = next((each for each in listed if not each[1]), listed[0] if listed else None)
    if chosen is None:
        return None
    from rolloutlab.trajectories.overview import mean_and_interval
    from rolloutlab.trajectories.rewards_data import RewardsData

    stored, count = chosen
    rows = RewardsData(lab, [stored], None).rows
    mean, interval = mean_and_interval(rows)
    if mean is None:
        return None
    compared = () if checkpoint.step == 0 else _compare(lab, base, checkpoint, stored, (trained, notes))
    sizes = len(rows.groups), len(rows)
    return Evaluation(_label(stored), mean, interval, *sizes, count, compared, tuple(notes))


def _label(stored: StoredCollection) -> str:
    return f"{stored.name}:{stored.generation}"


def _find_measurements(lab: Lab, checkpoint: Checkpoint) -> Iterator[StoredCollection]:
    """Yield the collections with rewards that a comparison or loop sampled from this checkpoint alone, newest first."""
    names = {checkpoint.model.name, checkpoint.model.id}
    names |= {f"{name}@{checkpoint.step}" for name in names}  # comparisons sample under this name
    results = lab.results.by_id()
    for stored in lab.collections():
        result = results.get(stored.id)
        if result is None or not stored.name.startswith(_PREFIXES):
            continue
        if result.scored and not result.others and result.step == checkpoint.step and result.model in names:
            yield stored


def _compare(
    lab: Lab,
    base: Checkpoint,
    checkpoint: Checkpoint,
    stored: StoredCollection,
    apart: tuple[set[str], list[str]],
) -> tuple[str, ...]:
    """Write the lines of `%compare`; none if no collection of checkpoint 0 can be paired with this one."""
    from rolloutlab.trajectories.comparison import Side, compare_sides  # and numpy

    ending = name_of_samples("", checkpoint).removeprefix(COMPARED)
    compares = stored.name.startswith(COMPARED) and stored.name.endswith(ending)
    name = stored.name.removeprefix(COMPARED).removesuffix(ending) if compares else stored.name
    wanted = name_of_samples(name, base) if compares else name
    after = Collection(lab, stored)
    for each in _find_measurements(lab, base):
        before = Collection(lab, each)
        if each.name == wanted and _can_be_paired(lab, before, after):
            scoring = lab.scorings.last(stored)
            weights = scoring.options.get("weights") if scoring else None
            sides = Side(str(base), before), Side(str(checkpoint), after)
            return tuple(line for line in compare_sides(name, sides, [apart], weights).words())
    return ()


def _can_be_paired(lab: Lab, before: Collection, after: Collection) -> bool:
    """Whether two collections have the same prompts, seeds and settings, and were scored alike."""
    texts, seeds = [], []
    for each in (before, after):
        texts.append([text for _, text in lab.group_texts(each.stored)])
        plan = read_config(each.stored.plan)
        seeds.append(plan and (plan.seed, plan.n))
    if texts[0] != texts[1] or seeds[0] != seeds[1] or seeds[0] is None:
        return False
    one, other = (_measure(lab, each) for each in (before, after))
    return not one.differences(other, one.state | other.state)


def _measure(lab: Lab, collection: Collection) -> Measure:
    return measure(lab.scorings.last(collection.stored), read_config(collection.stored.plan), collection.groups)
