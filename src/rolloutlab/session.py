"""What one notebook holds, and the public Python API: every magic is one call of `Session`."""

import secrets
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from rolloutlab.check import Check
from rolloutlab.client import inference, training
from rolloutlab.client.embedded import Embedded
from rolloutlab.client.inference import complete
from rolloutlab.collection import Collection, scored
from rolloutlab.errors import InputError, NotFoundError, RewardError, RolloutlabError
from rolloutlab.http import Http
from rolloutlab.job import Job
from rolloutlab.jobs import EMBEDDED, meant, refreshed
from rolloutlab.jobs import table as table_of_jobs
from rolloutlab.loop import SEEDS_PER_ROUND, Loop, Plan, play, resumed
from rolloutlab.model import SelectedModel, split_name
from rolloutlab.model import table as table_of_models
from rolloutlab.objective.options import settle
from rolloutlab.prompt import as_messages
from rolloutlab.sampling import Arrivals, make_prompt, rows_of, sample_all
from rolloutlab.selection import select
from rolloutlab.settings import Address, Settings, read_settings
from rolloutlab.store.lab import Lab
from rolloutlab.store.records import Score, SubmittedJob, Trajectory
from rolloutlab.submission import checked_config, gather, prepare
from rolloutlab.widgets.live import Live
from rolloutlab.widgets.progress import Progress
from rolloutlab.wire.training import Model, RegisterModel

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_MODEL = "lab/practice"

RewardFunction = Callable[[Trajectory, str, list[dict[str, Any]], Mapping[str, Any]], Any]
"""Called with (trajectory, answer, messages, row); returns a number, or a mapping of components to numbers."""


