"""Rewards: given by functions or by a model, looked at, and taken back."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rolloutlab.client.inference import complete
from rolloutlab.collection import Collection
from rolloutlab.errors import NotFoundError, interrupted
from rolloutlab.judge import Judge, Verdict, disagreement_line, hearings, judge_all, to_scores
from rolloutlab.scoring import Functions, kept_line, score, undone_line
from rolloutlab.selection import select
from rolloutlab.session.collections import CollectionCalls
from rolloutlab.store.records import Score
from rolloutlab.views.rewards import RewardsView
from rolloutlab.widgets.progress import Progress
from rolloutlab.wire.chat import ChatCompletion, ChatRequest, Usage

if TYPE_CHECKING:
    import pandas as pd


class RewardCalls(CollectionCalls):
    """The rewards of collections."""

    def reward(
        self,
        name: str,
        function: Functions,
        weights: Mapping[str, float] | None = None,
        *,
        overwrite: bool = False,
        say: Callable[[str], None] = print,
    ) -> Collection:
        """Score every trajectory of a collection; all of them or, when a function fails on one, none.

        function: one function; a list, each a component under its name; or a dict of names and functions. The reward
        is the sum of the components, each times its weight where `weights` has one. overwrite: also score what was
        scored by hand; by default that is kept, and `say` is told how much.

        Raises:
            NotFoundError: no such collection. InputError: a weight is for no component, or a function is none.
            RewardError: a function raised, or returned no finite number; the message names the trajectory.
        """
        self.store.check_writable()
        collection = self.collection(name)
        wanted = (t for t in collection.each_trajectory() if overwrite or t.source != "hand")
        self._give(collection, score(wanted, function, weights), "function", overwrite, say)
        self._scorers |= dict.fromkeys((collection.label, collection.label.partition(":")[0]), (function, weights))
        return collection

    def judge(
        self,
        name: str,
        rubric: str = "",
        *,
        model: str,
        samples: int = 2,
        seed: int = 0,
        variables: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        say: Callable[[str], None] = print,
    ) -> Collection:
        """Have a model score each group of a collection from 0 to 1, its completions side by side; all groups or none.

        rubric: what is good; `{{x}}` in it is a column of the row, then one of `variables`. Without it, a general one.
        samples: how often each group is judged, every second time in the opposite order of the time before, since a
        judge prefers places; the reward is the mean, and the component `disagreement` is how far its scores are apart.
        `say` is told what that comes to. seed: of the order.
        overwrite: as in `reward`. The judge's sentence on each is in `reward_history`, and its tokens are among those
        of the collection, whatever became of its answers.

        Raises:
            NotFoundError: no such collection, or no such model. InputError: the rubric or `samples` is wrong.
            RewardError: the judge gave no scores for a group, though it was asked again. ServiceError: as it answered.
        """
        self.store.check_writable()
        collection = self.collection(name)
        groups = [g for g in collection.groups if any(overwrite or t.source != "hand" for t in g.trajectories)]
        asked = hearings(groups, rubric, variables or {}, model=model, samples=samples, seed=seed)
        held: list[list[Verdict]] = []
        spent: list[Usage] = []
        total = samples * len(groups)
        with Progress(f"judging {name}") as shown:
            address = self._address(lambda: shown.update(0, None, "starting the embedded service"))

            async def answer(request: ChatRequest) -> ChatCompletion:
                completion = await complete(self._http, address, request)
                spent.extend([completion.usage] if completion.usage else [])
                return completion

            work = judge_all(asked, answer, held.append)
            try:
                found = self._http.run(work, lambda: shown.update(len(held), total))
            except KeyboardInterrupt as error:
                so_far = f"{len(held):,} of {total:,} answers were there; no reward of {name} was changed"
                interrupted(error, so_far, "run the cell again")
                raise
            except BaseException:
                shown.keep(f"{len(held):,} of {total:,} answers were there; no reward of {name} was changed")
                raise
            finally:
                counts = sum(u.prompt_tokens for u in spent), sum(u.completion_tokens for u in spent)
                self.store.spend(collection.stored, *counts)
        scores = [s for group, verdicts in zip(groups, found, strict=True) for s in to_scores(group, verdicts)]
        if line := disagreement_line(found):
            say(line)
        return self._give(collection, scores, "judge", overwrite, say)

    def _scored(self, name: str, reward: Functions | Judge, say: Callable[[str], None]) -> Collection:
        """A collection, scored by functions or by a judge."""
        if not isinstance(reward, Judge):
            return self.reward(name, reward, say=say)
        return self.judge(name, reward.rubric, model=reward.model, samples=reward.samples, seed=reward.seed, say=say)

    def rewards(self, names: str | Sequence[str]) -> RewardsView:
        """The rewards of collections as one table, to be sorted, filtered and edited; `to_frame()` is a DataFrame.

        names: a name or several (`capitals`, `capitals:1`), a pattern (`cap*`), or one group (`capitals/0`).

        Raises:
            NotFoundError: no such collection or group, or none that fits.
        """
        if isinstance(names, str) and "/" in names:
            group = self.group(names)
            return RewardsView(self.store, [group.stored], group.groups[0].position)
        return RewardsView(self.store, [collection.stored for collection in select(self.store, names)])

    def rank(self, name: str, ranking: Sequence[int | str | Sequence[int | str]]) -> Collection:
        """Rank completions of one group (`capitals/0`), best first, and take the ranks as rewards by hand.

        ranking: positions in the group or names of trajectories; what is equally good is in a list of its own:
        `[2, 0, [1, 3]]`. The best has 1, the worst 0, evenly spaced; ties share the mean of their places. What is not
        ranked keeps what it has. It is one change, which `undo_rewards` takes back.

        Raises:
            NotFoundError: no such group. InputError: something in the ranking is not there, or is there twice.
        """
        group = self.group(name)
        group.rank(ranking)
        return group

    def undo_rewards(self, name: str, *, say: Callable[[str], None] = print) -> Collection:
        """Take back the newest change of a collection's rewards that is not taken back yet; `say` is told what it was.

        What had no reward before the change has none again. The undo is logged like any other change.

        Raises:
            NotFoundError: no such collection, or nothing of its rewards is left to undo.
        """
        collection = self.collection(name)
        edits = self.store.rewards.undo(self.store.collection(collection.label))
        if not edits:
            raise NotFoundError(f"no reward of {name} is left to undo", hint=f"%rewards {name} --history")
        say(undone_line(name, edits))
        return collection

    def reward_history(self, name: str) -> "pd.DataFrame":
        """Every change of a collection's rewards, newest first: trajectory, when, who, source, old, new and note.

        The index is the number of the change: what was given at once has the same one.
        """
        import pandas as pd

        from rolloutlab.widgets.frame import Frame

        found = self.store.rewards.history_of(self.store.collection(name))
        columns = ["trajectory", "when", "who", "source", "old", "new", "note"]
        rows = [[e.trajectory, e.at, e.who, e.source, e.old, e.new, e.note or ""] for e in found]
        frame = Frame(rows, columns=columns, index=pd.Index([e.change for e in found], name="change"))
        when = pd.to_datetime(frame["when"], format="ISO8601", utc=True).dt.floor("s")
        return frame.assign(when=when).astype({"old": float, "new": float})

    def _give(
        self, collection: Collection, scores: Sequence[Score], source: str, overwrite: bool, say: Callable[[str], None]
    ) -> Collection:
        """Store the scores, and say how many were kept because they were given by hand."""
        self.store.rewards.give(scores, source, keep_hand=not overwrite)
        kept = 0 if overwrite else self.store.rewards.by_hand(self.store.collection(collection.label))
        if kept:
            say(kept_line(kept))
        return collection
