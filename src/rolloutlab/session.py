"""What one notebook holds, and the public Python API: every magic is one call of `Session`."""

import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rolloutlab.client import training
from rolloutlab.client.embedded import Embedded
from rolloutlab.client.inference import complete, stream
from rolloutlab.collection import Collection, scored
from rolloutlab.errors import InputError, NotFoundError, RewardError, RolloutlabError
from rolloutlab.http import MAX_CONNECTIONS, Http
from rolloutlab.job import Job
from rolloutlab.model import SelectedModel, split_name
from rolloutlab.sampling.arrivals import Arrivals
from rolloutlab.sampling.rollout import Player
from rolloutlab.sampling.tools import Tools
from rolloutlab.sampling.work import Preview, Work, continued, resumed, sampled
from rolloutlab.settings import Address, Settings, read_settings
from rolloutlab.store.lab import Lab
from rolloutlab.store.records import Score, SubmittedJob, Trajectory
from rolloutlab.submission import prepare
from rolloutlab.widgets.progress import Progress
from rolloutlab.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.wire.training import RegisterModel

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_MODEL = "lab/practice"
CONCURRENT = 64
"""Requests under way at once; a service batches what is."""

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
        system: str | None = None,
        model: str | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        max_turns: int = 10,
        concurrency: int = CONCURRENT,
        variables: Mapping[str, Any] | None = None,
    ) -> Collection:
        """Sample `n` completions per prompt into a new generation of the collection `name`.

        prompt: the text of a cell (`user: ...`) or a list of messages; `{{x}}` is a column of the row, then one of
        `variables`. An empty assistant message in it is a place where the policy answers, and so is its end.
        over: a DataFrame or a list, one group per row. system: a system message before the prompt.
        model: a model to sample instead of the selected one's newest checkpoint. seed: the group of row i is sampled
        with seed + i; drawn and recorded when absent. stop: texts that end a completion.
        tools: functions that the policy may call; described by signature and docstring, run here, their results and
        errors recorded as tool messages. max_turns: answers in a row that may call tools.
        concurrency: requests under way at once.

        Every completion is stored as it arrives: what had arrived before an interrupt or an error is kept, and `resume`
        samples the rest.

        Raises:
            InputError: the prompt, a variable or a setting is wrong; nothing was sent.
            SamplingError: some requests failed; the others are kept.
            ServiceError, NotFoundError: as the service answered.
        """
        settings = {
            "model": model or self._selected,
            "n": n,
            "temperature": temperature,
            "top_p": top_p,
            "max_tokens": max_tokens,
            "stop": stop,
            "seed": seed,
            "max_turns": max_turns,
        }
        work = sampled(name, prompt, over, system, variables or {}, settings, Tools(tools))
        return self._sample(work, concurrency, register=model is None)

    def preview(
        self,
        name: str,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        over: Any = None,
        system: str | None = None,
        variables: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Preview:
        """What `chat` would send with the same arguments: how many requests, and the first of them as rendered."""
        tools = Tools(settings.pop("tools", ()))
        settings.pop("concurrency", None)
        settings = {"model": self._selected, **{k: v for k, v in settings.items() if v is not None}}
        return Preview(sampled(name, prompt, over, system, variables or {}, settings, tools))

    def resume(
        self, name: str, *, tools: Sequence[Callable[..., Any]] = (), concurrency: int = CONCURRENT
    ) -> Collection:
        """Sample what is missing of a collection, as it was begun; nothing that is there is sampled again.

        tools: the functions that it was begun with.

        Raises:
            NotFoundError: no such collection. InputError: it was not sampled here, or with other tools; and as `chat`.
        """
        return self._sample(resumed(self.store, name, Tools(tools)), concurrency)

    def continue_chat(
        self,
        name: str,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        model: str | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        max_turns: int = 10,
        concurrency: int = CONCURRENT,
        variables: Mapping[str, Any] | None = None,
    ) -> Collection:
        """Go on with every conversation of a collection, into a new generation of it; the older one stays.

        prompt: what is said next, as in `chat`, whose other arguments and errors are the same.
        """
        settings = {
            "model": model or self._selected,
            "temperature": temperature,
            "top_p": top_p,
            "max_tokens": max_tokens,
            "stop": stop,
            "seed": seed,
            "max_turns": max_turns,
        }
        work = continued(self.store, name, prompt, variables or {}, settings, Tools(tools))
        return self._sample(work, concurrency, register=model is None)

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

    def _sample(self, work: Work, concurrency: int, *, register: bool = False) -> Collection:
        """Play the rollouts of `work`; what arrives is stored at once."""
        if concurrency < 1:
            raise InputError(f"concurrency: {concurrency} is below 1", hint="--concurrency 64")
        arrivals = Arrivals(self.store, work)
        with Progress(f"sampling {work.name}") as shown:
            address = self._address(lambda: shown.update(0, None, "starting the embedded service"))
            if register:
                self._select(work.plan.model)

            async def answer(request: ChatRequest) -> ChatCompletion:
                if arrivals.total == 1:
                    return await stream(self._http, address, request, arrivals.say)
                return await complete(self._http, address, request)

            player = Player(work.plan, work.groups, answer, work.tools, arrivals.take, arrivals.fail)
            try:
                self._http.run(
                    player.play(work.rollouts, min(concurrency, arrivals.total, MAX_CONNECTIONS)),
                    lambda: shown.update(arrivals.done, arrivals.total, arrivals.note(), arrivals.text),
                )
            except BaseException:
                shown.keep(arrivals.kept())
                raise
        arrivals.check()
        return self.collection(arrivals.label)

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
