"""What one notebook holds, and the public Python API: every magic is one call of `Session`."""

import secrets
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rolloutlab.catalogue import Price, catalogue
from rolloutlab.client import training
from rolloutlab.client.embedded import Embedded
from rolloutlab.client.inference import complete
from rolloutlab.client.logprobs import score
from rolloutlab.collection import Collection, scored
from rolloutlab.errors import InputError, NotFoundError, RewardError, RolloutlabError
from rolloutlab.exports import Choosing, Export, export
from rolloutlab.http import Http
from rolloutlab.imports import import_file
from rolloutlab.job import Job
from rolloutlab.logprobs import add_logprobs
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
        return Collection(self.store, self.store.find(name))

    def group(self, name: str) -> Collection:
        """One group, `name/N`, as a collection of one; NotFoundError when there is none."""
        label, _, position = name.rpartition("/")
        if not position.isdecimal():
            raise InputError(f"{name!r} names no group", hint=f"%group {name}/0")
        found = Collection(self.store, self.store.find(label), int(position))
        if not found.groups:
            raise NotFoundError(f"there is no group {name!r}", hint=f"%group {label}/0")
        return found

    def collections(
        self, pattern: str | None = None, *, prices: Mapping[str, Price] = MappingProxyType({})
    ) -> "pd.DataFrame":
        """The collections whose name is like `pattern` (`cap*`), every generation, newest first, counted.

        prices: dollars per million tokens by model; where one is known, the table says what sampling has cost.
        """
        return catalogue(self.store.collections(), pattern, prices)

    def delete(self, name: str, *, say: Callable[[str], None] = print) -> None:
        """Hide a collection, or one generation of it (`name:2`), everywhere; NotFoundError when there is none."""
        hidden = self.store.shelf.delete(name)
        say(f"deleted {', '.join(hidden)}; undo: %collections --restore {name}")

    def restore(self, name: str, *, say: Callable[[str], None] = print) -> None:
        """Bring back what was deleted last under this name; NotFoundError when nothing was."""
        found = self.store.shelf.restore(name)
        say(f"restored {', '.join(found)}; undo: %collections --delete {name}")

    def rename(self, old: str, new: str, *, say: Callable[[str], None] = print) -> None:
        """Give a collection, with all its generations, another name.

        Raises:
            NotFoundError: there is no collection `old`. ConflictError: `new` is in use. InputError: it is no name.
        """
        self.store.check_name(new)
        self.store.shelf.rename(old, new)
        say(f"renamed {old} to {new}; undo: %collections --rename {new} {old}")

    def export(
        self,
        names: str | Sequence[str],
        path: str | PathLike[str],
        format: str | None = None,  # noqa: A002 - what it is called on the line
        *,
        best: bool = False,
        min_reward: float | None = None,
        overwrite: bool = False,
    ) -> Export:
        """Write collections to a file, whole or not at all.

        format: `jsonl` or `parquet`, which lose nothing; `openai`, fine-tuning messages; `art`, trajectory groups of
        openpipe-art. By default what the path ends in says it. best: of each group only the highest reward.

        Raises:
            NotFoundError: no such collection. InputError: the file is there already, cannot be written, is of no known
            format, or nothing would be in it.
        """
        found = [self.store.find(name) for name in ([names] if isinstance(names, str) else names)]
        if not found:
            raise InputError("no collection is given", hint="%export NAME FILE")
        target = Path(path).expanduser()
        with Progress(f"writing {target.name}") as shown:
            total = sum(self.store.collection(f"{each.name}:{each.generation}").trajectories for each in found)
            chosen = Choosing(best, min_reward)
            return export(
                self.store, found, target, format, chosen, overwrite=overwrite, written=lambda n: shown.update(n, total)
            )

    def import_(
        self,
        path: str | PathLike[str],
        name: str | None = None,
        format: str | None = None,  # noqa: A002 - what it is called on the line
        *,
        logprobs: bool = False,
    ) -> Collection | list[Collection]:
        """Read a file into a new generation of a collection, or of each when the file holds several: all or nothing.

        name: what the collection is called, by default what the file says. format: as in `export`, by default what the
        first line looks like. logprobs: then `logprobs` of each.

        Raises:
            NotFoundError: there is no such file. InputError: something in it is wrong; the message says where.
        """
        source = Path(path).expanduser()
        with Progress(f"reading {source.name}") as shown:
            labels = import_file(self.store, source, name, format, lambda n: shown.update(n, None))
        found = [self.logprobs(label) if logprobs else self.collection(label) for label in labels]
        return found[0] if len(found) == 1 else found

    def logprobs(self, name: str, model: str | None = None, *, say: Callable[[str], None] = print) -> Collection:
        """Give what the assistant said the token ids and logprobs that training needs, as a new generation.

        For conversations from elsewhere; rewards are kept. model: whose logprobs, by default those of the newest
        checkpoint of the selected one.

        Raises:
            NotFoundError: no such collection or model. NothingTrainsError: the policy can read none of it.
            ServiceError: the service cannot do this.
        """
        collection, target = self.store.collection(name), model or self._selected
        with Progress(f"logprobs of {name}") as shown:
            address = self._address(lambda: shown.update(0, None, "starting the embedded service"))
            if model is None:
                self._select(target)
            outcome = add_logprobs(
                self.store,
                collection,
                lambda histories: self._http.run(score(self._http, address, target, histories)),
                lambda n: shown.update(n, collection.trajectories),
            )
        for line in outcome.words():
            say(line)
        return self.collection(outcome.label or name)

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
