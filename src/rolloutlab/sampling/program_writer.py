"""Storage of captured rollouts in the lab, with their rewards, as they end."""

import time
from collections.abc import Sequence

from rolloutlab.errors import ConflictError, RolloutlabError, SamplingError
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.program_runner import EndedRollout
from rolloutlab.sampling.programs import ProgramRun, to_resume
from rolloutlab.store.lab import Lab
from rolloutlab.store.locks import let_go
from rolloutlab.store.models import Arrival, Group, Placed, Score, StoredCollection

_SOURCE = "function"


class ProgramWriter:
    """Writes rollouts into a generation of a collection, which is created with the first one; `close` unlocks it."""

    def __init__(self, lab: Lab, run: ProgramRun) -> None:
        self._lab = lab
        self._run = run
        self._groups = [group for group in run.groups if isinstance(group, Group)]
        self.collection: StoredCollection | None = run.begun
        self.total, self.done, self.failed, self.tokens = len(run.seats), 0, 0, 0
        self._first_error: RolloutlabError | None = None
        self._since = time.monotonic()
        self._held = lab.lock_for_sampling(run.begun) if run.begun else None
        if run.begun and lab.collection(self.label).trajectories != run.begun.trajectories:
            self.close()
            raise ConflictError(f"another kernel has just stored rollouts of {self.label}", hint="run the cell again")

    @property
    def label(self) -> str:
        begun = self.collection
        return f"{begun.name}:{begun.generation}" if begun else self._run.name

    def close(self) -> None:
        held, self._held = self._held, None
        if held:
            let_go(held)

    def take(self, ended: Sequence[EndedRollout]) -> None:
        """Store rollouts with their rewards, at once; a generation is created with its first ones."""
        groups = self._groups
        for each in ended:
            _ = each.histories  # merged before the lab is locked
        try:
            self._lab.at_once(lambda: self._put(ended))
        except BaseException:
            if not groups:  # nothing of the generation was stored
                self.close()
                self.collection, self._groups = None, []
            raise
        self.done += len(ended)
        self.tokens += sum(each.usage[1] for each in ended)

    def fail(self, error: RolloutlabError) -> None:
        """Count a rollout that sampled nothing."""
        self.failed += 1
        self._first_error = self._first_error or error

    def check(self) -> None:
        """SamplingError when some rollouts sampled nothing."""
        if error := self._first_error:
            if not self.done:
                raise error
            message = (
                f"{self.failed:,} of {count(self.total, 'rollout')} of {self.label} sampled nothing: {error.message}"
            )
            raise SamplingError(message, hint=self.rest()) from error

    def rest(self) -> str:
        """What plays the rest."""
        return to_resume(self.label, self._run.program.name)

    def so_far(self) -> str:
        """What is stored after an error, and what to type; empty for nothing."""
        return f"{self._stored()}; they are kept -> {self.rest()}" if self.done else ""

    def interrupted(self) -> tuple[str, str]:
        """Message and hint after an interrupt."""
        if not self.done:
            return "no rollout had ended yet, and nothing was stored", "run the cell again"
        return f"{self._stored()} and are kept", f"{self.rest()} plays the other {self.total - self.done:,}"

    def note(self) -> str:
        """Failures and speed."""
        seconds = time.monotonic() - self._since
        parts = [f"{self.failed:,} failed"] if self.failed else []
        return ", ".join([*parts, *([f"{self.tokens / seconds:,.0f} tokens/s"] if self.done else [])])

    def _stored(self) -> str:
        return f"{self.done:,} of {count(self.total, 'rollout')} had ended"

    def _put(self, ended: Sequence[EndedRollout]) -> None:
        if not self._groups:
            self._begin(ended)
        scores = []
        for each in ended:
            group = self._groups[each.place]
            fitted = self._lab.fit_prompt(group, each.prompt)
            items = each.histories[0].messages_and_choices[len(fitted.prompt) :]
            plan = self._run.plan
            sampling = {**plan.sampling(), **each.captured.sampling}
            arrival = Arrival(each.position, items, 0, each.extra())
            self._lab.put_all([Placed(fitted, [arrival], plan.model, each.step, sampling, each.usage)])
            if each.end.reward is not None:
                ref = self._lab.refs(group)[each.position]
                scores.append(Score(ref, each.end.reward, each.end.components))
        if scores:
            self._lab.rewards.give(scores, _SOURCE)

    def _begin(self, ended: Sequence[EndedRollout]) -> None:
        step = next((each.step for each in ended if each.step is not None), None)
        plan = self._run.plan.model_copy(update={"step": step}).model_dump(mode="json", exclude_defaults=True)
        self.collection = self._lab.open_collection(self._run.name, plan)
        self._held = self._lab.lock_for_sampling(self.collection)
        self._groups = self._lab.add_groups(self.collection, [*self._run.groups])  # type: ignore[list-item]
