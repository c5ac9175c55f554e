"""Storage of what a run samples, as it arrives, and counts of it.

`TrajectoryWriter` stores completions and the rollouts of programs alike. What differs is the type of its records, and
the noun in its messages.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Generic, Protocol, TypeVar

from rolloutlab.errors import ConflictError, RolloutlabError, SamplingError
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.config import SamplingConfig
from rolloutlab.sampling.plan import SamplingRun
from rolloutlab.sampling.programs.program import rerun_hint, resume_hint
from rolloutlab.store.lab import Lab
from rolloutlab.store.locks import CollectionLock
from rolloutlab.store.models import CollectionSummary, Group, NewGroup, StoredCollection

WHAT_IS_STORED = "%collections lists what is stored"
"""The hint while the first answers of a new generation wait for the disk: its number is not known yet."""


class SampledRecord(Protocol):
    """What is stored at a time: conversations after an answer, or a rollout of a program that has ended.

    step: the sampled checkpoint, if the service reports it.
    usage: prompt and sampled tokens.
    begun: how many trajectories it stores.
    done: how many of these are finished.
    unscored: how many of these are finished episodes without a reward.
    surplus: how many choices came besides those that were requested. They are not stored.
    trouble: why the rollout of a program has not ended well; "" if it has, and for completions.
    """

    @property
    def step(self) -> int | None: ...
    @property
    def usage(self) -> tuple[int, int]: ...
    @property
    def begun(self) -> int: ...
    @property
    def done(self) -> int: ...
    @property
    def unscored(self) -> int: ...
    @property
    def surplus(self) -> int: ...
    @property
    def trouble(self) -> str: ...


R = TypeVar("R", bound=SampledRecord)
R_contra = TypeVar("R_contra", bound=SampledRecord, contravariant=True)


class Put(Protocol[R_contra]):
    """Writes records to groups inside a transaction. begins: whether they are the first records of the generation."""

    def __call__(self, records: Sequence[R_contra], groups: Sequence[Group], *, begins: bool) -> None: ...


class Generation:
    """A generation, which is created together with its first records, and locked against other processes by `lock`.

    `groups` are the stored groups: none until something is stored.

    Args:
        lab: the store.
        name: the collection.
        plan: its settings.
        groups: new or stored groups.
        begun: the stored generation; None for a new one.
        what: the plural noun of its records, for an error.

    Raises:
        ConflictError: another process samples it, or has stored something of it since it was looked up.
    """

    def __init__(
        self,
        lab: Lab,
        name: str,
        plan: SamplingConfig,
        groups: Sequence[NewGroup | Group],
        begun: CollectionSummary | None,
        what: str,
    ) -> None:
        self._lab = lab
        self._name = name
        self._plan = plan
        self._wanted = groups
        self.groups = [group for group in groups if isinstance(group, Group)]
        # a top-up: the plan has more trajectories for some groups than the stored one
        self._grows = begun is not None and plan.topped_up != SamplingConfig.model_validate(begun.plan).topped_up
        self.collection: StoredCollection | None = begun
        self.lock = CollectionLock()
        if begun:
            self.lock.keep(lab.lock_for_sampling(begun))
            try:
                self._check_unchanged(begun, what)
            except BaseException:
                self.lock.let_go()
                raise

    def _check_unchanged(self, begun: CollectionSummary, what: str) -> None:
        """Raise ConflictError if another process has stored something since the generation was looked up."""
        if self._lab.collection(self.label).trajectories != begun.trajectories:
            raise ConflictError(f"another kernel has just stored {what} of {self.label}", hint="run the cell again")

    @property
    def label(self) -> str:
        """The collection's name and generation, under the name that it had when the run began."""
        begun = self.collection
        return f"{begun.name}:{begun.generation}" if begun else self._name

    def store(self, put: Callable[[Sequence[Group]], None], step: int | None) -> None:
        """Call `put` with the groups in one transaction, which also creates the generation if it is not stored yet.

        step: the checkpoint that a new generation keeps in its plan.
        """
        if self.groups:
            self._lab.at_once(lambda: self._store_more(put))
            self._grows = False
            return

        def begin() -> tuple[StoredCollection, list[Group]]:
            plan = self._plan.model_copy(update={"step": step}).model_dump(mode="json", exclude_defaults=True)
            collection = self._lab.open_collection(self._name, plan)
            self.lock.keep(self._lab.lock_for_sampling(collection))  # before any other process can see it
            wanted = [NewGroup(group.prompt, group.row, group.script) for group in self._wanted]
            groups = self._lab.add_groups(collection, wanted)
            put(groups)
            return collection, groups

        try:
            collection, self.groups = self._lab.at_once(begin)
        except BaseException:
            self.lock.let_go()
            raise
        self._lab.keep_name(collection.name, collection.id)
        self.collection = self._lab.by_id(collection.id)  # under the name that it has from now on

    def _store_more(self, put: Callable[[Sequence[Group]], None]) -> None:
        """Store into the stored groups; the first call of a top-up also stores their new sizes.

        Not earlier: a run that was interrupted before its first record would leave groups that look incomplete.
        """
        if self._grows and self.collection:
            self._lab.keep_sizes(self.collection.id, self._plan.topped_up, self._plan.total)
        put(self.groups)


