"""What one notebook holds, and the public Python API: every magic is one call of `Session`."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolloutlab.catalogue import catalogue
from rolloutlab.check import Check
from rolloutlab.client import inference, training
from rolloutlab.client.embedded import Embedded
from rolloutlab.client.inference import complete, stream
from rolloutlab.client.logprobs import score as score_histories
from rolloutlab.collection import Collection
from rolloutlab.comparison import Comparison, pairs_of
from rolloutlab.connection import Connection, connected, described, inspect, known_address
from rolloutlab.errors import InputError, NotFoundError, RolloutlabError
from rolloutlab.exports import Choosing, Export, export
from rolloutlab.http import MAX_CONNECTIONS, Http
from rolloutlab.imports import import_file
from rolloutlab.job import Job
from rolloutlab.jobs import meant, refreshed
from rolloutlab.jobs import table as table_of_jobs
from rolloutlab.judge import Verdict, hearings, judge_all, to_scores
from rolloutlab.logprobs import add_logprobs
from rolloutlab.loop import SEEDS_PER_ROUND, Loop, Plan, play, so_far
from rolloutlab.model import SelectedModel, split_name
from rolloutlab.model import table as table_of_models
from rolloutlab.objective.options import settle
from rolloutlab.sampling.arrivals import Arrivals
from rolloutlab.sampling.rollout import Player
from rolloutlab.sampling.tools import Tools
from rolloutlab.sampling.work import Preview, Work, continued, resumed, sampled, sampled_again
from rolloutlab.scoring import Functions, kept_line, score, undone_line
from rolloutlab.selection import select
from rolloutlab.settings import Address, Settings, read_settings
from rolloutlab.settings_file import EMBEDDED
from rolloutlab.store.lab import Lab
from rolloutlab.store.records import Score, SubmittedJob
from rolloutlab.submission import checked_config, gather, prepare
from rolloutlab.widgets.live import Live
from rolloutlab.widgets.progress import Progress
from rolloutlab.wire.chat import ChatCompletion, ChatRequest
from rolloutlab.wire.training import Model, RegisterModel

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_MODEL = "lab/practice"
CONCURRENT = 64
"""Requests under way at once; a service batches what is."""


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
        self._known: set[tuple[str, str]] = set()
        self._scorers: dict[str, tuple[Functions, Mapping[str, float] | None]] = {}
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
        self._scorers[name.partition(":")[0]] = (function, weights)
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

    def compare(
        self,
        name: str,
        reward: Functions | None = None,
        *,
        before: int = 0,
        after: int | None = None,
        n: int | None = None,
        over: Any = None,
        model: str | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        concurrency: int = CONCURRENT,
        variables: Mapping[str, Any] | None = None,
    ) -> Comparison:
        """Sample the prompts of a collection again, with the same seeds, from two checkpoints, and score both.

        reward: what scores them; by default what last scored the collection in this notebook. before, after: steps of
        checkpoints; None is the newest. over: other rows for the collection's prompt, such as held-out ones.
        n: completions per prompt, if others than the collection has. tools: the functions it was sampled with.

        What is sampled stays in the lab, as the collections `NAME.step0` and so on.

        Raises:
            NotFoundError: no such collection or checkpoint. InputError: there is no reward function; and as `chat` and
            `reward`.
        """
        summary = self.store.collection(name)
        scorer = (reward, None) if reward else self._scorers.get(summary.name)
        if scorer is None:
            hint = f"%%compare {name}, with the reward function as its body"
            raise InputError(f"nothing scored {name} in this notebook yet", hint=hint)
        found = self._select(model or self._selected)
        sides = []
        for step in (found.checked(before), found.newest if after is None else found.checked(after)):
            target, kept = f"{found.name}@{step}", f"{summary.name}.step{step}"
            work = sampled_again(self.store, name, kept, target, over, variables or {}, n, Tools(tools))
            sides.append((target, self.reward(self._sample(work, concurrency).label, *scorer)))
        (old, was), (new, became) = sides
        return Comparison(name, old, new, pairs_of(was, became))

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
        eleven of `rolloutlab.objective.glossary`. say: gets the pre-flight report, line by line.
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
        reward: Functions,
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

        def quiet(_line: str) -> None:
            """The loop tells its rounds."""

        def sample(label: str, rows: Any, number: int | None) -> Collection:
            first = (seed or 0) if number is None else None if seed is None else seed + SEEDS_PER_ROUND * number
            return self.reward(
                self.chat(label, prompt, n=n, over=rows, seed=first, **sampling).label, reward, say=quiet
            )

        def train(label: str) -> Job:
            return self.train(label, options, wait=False, say=quiet).wait(progress=False)

        plan = Plan(sample, over if callable(over) else lambda _: over, train, held_out, every, patience)
        return play(so_far(self.store, name, self._selected, settled), plan, jobs, settled, Live(say))

    def rewards(self, name: str) -> "pd.DataFrame":
        """The rewards of a collection, one row per trajectory: `Collection.to_frame`."""
        return self.collection(name).to_frame()

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
        return Collection(self.store, self.store.find(name))

    def group(self, name: str) -> Collection:
        """One group, `name/N`, as a collection of one; NotFoundError when there is none."""
        label, _, position = str(name).rpartition("/")
        if not label or not position.isdecimal():
            raise InputError(f"{name!r} names no group", hint=f"%group {name if isinstance(name, str) else 'NAME'}/0")
        found = Collection(self.store, self.store.find(label), int(position))
        if not found.groups:
            raise NotFoundError(f"there is no group {name!r}", hint=f"%group {label}/0")
        return found

    def collections(self, pattern: str | None = None) -> "pd.DataFrame":
        """The collections whose name is like `pattern` (`cap*`), every generation, newest first, counted.

        Where the settings file has prices, the table says what sampling has cost.
        """
        return catalogue(self.store.collections(), pattern, self.settings.prices)

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
                self._register(target)
            outcome = add_logprobs(
                self.store,
                collection,
                lambda histories: self._http.run(score_histories(self._http, address, target, histories)),
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

    def models(self) -> "pd.DataFrame":
        """Every model that the service can sample, with its base, newest checkpoint and number of checkpoints."""
        return table_of_models(self._http.run(inference.models(self._http, self._address())))

    def job(self, job_id: str | None = None) -> Job:
        """A job submitted from this lab, by its id or the beginning of it, from any kernel; without one, the newest.

        Raises:
            NotFoundError: there is none, or more than one, or its service is not known here.
        """
        found = meant(self.store.jobs.newest_first(), job_id)
        heard = partial(self.store.jobs.heard, found.id)
        return Job(self._http, self._service_of(found), found.id, found.model, heard)

    def jobs(self) -> "pd.DataFrame":
        """Every job this lab submitted, newest first, with its status and the step it made.

        What may have changed is asked of the service, where one runs; none is started.
        """
        address = self.settings.service or self.embedded.running()
        return table_of_jobs(refreshed(self.store.jobs, self._http, address, self._service))

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

    def _sample(self, work: Work, concurrency: int, *, register: bool = False) -> Collection:
        """Play the rollouts of `work`; what arrives is stored at once."""
        if concurrency < 1:
            raise InputError(f"concurrency: {concurrency} is below 1", hint="--concurrency 64")
        arrivals = Arrivals(self.store, work)
        with Progress(f"sampling {work.name}") as shown:
            address = self._address(lambda: shown.update(0, None, "starting the embedded service"))
            if register and (address.base_url, work.plan.model) not in self._known:
                self._register(work.plan.model)

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
        self.seen |= {name, *(f"{name}@{checkpoint.step}" for checkpoint in steps)}
        return SelectedModel(name, str(model.id), model.base_model, tuple(c.step for c in steps))


def lab() -> Session:
    """The session of this notebook once `%load_ext rolloutlab` has run; elsewhere, a new one."""
    from IPython import get_ipython

    shell = get_ipython()
    found = shell.magics_manager.registry.get("ChatMagics") if shell else None
    return found.session if found else Session()
