"""Steps of a loop, as calls of a session: sample by a prompt or a program, score, train, measure."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import partial
from inspect import signature
from types import MappingProxyType
from typing import Any, Protocol

from rolloutlab.api.budget import Budget
from rolloutlab.environments.source import source_or_none
from rolloutlab.errors import InputError, NotFoundError, NothingTrainsError, RewardError
from rolloutlab.sampling.code_digest import describe_parts
from rolloutlab.sampling.options import ChatOptions
from rolloutlab.sampling.plan import OF_PROGRAMS, SamplingRun, plan_program
from rolloutlab.sampling.preview import Preview
from rolloutlab.sampling.programs.program import Program
from rolloutlab.sampling.template import Prompt
from rolloutlab.scoring.foreign import call_of
from rolloutlab.scoring.functions import Functions, by_name, check_functions
from rolloutlab.scoring.judge import Judge, dialogs_of
from rolloutlab.scoring.score import REWARD, scoring_of
from rolloutlab.settings import EMBEDDED
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Group, NewGroup
from rolloutlab.store.scorings import NewScoring
from rolloutlab.training.checkpoints import LabModels
from rolloutlab.training.measures import Measure, again_name, held_out_name, measure
from rolloutlab.training.unfinished import Unfinished
from rolloutlab.trajectories.collection import Collection
from rolloutlab.trajectories.top_up import check_factor

Schedule = Callable[[int], Mapping[str, Any]]
"""A function from the number of a round to the options of its job."""
RunChanges = Callable[[str, str, Measure | None, Measure | None], Sequence[str]]
SEEDS_PER_ROUND = 1_000_000
"""Each row of a round has its own seed. Rounds do not share seeds, up to this many rows."""

_SCHEDULED = 'options=lambda round: {"learning_rate": 2e-3 * 0.9**round}'


def check_sampling(given: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise InputError unless a loop can pass on these settings of `chat`."""
    if "model" in given:
        raise InputError("a loop samples the model that it trains: the selected one", hint=f"%model {given['model']}")
    for name in given.keys() - set(known):
        close = get_close_matches(name, list(known), n=1)
        raise InputError(f"there is no setting {name!r}", hint=f"{close[0]}=..." if close else "lab.chat?")


def check_reward(reward: Functions | Judge | None, held_out: Any, *, given: bool) -> None:
    """Raise InputError or RewardError unless `reward` can score what a loop samples. No function is called.

    given: an environment or a program gives the rewards, or has given them, so that a loop needs no reward function.
    """
    if reward is None:
        if not given:
            hint = "lab.loop(name, prompt, reward), or env=GuessNumber or solve=my_agent, which give them"
            raise InputError("the loop needs a reward function", hint=hint)
        return
    if not isinstance(reward, Judge):
        check_functions(reward)
        return
    dialogs_of((), "", {}, model=reward.model, samples=reward.samples, seed=reward.seed)
    if held_out is not None:
        message = "a judge compares completions of one group: its mean over held-out rows does not compare checkpoints"
        raise InputError(message, hint="held_out=None, or a reward function")


class LoopOptions(ChatOptions, total=False):
    """Options of a loop beside those of its chats or rollouts.

    timeout: seconds for one rollout of a program. 600 by default.
    held_out: rows to measure on, which are never trained on. They are sampled before the first round, then every
        `every` rounds, and after the last. At the end the best checkpoint is measured on them again, with other seeds.
    every: rounds from one measurement to the next. 5 by default.
    patience: the loop ends after so many consecutive rounds in which nothing trained. 3 by default.
    top_up: a factor. Before a round trains, its groups whose rewards are all equal get more completions, as by the call
        `top_up` with this factor.
    report_to: trackers that get the run after each round: `trackio`, `tensorboard`, `wandb`, each with a place after a
        colon if needed, as docs/runs.md says.
    """

    timeout: float
    held_out: Any
    every: int
    patience: int
    top_up: float | None
    report_to: Sequence[str]


OF_ROUNDS = frozenset({"n", "over", "seed", "budget", "held_out", "every", "patience", "top_up", "report_to"})
"""Options that a loop reads itself; the others are those of its chats or rollouts."""


