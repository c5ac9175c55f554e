"""Verdicts of a judge in the lab, stored as they come, with their cost, so that a judging resumes where it ended."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from rolloutlab.api.wire.chat import Usage
from rolloutlab.sampling.batches import Batches
from rolloutlab.sampling.metering import Meter
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Group, StoredCollection
from rolloutlab.store.scorings import RewardResult


@dataclass(frozen=True)
class Verdict:
    """A score from 0 to 1, and the judge's sentence on it. place: where the completion stood, from 0, once known."""

    score: float
    why: str | None
    place: int | None = None


class Hearing(NamedTuple):
    """One judgement of a group: a verdict on each trajectory.

    of: the digest of the request. by: the model, under the name that its service reports.
    """

    of: str
    by: str
    verdicts: Sequence[Verdict]


class Place(NamedTuple):
    """Which judgement: the number of its group among those that are judged, and the number of its sample."""

    group: int
    sample: int


class StoredVerdicts:
    """The verdicts of a judge on some groups, stored as remembered results: per trajectory, verdicts by sample.

    They change no reward. heard: the judgements on disk, by place. fingerprint: a hash of the judge and its options.
    meter: counts the requests; its counts are recorded with each batch.
    """

    def __init__(
        self, lab: Lab, collection: StoredCollection, groups: Sequence[Group], fingerprint: str, meter: Meter
    ) -> None:
        self._lab, self._collection, self._meter = lab, collection, meter
        self._groups, self._fingerprint = groups, fingerprint
        self._batches = Batches[Usage | tuple[Place, Hearing]](self._take)
        self.heard: dict[Place, Hearing] = {}

    def stored(self) -> dict[Place, Hearing]:
        """The judgements of earlier runs that have a verdict on every trajectory that a group has now."""
        if not self._lab.scorings.is_remembered(self._fingerprint):
            return {}
        of_trajectory = self._lab.scorings.remembered(self._fingerprint, self._ids)
        hearings = {}
        for number, group in enumerate(self._groups):
            rows = [of_trajectory.get(each.id, {}) for each in group.trajectories]
            for sample in set(rows[0]).intersection(*rows[1:]):
                verdict_rows = [row[sample] for row in rows]
                if len({(each["of"], each["by"]) for each in verdict_rows}) == 1:  # else two runs wrote them at once
                    verdicts = [Verdict(each["score"], each["why"], each["place"]) for each in verdict_rows]
                    hearings[Place(number, int(sample))] = Hearing(
                        verdict_rows[0]["of"], verdict_rows[0]["by"], verdicts
                    )
        return hearings

    def forget(self) -> None:
        """Delete the judgements of these groups by this judge."""
        self._lab.scorings.forget_results(self._fingerprint, self._ids)

    def spent(self, usage: Usage | None) -> None:
        """Count the tokens of an answer, with the next batch."""
        if usage:
            self._batches.add(usage)

    async def add(self, place: Place | None, hearing: Hearing | None) -> None:
        """Store a judgement, if there is one, and what answers have cost; LabError if that fails."""
        if place and hearing:
            self._batches.add((place, hearing))
        await self._batches.flush()

    async def flush_at_end(self) -> None:
        """Store what is left. LabError if that fails twice."""
        await self._batches.flush_at_end()

    @property
    def _ids(self) -> list[int]:
        return [each.id for group in self._groups for each in group.trajectories]

    def _take(self, items: Sequence[Usage | tuple[Place, Hearing]]) -> None:
        # first what it cost: after a kill between the two it is paid and recorded, and its verdicts are asked again
        self._meter.record(self._collection)
        usages = [each for each in items if isinstance(each, Usage)]
        heard = dict(each for each in items if not isinstance(each, Usage))
        self._lab.at_once(lambda: self._store(usages, heard))
        self.heard.update(heard)

    def _store(self, usages: Sequence[Usage], heard: Mapping[Place, Hearing]) -> None:
        if usages:
            tokens = (sum(usage.prompt_tokens for usage in usages), sum(usage.completion_tokens for usage in usages))
            self._lab.spend(self._collection, *tokens)
        new: dict[int, dict[str, Any]] = defaultdict(dict)
        for place, hearing in heard.items():
            members = self._groups[place.group].trajectories
            for trajectory, verdict in zip(members, hearing.verdicts, strict=True):
                row = {"of": hearing.of, "by": hearing.by, **asdict(verdict)}
                new[trajectory.id][str(place.sample)] = row
        before = self._lab.scorings.remembered(self._fingerprint, new)
        rows = {number: before.get(number, {}) | samples for number, samples in new.items()}
        self._lab.scorings.remember([RewardResult(self._fingerprint, *row) for row in rows.items()])