class TrajectoryWriter(Generic[R]):
    """Writes records into a generation of a collection. The first records create the generation.

    with_budget: adds the budget of the call to a cell.

    Attributes, all of the run so far:
        total: the trajectories that the plan samples.
        begun: trajectories of which something is stored.
        done: finished trajectories.
        failed: trajectories whose request, or program, failed.
        tokens: sampled tokens.
    """

    def __init__(self, lab: Lab, run: SamplingRun, put: Put[R], with_budget: Callable[[str], str] = str) -> None:
        self._run = run
        self._with_budget = with_budget
        self._put = put
        self._noun, self._arrived = ("rollout", "ended") if run.program else ("completion", "arrived")
        self._generation = Generation(lab, run.name, run.plan, run.groups, run.begun, f"{self._noun}s")
        self.total = sum(len(rollout.positions) for rollout in run.rollouts)
        self.done = 0
        self.begun = 0
        self.failed = 0
        self._unscored = self._unstored = self._surplus = 0
        self.tokens = 0
        self._troubles: list[str] = []
        self._first_error: RolloutlabError | None = None
        self._since = time.monotonic()

    @property
    def collection(self) -> StoredCollection | None:
        """The generation, once it is stored."""
        return self._generation.collection

    def under_way(self) -> AbstractContextManager[None]:
        """Make a context in which records are stored; it unlocks the collection at its end."""
        return self._generation.lock.under_way()

    def close(self) -> None:
        """Unlock the collection; inside `under_way`, leave that to the end of the context."""
        self._generation.lock.close()

    def take(self, records: Sequence[R]) -> None:
        """Store records, then count them. The first records create the generation."""
        begins = not self._generation.groups
        step = next((record.step for record in records if record.step is not None), None)
        self._unstored = sum(record.begun for record in records)  # records that could not be stored come again
        self._generation.store(partial(self._put, records, begins=begins), step)
        self._unstored = 0
        if begins:
            # unlocks only if `under_way` has ended, which may happen while this thread waits for the disk
            self.close()
        self.tokens += sum(record.usage[1] for record in records)
        self.begun += sum(record.begun for record in records)
        self.done += sum(record.done for record in records)
        self._unscored += sum(record.unscored for record in records)
        self._surplus += sum(record.surplus for record in records)
        self._troubles += [record.trouble for record in records if record.trouble]

    def trouble_line(self) -> str:
        """Return a line for the user if some rollouts ended early, by an error or the time-out; else ""."""
        if not self._troubles:
            return ""
        which = f"{len(self._troubles):,} of {count(self.total, self._noun)}"
        return f"{which} ended early, without a reward; the first: {self._troubles[0]}"

    def surplus_line(self) -> str:
        """Return a line for the user if the service gave more choices than were requested; else ""."""
        return surplus_line(self._surplus)

    def unscored_line(self) -> str:
        """Return a line for the user if nothing in the environment gave some episodes a reward; else ""."""
        if not self._unscored:
            return ""
        what = f"{count(self._unscored, 'episode')} of {self._run.plan.env} ended without a reward"
        hint = "def get_reward(self): return self.reward, or lab.environment(CLASS, reward_funcs=f)"
        return f"{what}, as nothing gave one -> {hint}"

    def fail(self, trajectories: int, error: RolloutlabError) -> None:
        """Count trajectories of which nothing could be sampled."""
        self.failed += trajectories
        self._first_error = self._first_error or error

    def describe_kept(self) -> str:
        """Say what is stored after an error, and what to type to continue; "" if nothing has arrived."""
        if not self.begun:
            return self._lost().removeprefix("; ")
        return f"{self._so_far()}; what was sampled is kept{self._lost()} -> {self._rest()}"

    def describe_interrupt(self) -> tuple[str, str]:
        """Return the message and the hint after an interrupt."""
        if self._generation.lock.is_under_way:  # after a second interrupt, which did not wait for the disk
            rest = f"{self._rest()} samples the rest" if self.collection else WHAT_IS_STORED
            return f"{self._so_far()} and are kept; others are still being stored", rest
        if not self.begun:
            again = rerun_hint(self._run.program) if self._run.program else "run the cell again"
            none = f"nothing was stored{self._lost()}" if self._unstored else ""
            return none or f"no {self._noun} had {self._arrived} yet, and nothing was stored", again
        missing = self.total - self.done
        if self._run.program and self._run.program.typed:  # words after a command would be taken for its own
            return f"{self._so_far()} and are kept{self._lost()}; this samples the other {missing:,}:", self._rest()
        what = f"samples the other {missing:,}" if missing else "shows them"
        return f"{self._so_far()} and are kept{self._lost()}", f"{self._rest()} {what}"

    def describe_unfinished(self) -> tuple[str, str | None]:
        """Say what is stored and what is missing after a budget ran out, and return the cell that samples the rest.

        The cell is None if it is the same cell again.
        """
        if not self.begun:
            return "nothing was sampled", None
        return f"{self._so_far()} and are kept, {self.total - self.done:,} are not sampled yet", self._cell()

    def check(self) -> None:
        """Raise SamplingError if some trajectories failed; if nothing is stored, the error of the first of them."""
        if self._first_error is None:
            return
        if not self._generation.groups:
            raise self._first_error
        failed = f"{self.failed:,} of {count(self.total, self._noun)} of {self._generation.label} failed"
        message = f"{failed}, the others are kept: {self._first_error.message}"
        raise SamplingError(message, hint=self._rest()) from self._first_error

    def _so_far(self) -> str:
        return f"{self.done:,} of {count(self.total, self._noun)} had {self._arrived}"

    def _lost(self) -> str:
        """Say, after a semicolon, what arrived and could not be stored; "" if everything is stored."""
        return f"; {count(self._unstored, self._noun)} more could not be stored" if self._unstored else ""

    def _rest(self) -> str:
        """Return the cell that samples the rest, within the budget of the call."""
        return self._with_budget(self._cell())

    def _cell(self) -> str:
        """Return the cell that samples the rest, without a budget."""
        label, program = self._generation.label, self._run.program
        if program:
            return resume_hint(label, program.name, program.typed)
        return self._run.plan.cell_again(label, "--resume")

    def note(self, waits: bool = False) -> str:
        """Return a line on failures, speed and remaining time. waits: whether the service is unreachable."""
        if waits:
            return "the service is unreachable; retrying for some minutes"
        seconds = time.monotonic() - self._since
        left = self.total - self.done
        parts = [f"{self.failed:,} failed"] if self.failed else []
        if self.done:
            parts += [f"{self.tokens / seconds:,.0f} tokens/s", f"{_duration(seconds / self.done * left)} left"]
        return ", ".join(parts)


def surplus_line(number: int) -> str:
    """Return a line for the user if a service gave `number` choices more than were requested; else ""."""
    if not number:
        return ""
    return f"{count(number, 'choice')} more than requested came and {'is' if number == 1 else 'are'} not kept"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 60 else f"{minutes / 60:.1f} h"
