"""What one notebook holds, and the public Python API: every magic is one call of `Session`."""

import secrets
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rolloutlab.client import training
from rolloutlab.client.embedded import Embedded
from rolloutlab.client.inference import complete
from rolloutlab.collection import Collection, scored
from rolloutlab.connection import Connection, connected, described, inspect, known_address
from rolloutlab.errors import InputError, NotFoundError, RewardError, RolloutlabError
from rolloutlab.http import Http
from rolloutlab.job import Job
from rolloutlab.model import SelectedModel, split_name
from rolloutlab.prompt import as_messages
from rolloutlab.sampling import Arrivals, make_prompt, rows_of, sample_all
from rolloutlab.settings import Address, Settings, read_settings
from rolloutlab.store.lab import Lab
from rolloutlab.store.records import Score, SubmittedJob, Trajectory
from rolloutlab.submission import prepare
from rolloutlab.widgets.progress import Progress
from rolloutlab.wire.training import RegisterModel

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
        if settings:
            self.settings = settings
        self._http = http or Http()
        self._selected = DEFAULT_MODEL
        self._former: list[Address] = []
        self.seen = {DEFAULT_MODEL}
        """Names of models that a service told of; tab completion offers them."""

    @cached_property
    def settings(self) -> Settings:
        """What is in force; `connect` puts others in their place."""
        return read_settings()

    @cached_property
    def embedded(self) -> Embedded:
        """The embedded service of the lab folder."""
        return Embedded(self.settings, self._http)

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

    def reward(self, name: str, function: RewardFunction) -> Collection:
        """Score every trajectory of a collection; all of them or, when the function fails on one, none.

        Raises:
            NotFoundError: no such collection.
            RewardError: the function raised, or returned no finite number; the message names the trajectory.
        """
        if not callable(function):
            raise InputError(
                f"a reward function is called, which a {type(function).__name__} cannot be",
                hint="lab.reward(NAME, lambda trajectory, answer, messages, row: float(len(answer)))",
            )
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

        options: the eleven of `rolloutlab.objective.options`. say: gets the pre-flight report, line by line.
        wait: False returns as soon as the job is submitted. Interrupting the wait leaves the job running.

        Raises:
            InputError: an option is wrong. NotFoundError: no such collection. NothingTrainsError: no trajectory would
            train. JobFailedError: the job failed.
        """
        wanted = [names] if not isinstance(names, Sequence) or isinstance(names, str) else list(names)
        collections = [self.collection(name) for name in wanted]
        if len({collection.label for collection in collections}) < len(collections):
            raise InputError("a collection is given twice", hint=f"%%train {' '.join(dict.fromkeys(wanted))}")
        submission = prepare(collections, options or {}, self._selected)
        for line in submission.check.words(collections[0].name):
            say(line)
        model, address, key = self._select(self._selected), self._address(), str(uuid.uuid4())
        asked, now = submission.config.to_wire(), datetime.now(UTC).isoformat()
        # recorded first: a kernel that dies before the answer must not lose sight of a job that trains
        sent = SubmittedJob(key, address.base_url, model.name, submission.collections, asked, now)
        self.store.jobs.add(sent)
        try:
            created = training.create_job(self._http, address, submission.to_job(model.id), key)
            job_id = self._http.run(created)
        except RolloutlabError:
            self.store.jobs.forget(key)
            raise
        self.store.jobs.rename(key, job_id)
        job = Job(self._http, self._service_of(sent), job_id, model.name)
        return job.wait() if wait else job

    def collection(self, name: str) -> Collection:
        """The collection `name` (its newest generation) or `name:N`; NotFoundError when there is none."""
        return Collection(self.store, self.store.collection(name))

    def group(self, name: str) -> Collection:
        """One group, `name/N`, as a collection of one; NotFoundError when there is none."""
        label, _, position = str(name).rpartition("/")
        if not label or not position.isdecimal():
            raise InputError(f"{name!r} names no group", hint=f"%group {name if isinstance(name, str) else 'NAME'}/0")
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
        matches = [job for job in self.store.jobs.newest_first() if job.id.startswith(str(job_id))]
        if len(matches) != 1:
            found = "no job" if not matches else f"{len(matches)} jobs"
            raise NotFoundError(f"{found} of this lab begins with {job_id!r}", hint="%jobs lists them")
        return Job(self._http, self._service_of(matches[0]), matches[0].id, matches[0].model)

    def jobs(self) -> "pd.DataFrame":
        """Every job this lab submitted, newest first."""
        import pandas as pd

        found = self.store.jobs.newest_first()
        rows = [[job.model, ", ".join(job.collections), _said(job.options), _minute(job.created_at)] for job in found]
        columns = ["model", "collections", "options", "created (UTC)"]
        return pd.DataFrame(rows, columns=columns, index=pd.Index([job.id[:8] for job in found], name="job"))

    def connect(
        self,
        service: str | None = None,
        *,
        inference: str | None = None,
        key_env: str | None = None,
        project: str | None = None,
    ) -> Connection:
        """Talk to another service, once it has answered; without an argument, say which it is now.

        service: `embedded`, a profile of the settings file, or an address. inference: where chat completions have an
        address of their own. key_env: the environment variable that holds the key. project: TEAM/PROJECT.

        Raises:
            InputError: no such profile, or an argument is wrong. UnreachableError: nothing answers there.
            SignInError: it wants a key, or another one. ServiceError: it is no such service.
            After any of them the notebook talks to the service that it talked to before.
        """
        options = {"inference": inference, "key_env": key_env, "project": project}
        if service is None and not any(options.values()):
            return described(self._http, self.embedded, self.settings)
        wanted = connected(self._configured, self.settings, service, options)
        found = inspect(self._http, self.embedded, wanted)
        before, self.settings = self.settings.service, wanted
        self.seen |= {*found.models}
        if before:
            self._former.insert(0, before)
        if (before and before.base_url) != (found.address and found.address.base_url):
            self._selected = DEFAULT_MODEL
        return found

    def service(self, action: str = "status") -> str:
        """What `%service` says of the embedded service: its `status`, that it could `stop`, or the end of its `log`."""
        if action not in (actions := ("status", "stop", "log")):
            close = get_close_matches(str(action), actions, n=1)
            raise InputError(f"the service cannot {action}", hint=f"%service {close[0] if close else 'status'}")
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
        if "embedded" in self.__dict__:
            self.embedded.close()
        if "store" in self.__dict__:
            self.store.close()

    def _address(self, tick: Callable[[], None] = lambda: None) -> Address:
        return self.settings.service or self._embedded_address(tick)

    def _embedded_address(self, tick: Callable[[], None] = lambda: None) -> Address:
        return replace(self.embedded.address(tick), project=self.settings.project)

    @cached_property
    def _configured(self) -> Settings:
        """The settings before the first `connect`, which each starts from."""
        return self.settings

    def _service_of(self, job: SubmittedJob) -> Callable[[], Address]:
        """Where to ask for a job; the embedded service has another port each time it starts."""
        known = known_address(job.service, self.settings, self._former)
        return (lambda: known) if known else self._embedded_address

    def _select(self, name: str, base: str | None = None) -> SelectedModel:
        project, short = split_name(name)
        wanted = RegisterModel(project=project, name=short, base_model=base, return_existing=True)
        model = self._http.run(training.register_model(self._http, self._address(), wanted))
        steps = self._http.run(training.checkpoints(self._http, self._address(), str(model.id)))
        self.seen |= {name, *(f"{name}@{checkpoint.step}" for checkpoint in steps)}
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