class Session:
    """One notebook's hold on a lab and a service.

    settings: where the lab is and which service it talks to; by default from the environment. Nothing is opened or
    started before a call needs it.
    """

    def __init__(self, settings: Settings | None = None, *, http: Http | None = None) -> None:
        self.settings = settings or read_settings()
        self._http = http or Http()
        self._selected = DEFAULT_MODEL
        self._known: set[tuple[str, str]] = set()
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
            if model is None and (address.base_url, target) not in self._known:
                self._register(target)
            work = sample_all(prompts, lambda request: complete(self._http, address, request), arrivals.take)
            try:
                self._http.run(work, lambda: shown.update(arrivals.done, n * len(prompts)))
            except BaseException:
                shown.keep(f"{arrivals.done:,} of {n * len(prompts):,} completions had arrived and are kept in {name}")
                raise
        return self.collection(arrivals.label)

    def reward(self, name: str, function: RewardFunction) -> Collection:
        """Score every trajectory of a collection; all of them or, when the function fails on one, none.

        Raises:
            NotFoundError: no such collection.
            RewardError: the function raised, or returned no finite number; the message names the trajectory.
        """
        collection = self.collection(name)
        scores = [_apply(function, trajectory) for trajectory in collection.trajectories]
        self.store.rewards.give(scores, source="function")
        return collection

    def train(
        self,
        names: str | Sequence[str],
        options: Mapping[str, Any] | None = None,
        *,
        wait: bool = True,
        say: Callable[[str], None] = print,
    ) -> Job:
        """Train the selected model on scored collections: check, submit, and follow until the job has ended.

        names: collections, or patterns such as `cap*` that mean the newest generation of each that fits. options: the
        eleven of `rolloutlab.objective.catalogue`. say: gets the pre-flight report, line by line.
        wait: False returns as soon as the job is submitted. Interrupting the wait leaves the job running.

        Raises:
            InputError: options are wrong. NotFoundError: no such collection. NothingTrainsError: no trajectory would
            train. JobFailedError: the job failed.
        """
        submission = prepare(select(self.store, names), options or {}, self._selected)
        for line in submission.report():
            say(line)
        model, address, key = self._register(self._selected), self._address(), str(uuid.uuid4())
        asked, now = submission.config.to_wire(), datetime.now(UTC).isoformat()
        # recorded first: a kernel that dies before the answer must not lose sight of a job that trains
        self.store.jobs.add(SubmittedJob(key, self._service, self._selected, submission.collections, asked, now))
        try:
            created = training.create_job(self._http, address, submission.to_job(str(model.id)), key)
            job_id = self._http.run(created)
        except RolloutlabError:
            self.store.jobs.forget(key)
            raise
        self.store.jobs.rename(key, job_id)
        self.store.jobs.heard(job_id, "queued")
        job = self.job(job_id)
        return job.wait() if wait else job

    def check(self, names: str | Sequence[str], options: Mapping[str, Any] | None = None) -> Check:
        """What `train` would train, and why the rest would not; nothing is submitted, no service is started.

        Raises:
            InputError: options are wrong. NotFoundError: no such collection.
        """
        return Check(gather(select(self.store, names), options or {}, self._selected))

    def loop(
        self,
        name: str,
        prompt: str | Sequence[Mapping[str, Any]],
        reward: RewardFunction,
        *,
        over: Any,
        jobs: int = 10,
        n: int = 8,
        options: Mapping[str, Any] | None = None,
        held_out: Any = None,
        every: int = 5,
        patience: int = 3,
        seed: int | None = None,
        say: Callable[[str], None] = print,
        **sampling: Any,
    ) -> Loop:
        """Sample, score and train `jobs` times; round N is the generation `name:N`, and the same call goes on later.

        over: rows, as of `chat`, or a function from the number of a round to its rows. held_out: rows that are measured
        before every `every` rounds and after the last, and never trained on. patience: the loop ends when nothing has
        trained in so many rounds in a row. seed: of the first round; the others' follow from it. sampling: further
        settings of `chat`. say: gets a line per round where no chart can be shown.

        Whatever stops it, what was sampled and trained is kept; `jobs=0` only tells what there is.

        Raises:
            InputError, RewardError, ServiceError, JobFailedError: as `chat`, `reward` and `train` do.
        """
        settled = settle(checked_config(options or {}))

        def sample(label: str, rows: Any, number: int | None) -> Collection:
            first = (seed or 0) if number is None else None if seed is None else seed + SEEDS_PER_ROUND * number
            return self.reward(self.chat(label, prompt, n=n, over=rows, seed=first, **sampling).label, reward)

        def train(label: str) -> Job:
            return self.train(label, options, wait=False, say=lambda _: None).wait(progress=False)

        plan = Plan(sample, over if callable(over) else lambda _: over, train, held_out, every, patience)
        return play(resumed(self.store, name, self._selected, settled), plan, jobs, settled, Live(say))

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

    def models(self) -> "pd.DataFrame":
        """Every model that the service can sample, with its base, newest checkpoint and number of checkpoints."""
        return table_of_models(self._http.run(inference.models(self._http, self._address())))

    def job(self, job_id: str | None = None) -> Job:
        """A job submitted from this lab, by its id or the beginning of it, from any kernel; without one, the newest.

        Raises:
            NotFoundError: there is none, or more than one. ConflictError: it is at another service than the present.
        """
        found = meant(self.store.jobs.newest_first(), job_id, self._service)
        return Job(self._http, self._address, found.id, found.model, partial(self.store.jobs.heard, found.id))

    def jobs(self) -> "pd.DataFrame":
        """Every job this lab submitted, newest first, with its status and the step it made.

        What may have changed is asked of the service, where one runs; none is started.
        """
        address = self.settings.service or self.embedded.running()
        return table_of_jobs(refreshed(self.store.jobs, self._http, address, self._service))

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

    def _address(self, tick: Callable[[], None] = lambda: None) -> Address:
        return self.settings.service or self.embedded.address(tick)

    @property
    def _service(self) -> str:
        """What the present service is called where jobs are remembered."""
        return self.settings.service.base_url if self.settings.service else EMBEDDED

    def _register(self, name: str, base: str | None = None) -> Model:
        """The model as the service has it, registered at first."""
        project, short = split_name(name)
        wanted, address = (
            RegisterModel(project=project, name=short, base_model=base, return_existing=True),
            self._address(),
        )
        model = self._http.run(training.register_model(self._http, address, wanted))
        self._known.add((address.base_url, name))
        return model

    def _select(self, name: str, base: str | None = None) -> SelectedModel:
        model = self._register(name, base)
        steps = self._http.run(training.checkpoints(self._http, self._address(), str(model.id)))
        return SelectedModel(name, str(model.id), model.base_model, tuple(c.step for c in steps))


def lab() -> Session:
    """The session of this notebook once `%load_ext rolloutlab` has run; elsewhere, a new one."""
    from IPython import get_ipython

    shell = get_ipython()
    found = shell.magics_manager.registry.get("ChatMagics") if shell else None
    return found.session if found else Session()


def _minute(time: str) -> str:
    """An ISO time to the minute, as a table shows it."""
    return time[:16].replace("T", " ")


def _apply(function: RewardFunction, trajectory: Trajectory) -> Score:
    try:
        outcome = function(trajectory, trajectory.answer, trajectory.messages, trajectory.row)
    except RolloutlabError:
        raise
    except (Exception, SystemExit) as error:
        raise RewardError(
            f"the reward function failed on {trajectory.name}: {type(error).__name__}: {error}{_line_of(error)}",
            hint=f"%group {trajectory.name.rpartition('/')[0]} shows it; no reward was changed",
        ) from error
    return scored(trajectory, outcome)


def _line_of(error: BaseException) -> str:
    """The line of the reward function that raised, when its source is at hand."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" (line {frames[1].lineno}: {frames[1].line})" if len(frames) > 1 and frames[1].line else ""
