"""The generation of a collection that a run fills."""

from collections.abc import Callable, Sequence

from rolloutlab.errors import ConflictError
from rolloutlab.sampling.config import SamplingConfig
from rolloutlab.store.lab import Lab
from rolloutlab.store.locks import let_go
from rolloutlab.store.models import CollectionSummary, Group, NewGroup, StoredCollection


class Generation:
    """A generation, created with what is stored first, and locked against other processes until `close`.

    groups: empty until something is stored. begun: the generation, where it is stored already; `what` it holds.

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
        self._grows = begun is not None and plan.topped_up != SamplingConfig.model_validate(begun.plan).topped_up
        self.collection: StoredCollection | None = begun
        self._held = lab.lock_for_sampling(begun) if begun else None
        if begun and lab.collection(self.label).trajectories != begun.trajectories:
            self.close()
            raise ConflictError(f"another kernel has just stored {what} of {self.label}", hint="run the cell again")

    @property
    def label(self) -> str:
        """The collection's name at the beginning, with its generation."""
        begun = self.collection
        return f"{begun.name}:{begun.generation}" if begun else self._name

    def close(self) -> None:
        """Unlock it."""
        held, self._held = self._held, None
        if held:
            let_go(held)

    def store(self, put: Callable[[Sequence[Group]], None], step: int | None) -> None:
        """Call `put` with the groups, in one transaction, which creates the generation where it is not stored yet.

        step: of the checkpoint that the plan keeps then.
        """
        if self.groups:
            self._lab.at_once(lambda: self._go_on(put))
            self._grows = False
            return

        def begin() -> tuple[StoredCollection, list[Group]]:
            plan = self._plan.model_copy(update={"step": step}).model_dump(mode="json", exclude_defaults=True)
            collection = self._lab.open_collection(self._name, plan)
            self._held = self._lab.lock_for_sampling(collection)  # before any other process can see it
            wanted = [NewGroup(group.prompt, group.row, group.script) for group in self._wanted]
            groups = self._lab.add_groups(collection, wanted)
            put(groups)
            return collection, groups

        try:
            collection, self.groups = self._lab.at_once(begin)
        except BaseException:
            self.close()
            raise
        self._lab.keep_name(collection.name, collection.id)
        self.collection = self._lab.by_id(collection.id)  # under the name that it has from now on

    def _go_on(self, put: Callable[[Sequence[Group]], None]) -> None:
        """Store into the groups that are there; with the first of it, how many trajectories these are to have now.

        A plan that grew without anything in its place would be of an interrupted run that never began.
        """
        if self._grows and self.collection:
            self._lab.keep_sizes(self.collection.id, self._plan.topped_up, self._plan.total)
        put(self.groups)