class LoopCalls(Protocol):
    """The part of a session that a loop uses. The loop samples and trains the selected one of its models."""

    @property
    def models(self) -> LabModels: ...
    @property
    def preview(self) -> Callable[..., Preview]: ...
    @property
    def chat(self) -> Callable[..., Collection]: ...
    @property
    def rollouts(self) -> Callable[..., Collection]: ...
    @property
    def reward(self) -> Callable[..., Collection]: ...
    @property
    def judge(self) -> Callable[..., Collection]: ...
    @property
    def train(self) -> Callable[..., Any]: ...
    @property
    def top_up(self) -> Callable[..., Collection]: ...
    @property
    def resume(self) -> Callable[..., Collection]: ...
    @property
    def collection(self) -> Callable[[str], Collection]: ...
    @property
    def job(self) -> Callable[[str], Any]: ...


@dataclass(frozen=True)
class LoopSteps:
    """The steps of a round as calls of a session; the fields are the arguments of `Session.loop`.

    service: the name of the service that trains.
    factor: the factor of `top_up`.
    draws_rows: whether the rows follow from a random seed, so that each call has other rows.
    measuring: fields that have other values while the held-out rows are measured.
    find_run_changes: called with a model, a collection, and how its rounds and held-out rows will be measured. Returns
        what changed, if the next job on the collection begins another run of the model; else nothing.
    """

    calls: LoopCalls
    name: str
    prompt: Prompt
    reward: Functions | Judge | None
    n: int
    seed: int | None
    options: Mapping[str, Any] | Schedule | None
    held_out: Any
    sampling: Mapping[str, Any]
    budget: Budget | None = None
    program: Program | None = None
    factor: float | None = None
    service: str = EMBEDDED
    draws_rows: bool = False
    measuring: Mapping[str, Any] = field(default_factory=dict)
    find_run_changes: RunChanges = lambda *_: ()

    def check(
        self, over: Any = None, held_out: Any = None, *, will_train: bool = True
    ) -> tuple[Measure | None, Measure | None]:
        """Raise the errors that the calls would raise for these rows, before anything is sampled.

        Return how the means of the rounds and of the held-out rows will be measured. A measure is None if the rows are
        None, or if the reward function does not fit them. will_train: False if the loop is only shown, which needs no
        reward.
        """
        call = self.calls.rollouts if self.program else self.calls.chat
        check_sampling(self.sampling, signature(call).parameters.keys() - {"solve"})
        has_own = bool(self.program) or self.sampling.get("env") is not None
        check_reward(self.reward, self.held_out, given=has_own or not will_train)
        if self.factor is not None:
            check_factor(self.factor, self.n)
            if self.sampling.get("temperature") == 0 and not (self.program or self.sampling.get("env")):
                message = "at temperature 0 every further completion of a top-up would be the same"
                raise InputError(message, hint="a temperature of 1, or no top_up")
        if self.program and self.prompt:
            raise InputError("a loop samples by a prompt or by a program", hint="solve= without a prompt")
        held = self._as_measured
        of_rounds = None if over is None else self._measure(self._preview(over))
        return of_rounds, None if held_out is None else held._measure(held._preview(held_out))

    @property
    def _as_measured(self) -> "LoopSteps":
        """These steps with the fields that apply while the held-out rows are measured."""
        return replace(self, **self.measuring, measuring={}) if self.measuring else self

    def options_of(self, number: int) -> Mapping[str, Any]:
        """Return the options of a round. Raises InputError if the user's function fails or does not return options."""
        if not callable(self.options):
            return self.options or {}
        try:
            given = self.options(number)
        except Exception as error:
            message = f"options({number}) raised {type(error).__name__}: {error}"
            raise InputError(message, hint=_SCHEDULED) from error
        if not isinstance(given, Mapping):
            message = f"options({number}) returned a {type(given).__name__}, which is no options of a job"
            raise InputError(message, hint=_SCHEDULED)
        return given

    def parts(self, like: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
        """Return digests of the parts of the reward functions, the program and the environment, as they are now.

        like: earlier digests, to compare with.
        """
        parts: dict[str, str] = {}
        if self.reward is not None and not isinstance(self.reward, Judge):
            parts |= describe_parts(by_name(self.reward), REWARD, like)
        if self.program:
            parts |= describe_parts(self.program.solve, "program", like)
        if source := source_or_none(self.sampling.get("env")):
            parts |= describe_parts(source, "env", like)
        return parts

    def _measure(self, run: Preview | SamplingRun) -> Measure | None:
        """Describe how the mean of a planned run will be measured; None if the reward function does not fit it."""
        with suppress(InputError, RewardError):
            return measure(self._scoring(run.groups), run.plan, run.groups)
        return None

    def _scoring(self, groups: Sequence[Group | NewGroup]) -> NewScoring | None:
        """Return the scoring that these groups would get, in the form in which the lab records scorings."""
        if self.reward is None:
            return None
        if isinstance(self.reward, Judge):
            return NewScoring("judge", [self.reward.model], self.reward.rubric, {})
        columns = list(dict.fromkeys(column for group in groups for column in group.row))
        calls = [call_of(name, function, columns) for name, function in by_name(self.reward).items()]
        return scoring_of(self.reward, calls, {})

    def _preview(self, rows: Any, seed: int | None = None) -> Preview | SamplingRun:
        """Plan the sampling of rows, without sampling anything. seed: instead of the loop's."""
        seed = self.seed if seed is None else seed
        if self.program:
            settings = {"model": self.calls.models.selected, "n": self.n, "seed": seed, **self.sampling}
            return plan_program(self.name, self.program, rows, {k: v for k, v in settings.items() if k in OF_PROGRAMS})
        return self.calls.preview(self.name, self.prompt, over=rows, n=self.n, seed=seed, **self.sampling)

    def changes_of_round(self, begun: Unfinished, lab: Lab, rows: Any, number: int, state: Set[str]) -> list[str]:
        """Return what this call has changed since a round was begun, as words; none if it can go on with the round.

        Args:
            begun: the round.
            lab: the store.
            rows: the rows of the round.
            number: the number of the round, from which its seeds follow.
            state: see `Measure.differences`.
        """
        words = self._changes(begun, lab, rows, self._seed_of(number), state, with_rows=not self.draws_rows)
        return words + self._changes_of_model(begun, self.calls.models.selected, self.calls.models.newest_step())

    def changes_of_measure(self, begun: Unfinished, lab: Lab, state: Set[str], step: int | None = None) -> list[str]:
        """Return the changes as `changes_of_round` does, for a measurement of the held-out rows.

        step: the best checkpoint, if it is the one that is measured again.
        """
        seed = self._measure_seed if step is None else self._seed_again
        words = self._as_measured._changes(begun, lab, self.held_out, seed, state)
        selected = self.calls.models.selected
        if step is not None:
            return words + self._changes_of_model(begun, f"{selected}@{step}", None)
        return words + self._changes_of_model(begun, selected, self.calls.models.newest_step())

    def _changes(
        self, begun: Unfinished, lab: Lab, rows: Any, seed: int | None, state: Set[str], *, with_rows: bool = True
    ) -> list[str]:
        run, scoring = self._preview(rows, seed), lab.scorings.last(begun.stored)
        wanted = self._scoring(run.groups)
        now = measure(wanted, run.plan, run.groups)
        # a generation without scores will be scored as a whole by the present reward, so the reward is no change
        then = measure(scoring or wanted, begun.plan, lab.groups(begun.stored, unfinished=True))
        words = now.differences(then, state, rows=with_rows)
        words += ["n"] if run.plan.n != begun.plan.n else []
        return words + (["seed"] if seed is not None and run.plan.seed != begun.plan.seed else [])

    @staticmethod
    def _changes_of_model(begun: Unfinished, model: str, newest: int | None) -> list[str]:
        """Return `model` or `checkpoint` if another one would sample now. newest: the newest one, if that matters."""
        if begun.plan.model != model:
            return ["model"]
        # completions of one group come from one checkpoint, and a round trains on those of the newest
        is_older = newest is not None and begun.plan.step is not None and begun.plan.step != newest
        return ["checkpoint"] if is_older else []

    def _seed_of(self, number: int) -> int | None:
        return None if self.seed is None else self.seed + SEEDS_PER_ROUND * number

    @property
    def _measure_seed(self) -> int:
        return self._as_measured.seed or 0

    @property
    def _seed_again(self) -> int:
        return self._measure_seed - SEEDS_PER_ROUND

    def sample(self, rows: Any, number: int, options: Mapping[str, Any]) -> Collection:
        """Sample and score the rows of a round. With `factor`, top up its groups that have nothing to learn.

        options: the options of the round's job, which decide what has something to learn.
        """
        return self._top_up_round(self._sample_and_score(self.name, rows, self._seed_of(number)), options)

    def finish_round(self, begun: Unfinished, options: Mapping[str, Any]) -> Collection:
        """Sample, score and top up what an interrupted round lacks. options: as `sample` takes them."""
        return self._top_up_round(self.finish(begun), options)

    def _top_up_round(self, scored: Collection, options: Mapping[str, Any]) -> Collection:
        if self.factor is None:
            return scored
        top_up = partial(self.calls.top_up, scored.label, self.factor, self.reward)
        return top_up(options=options, say=_quiet, **self._resume_settings, **self._budget_option)

    def finish(self, begun: Unfinished) -> Collection:
        """Sample and score what an interrupted generation lacks."""
        if not begun.stored.missing:
            done = self.calls.collection(begun.label)
        elif self.program:
            given = {"timeout": self.sampling["timeout"]} if "timeout" in self.sampling else {}
            done = self.calls.resume(
                begun.label, program=self.program, **given, **self._resume_settings, **self._budget_option
            )
        else:
            done = self.calls.resume(begun.label, **self._resume_settings, **self._budget_option)
        return done if begun.is_sampled_and_scored else self._score(done, resume=begun.scoring_begun)

    @property
    def _resume_settings(self) -> dict[str, Any]:
        """The sampling settings that a collection does not store."""
        return {name: self.sampling[name] for name in ("tools", "env", "concurrency") if name in self.sampling}

    def measure(self) -> Collection:
        """Sample and score the held-out rows, with the same seeds each time."""
        return self._as_measured._sample_and_score(held_out_name(self.name), self.held_out, self._measure_seed)

    def measure_again(self, step: int) -> Collection:
        """Sample and score the held-out rows under a checkpoint, with seeds of no round."""
        model = f"{self.calls.models.selected}@{step}"
        name = again_name(self.name)
        return self._as_measured._sample_and_score(name, self.held_out, self._seed_again, model=model)

    def has_job(self, job_id: str) -> bool:
        """Whether the service has a job that was submitted, or was about to be when its kernel was killed."""
        try:
            self.calls.job(job_id).events()
        except NotFoundError:
            return False
        return True

    def wait_for_job(self, label: str, job_id: str) -> Collection:
        """Wait for a job that was submitted before; return what it trains on. JobFailedError: it failed."""
        self.calls.job(job_id).wait(progress=False)
        return self.calls.collection(label)

    def train(self, label: str, options: Mapping[str, Any]) -> str:
        """Train on a round and wait for the job; return why nothing trained, or an empty text."""
        try:
            self.calls.train(label, options, wait=False, say=_quiet, **self._budget_option).wait(progress=False)
        except NothingTrainsError as error:
            return error.message.partition(": ")[2] or error.message
        return ""

    def _sample_and_score(self, name: str, rows: Any, seed: int | None, **model: str) -> Collection:
        """Sample rows into a collection, and score it. model: instead of the selected one."""
        settings = {**model, **self.sampling, **self._budget_option}
        sample = (
            partial(self.calls.rollouts, name, self.program)
            if self.program
            else partial(self.calls.chat, name, self.prompt)
        )
        return self._score(sample(n=self.n, over=rows, seed=seed, **settings), resume=False)

    def _score(self, sampled: Collection, *, resume: bool) -> Collection:
        """Score what was sampled. resume: functions have scored a part of it. A judge knows what it judged."""
        label, judge = sampled.label, self.reward
        if judge is None:
            return sampled
        if not isinstance(judge, Judge):
            return self.calls.reward(label, judge, resume=resume, say=_quiet, **self._budget_option)
        given = {each.name: getattr(judge, each.name) for each in fields(judge) if each.name != "rubric"}
        return self.calls.judge(label, judge.rubric, **given, say=_quiet, **self._budget_option)

    @property
    def _budget_option(self) -> dict[str, Any]:
        return {} if self.budget is None else {"budget": self.budget}


def _quiet(_line: str) -> None:
    """Drop a line that a call of the session reports: the loop reports its rounds instead."""
