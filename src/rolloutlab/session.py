"""What one notebook holds, and the public Python API: every magic is one call of `Session`."""

import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rolloutlab.client import training
from rolloutlab.client.embedded import Embedded
from rolloutlab.client.inference import complete
from rolloutlab.collection import Collection
from rolloutlab.errors import InputError, NotFoundError, RolloutlabError
from rolloutlab.http import Http
from rolloutlab.job import Job
from rolloutlab.judge import Verdict, hearings, judge_all, to_scores
from rolloutlab.model import SelectedModel, split_name
from rolloutlab.prompt import as_messages
from rolloutlab.sampling import Arrivals, make_prompt, rows_of, sample_all
from rolloutlab.scoring import Functions, kept_line, score, undone_line
from rolloutlab.settings import Address, Settings, read_settings
from rolloutlab.store.lab import Lab
from rolloutlab.store.records import Score, SubmittedJob
from rolloutlab.submission import prepare
from rolloutlab.widgets.progress import Progress
from rolloutlab.wire.training import RegisterModel

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_MODEL = "lab/practice"


class Session:
    """One notebook's hold on a lab and a service.

    settings: where the lab is and which service it talks to; by default from the environment. Nothing is opened or
    started before a call needs it.
    """

    def __init__(self, settings: Settings | None = None, *, http: Http | None = None) -> None:
        self.settings = settings or read_settings()
        self._http = http or Http()
        self._selected = DEFAULT_MODEL
        self.embedded = Embedded(self.settings, self._http)

    @cached_property
    def store(self) -> Lab:
        """The lab's memory on disk."""
        return Lab(self.settings.database)

    def chat(
        self,
        name: str,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        n: int = 1,
        over: Any = None,
        model: str | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_tokens: int | None = None,
        seed: int | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Collection:
        """Sample `n` completions per prompt into a new generation of the collection `name`.

        prompt: the text of a cell (`user: ...`) or a list of messages; `{{x}}` is a column of the row, then one of
        `variables`. over: a DataFrame or a list, one group per row. model: a model to sample instead of the selected
        one's newest checkpoint. seed: the group of row i is sampled with seed + i; drawn and recorded when absent.

        Every completion is stored as it arrives: what had arrived before an interrupt or an error is kept.

        Raises:
            InputError: the prompt, a variable or a setting is wrong; nothing was sent.
            ServiceError, NotFoundError: as the service answered.
        """
        target = model or self._selected
        first = secrets.randbits(31) if seed is None else seed
        settings = {"model": target, "n": n, "temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
        messages, rows = as_messages(prompt), rows_of(over)
        prompts = [
            make_prompt(messages, row, variables or {}, {**settings, "seed": first + i}) for i, row in enumerate(rows)
        ]
        arrivals = Arrivals(self.store, name, prompts)
        with Progress(f"sampling {name}") as shown:
            address = self._address(lambda: shown.update(0, None, "starting the embedded service"))
            if model is None:
                self._select(target)
            work = sample_all(prompts, lambda request: complete(self._http, address, request), arrivals.take)
            try:
                self._http.run(work, lambda: shown.update(arrivals.done, n * len(prompts)))
            except BaseException:
                shown.keep(f"{arrivals.done:,} of {n * len(prompts):,} completions had arrived and are kept in {name}")
                raise
        return self.collection(arrivals.label)

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
        collection = self.collection(name)
        wanted = [t for t in collection.trajectories if overwrite or t.source != "hand"]
        return self._give(collection, score(wanted, function, weights), "function", overwrite, say)

    def judge(
        self,
        name: str,
        rubric: str = "",
        *,
        model: str,
        samples: int = 1,
        seed: int = 0,
        variables: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        say: Callable[[str], None] = print,
    ) -> Collection:
        """Have a model score each group of a collection from 0 to 1, its completions side by side; all groups or none.

        rubric: what is good; `{{x}}` in it is a column of the row, then one of `variables`. Without it, a general one.
        samples: how often each group is judged, in another order each time; the reward is the mean. seed: of the order.
        overwrite: as in `reward`. The judge's sentence on each is in `reward_history`.

        Raises:
            NotFoundError: no such collection, or no such model. InputError: the rubric or `samples` is wrong.
            RewardError: the judge gave no scores for a group, though it was asked again. ServiceError: as it answered.
        """
        collection = self.collection(name)
        groups = [g for g in collection.groups if any(overwrite or t.source != "hand" for t in g.trajectories)]
        asked = hearings(groups, rubric, variables or {}, model=model, samples=samples, seed=seed)
        held: list[list[Verdict]] = []
        total = samples * len(groups)
        with Progress(f"judging {name}") as shown:
            address = self._address(lambda: shown.update(0, None, "starting the embedded service"))
            work = judge_all(asked, lambda request: complete(self._http, address, request), held.append)
            try:
                found = self._http.run(work, lambda: shown.update(len(held), total))
            except BaseException:
                shown.keep(f"{len(held):,} of {total:,} answers were there; no reward of {name} was changed")
                raise
        scores = [s for group, verdicts in zip(groups, found, strict=True) for s in to_scores(group, verdicts)]
        return self._give(collection, scores, "judge", overwrite, say)

    def train(
        self,
        names: str | Sequence[str],
        options: Mapping[str, Any] | None = None,
        *,
        wait: bool = True,
        say: Callable[[str], None] = print,
    ) -> Job:
        """Train the selected model on scored collections: check, submit, and follow until the job has ended.

        options: the eleven of `rolloutlab.objective.options`. say: gets the pre-flight report, line by line.
        wait: False returns as soon as the job is submitted. Interrupting the wait leaves the job running.

        Raises:
            InputError: an option is wrong. NotFoundError: no such collection. NothingTrainsError: no trajectory would
            train. JobFailedError: the job failed.
        """
        wanted = [names] if isinstance(names, str) else list(names)
        collections = [self.collection(name) for name in wanted]
        if len({collection.label for collection in collections}) < len(collections):
            raise InputError("a collection is given twice", hint=f"%%train {' '.join(dict.fromkeys(wanted))}")
        submission = prepare(collections, options or {}, self._selected)
        for line in submission.check.words(collections[0].name):
            say(line)
        model, address, key = self._select(self._selected), self._address(), str(uuid.uuid4())
        asked, now = submission.config.to_wire(), datetime.now(UTC).isoformat()
        # recorded first: a kernel that dies before the answer must not lose sight of a job that trains
        self.store.jobs.add(SubmittedJob(key, address.base_url, model.name, submission.collections, asked, now))
        try:
            created = training.create_job(self._http, address, submission.to_job(model.id), key)
            job_id = self._http.run(created)
        except RolloutlabError:
            self.store.jobs.forget(key)
            raise
        self.store.jobs.rename(key, job_id)
        job = Job(self._http, self._address, job_id, model.name)
        return job.wait() if wait else job

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

        found = self.store.rewards.history_of(self.store.collection(name))
        columns = ["trajectory", "when", "who", "source", "old", "new", "note"]
        rows = [[e.trajectory, e.at, e.who, e.source, e.old, e.new, e.note or ""] for e in found]
        frame = pd.DataFrame(rows, columns=columns, index=pd.Index([e.change for e in found], name="change"))
        when = pd.to_datetime(frame["when"], format="ISO8601", utc=True).dt.floor("s")
        return frame.assign(when=when).astype({"old": float, "new": float})

    def collection(self, name: str) -> Collection:
        """The collection `name` (its newest generation) or `name:N`; NotFoundError when there is none."""
        return Collection(self.store, self.store.collection(name))

    def group(self, name: str) -> Collection:
        """One group, `name/N`, as a collection of one; NotFoundError when there is none."""
        label, _, position = name.rpartition("/")
        if not position.isdecimal():
            raise InputError(f"{name!r} names no group", hint=f"%group {name}/0")
        found = Collection(self.store, self.store.collection(label), int(position))
        if not found.groups:
            raise NotFoundError(f"there is no group {name!r}", hint=f"%group {label}/0")
        return found

    def collections(self) -> "pd.DataFrame":
        """Every generation of every collection, newest first, counted."""
        import pandas as pd

        columns = ["groups", "trajectories", "scored", "mean_reward"]
        found = self.store.collections()
        rows = [[*(getattr(summary, column) for column in columns), _minute(summary.created_at)] for summary in found]
        return pd.DataFrame(
            rows, columns=[*columns, "created (UTC)"], index=pd.Index([s.label for s in found], name="collection")
        )

    def model(self, name: str | None = None, *, base: str | None = None) -> SelectedModel:
        """Select a model, registering it at first; without a name, the selected one.

        base: the base model a new one stands on; by default the service's own.
        """
        found = self._select(name or self._selected, base)
        self._selected = found.name
        return found

    def job(self, job_id: str) -> Job:
        """A job submitted from this lab, by its id or the beginning of it; from any kernel."""
        matches = [job for job in self.store.jobs.newest_first() if job.id.startswith(job_id)]
        if len(matches) != 1:
            found = "no job" if not matches else f"{len(matches)} jobs"
            raise NotFoundError(f"{found} of this lab begins with {job_id!r}", hint="%jobs lists them")
        return Job(self._http, self._address, matches[0].id, matches[0].model)

    def jobs(self) -> "pd.DataFrame":
        """Every job this lab submitted, newest first."""
        import pandas as pd

        found = self.store.jobs.newest_first()
        rows = [[job.model, ", ".join(job.collections), _said(job.options), _minute(job.created_at)] for job in found]
        columns = ["model", "collections", "options", "created (UTC)"]
        return pd.DataFrame(rows, columns=columns, index=pd.Index([job.id[:8] for job in found], name="job"))

    def service(self, action: str = "status") -> str:
        """What `%service` says of the embedded service: its `status`, that it could `stop`, or the end of its `log`."""
        if action == "log":
            return self.embedded.tail(40) or "the embedded service has written nothing"
        found = self.embedded.running()
        if found is None:
            return "the embedded service is not running; the first %%chat starts it"
        if action == "stop":
            self.embedded.stop()
            return "the embedded service has stopped; the next %%chat starts it again"
        return f"the embedded service runs at {found.base_url}, lab folder {self.settings.home}"

    def close(self) -> None:
        """Let go of the lab and the service; the embedded service ends by itself once nobody needs it."""
        self._http.close()
        self.embedded.close()
        if "store" in self.__dict__:
            self.store.close()

    def _give(
        self, collection: Collection, scores: Sequence[Score], source: str, overwrite: bool, say: Callable[[str], None]
    ) -> Collection:
        """Store the scores, and say how many were kept because they were given by hand."""
        self.store.rewards.give(scores, source, keep_hand=not overwrite)
        kept = 0 if overwrite else self.store.rewards.by_hand(self.store.collection(collection.label))
        if kept:
            say(kept_line(kept))
        return collection

    def _address(self, tick: Callable[[], None] = lambda: None) -> Address:
        return self.settings.service or self.embedded.address(tick)

    def _select(self, name: str, base: str | None = None) -> SelectedModel:
        project, short = split_name(name)
        wanted = RegisterModel(project=project, name=short, base_model=base, return_existing=True)
        model = self._http.run(training.register_model(self._http, self._address(), wanted))
        steps = self._http.run(training.checkpoints(self._http, self._address(), str(model.id)))
        return SelectedModel(name, str(model.id), model.base_model, tuple(c.step for c in steps))


def lab() -> Session:
    """The session of this notebook once `%load_ext rolloutlab` has run; elsewhere, a new one."""
    from IPython import get_ipython

    shell = get_ipython()
    found = shell.magics_manager.registry.get("ChatMagics") if shell else None
    return found.session if found else Session()


def _said(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())


def _minute(time: str) -> str:
    """An ISO time to the minute, as a table shows it."""
    return time[:16].replace("T", " ")
