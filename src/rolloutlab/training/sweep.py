"""Several loops, one after another, with other seeds or settings: each on a model and a collection of its own."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

from rolloutlab.errors import InputError, NotOfferedError
from rolloutlab.objective.options import Options, settle
from rolloutlab.scoring.judge import Judge
from rolloutlab.store.lab import Lab
from rolloutlab.store.origins import Origin
from rolloutlab.training.loop import Loop, check_counts, load_loop, read_rows, run_loop
from rolloutlab.training.loop_steps import LoopSteps
from rolloutlab.training.models import Models
from rolloutlab.training.submission import check_config, expand_options
from rolloutlab.training.variants import Grid, Variant, plan_variants
from rolloutlab.trajectories.tables import data_frame
from rolloutlab.widgets import sweep as render
from rolloutlab.widgets.html import for_notebook
from rolloutlab.widgets.progress import Live, ShownLive
from rolloutlab.widgets.sweep import LoopResult

if TYPE_CHECKING:
    import pandas as pd

SEEDS_PER_LOOP = 1_000_000_000
"""Distance between the first seeds of two loops with the same settings: the seeds of a thousand rounds."""


@dataclass(repr=False, eq=False)
class Loops(ShownLive, Sequence[Loop]):
    """The loops of a sweep, or of one loop with several seeds, in order; shown as a table.

    name: the name of the sweep.
    variants: the settings and the seed of each loop that is planned.
    loops: those that have begun.
    ended: why the sweep stopped before the last loop was finished, if it did.
    notes: lines about single loops, such as what was resumed.
    """

    name: str
    variants: Sequence[Variant] = ()
    loops: list[Loop] = field(default_factory=list)
    ended: str = ""
    notes: list[str] = field(default_factory=list)

    @overload
    def __getitem__(self, place: int) -> Loop: ...
    @overload
    def __getitem__(self, place: slice) -> list[Loop]: ...
    def __getitem__(self, place: int | slice) -> Loop | list[Loop]:
        return self.loops[place]

    def __len__(self) -> int:
        return len(self.loops)

    @property
    def best_loop(self) -> Loop | None:
        """The loop with the highest held-out mean of a checkpoint.

        Without held-out rows it is the one with the highest mean of a round. There is none if the sampling differs
        between the loops, because such means cannot be compared.
        """
        measured = [one for one in self.loops if one.measured]
        own = [] if any(each.sampling for each in self.variants) else self.loops
        chosen = [(one, self._mean_of_best(one)) for one in measured or own if one.best_step is not None]
        return max(chosen, key=lambda pair: pair[1], default=(None, 0.0))[0]

    @property
    def best(self) -> str | None:
        """The best checkpoint of all loops, as `%%chat -m` takes it."""
        return self.best_loop.best if self.best_loop else None

    @property
    def best_mean(self) -> float | None:
        """The held-out mean of `best`, measured again with other seeds; None if it was not measured again."""
        return self.best_loop.best_mean if self.best_loop else None

    @staticmethod
    def _mean_of_best(one: Loop) -> float:
        """Return the mean by which the best checkpoint of a loop was chosen: a held-out mean, if there is one."""
        step = one.best_step
        assert step is not None, "it has a best checkpoint"
        if one.measured:
            return one.measured[step]
        return max(each.reward for each in one.rounds if each.step == step and each.reward is not None)

    @property
    def frame(self) -> "pd.DataFrame":
        """Return a DataFrame with one row per loop.

        Its columns:

        - one for each setting in which the loops differ.
        - `seed`: the number of the seed.
        - `rounds`: how many it has.
        - `before`: the first held-out mean.
        - `best`: the held-out mean of the best checkpoint, by which it was chosen.
        - `again`: the same, measured again with other seeds.
        - `step`: the step of the best checkpoint.
        - `model`: the model that the loop trains.
        """
        results = self._results()
        settings = list(dict.fromkeys(name for each in results for name in each.settings))
        names = [*settings, "seed", "rounds", "before", "best", "again", "step", "model"]
        rows = [[*map(each.settings.get, settings), *each.numbers, each.model] for each in results]
        types = {"before": float, "best": float, "again": float, "step": "Int64"}
        return data_frame(rows, [each.name for each in results], "loop", names, types)

    def _results(self) -> list[LoopResult]:
        return [self._result(one, variant) for one, variant in zip(self.loops, self.variants, strict=False)]

    def _result(self, one: Loop, variant: Variant) -> LoopResult:
        measured, step = one.measured, one.best_step
        rounds = sum(each.trained is not None for each in one.rounds)
        before = measured[min(measured)] if measured else None
        best = None if step is None else self._mean_of_best(one)
        return LoopResult(
            one.name, one.model, variant.settings, variant.seed, rounds, before, best, one.best_mean, step
        )

    def put(self, loop: Loop) -> None:
        """Add a loop, or replace the last one if it is the same."""
        if self.loops and self.loops[-1].name == loop.name:
            self.loops[-1] = loop
        else:
            self.loops.append(loop)

    def __repr__(self) -> str:
        best = self.best, self.best_mean
        return render.text(self.name, len(self.variants), self._results(), best, self.ended)

    def _repr_html_(self) -> str:
        best, planned = (self.best, self.best_mean), len(self.variants)
        return for_notebook(render.html(self.name, planned, self._results(), best, self.ended, self.notes))


class _LiveLoop(Live):
    """Shows one of several loops in the table of all of them, and each of its lines once."""

    def __init__(self, live: Live, loops: Loops) -> None:
        self._live, self._loops = live, loops

    def update(self, shown: ShownLive, line: str) -> None:
        if isinstance(shown, Loop):
            self._loops.put(shown)
        if line and line not in self._loops.notes:
            self._loops.notes.append(line)
            self._live.update(self._loops, line)
        else:
            self._live.update(self._loops, "")


@dataclass(frozen=True)
class LoopSettings:
    """What all loops of a sweep have in common.

    steps: the steps of a loop with the settings of the call, without those of the grid.
    over: as of `Session.loop`.
    jobs: how many rounds each loop has in the end; 0 only shows the loops.
    every, patience: as of `Session.loop`.
    """

    steps: LoopSteps
    over: Any
    jobs: int
    every: int
    patience: int

    def steps_of(self, variant: Variant) -> LoopSteps:
        """Make the steps of one loop. All loops measure held-out rows alike, so that their means can be compared."""
        steps, own = self.steps, variant.sampling
        seed = steps.seed or 0
        measuring = {"n": steps.n, "sampling": steps.sampling, "seed": seed}
        sampling = {**steps.sampling, **{name: value for name, value in own.items() if name not in {"n", "top_up"}}}
        return replace(
            steps,
            name=variant.collection,
            seed=seed + SEEDS_PER_LOOP * variant.seed,
            n=own.get("n", steps.n),
            factor=own.get("top_up", steps.factor),
            sampling=sampling,
            options=_merge_options(steps.options, variant.options),
            measuring=measuring,
        )


@dataclass(frozen=True)
class _ModelStart:
    """Where the models of the loops begin. made_from: a checkpoint; None for checkpoint 0 of the base."""

    base: str = ""
    made_from: str | None = None


def _merge_options(given: Any, own: Mapping[str, Any]) -> Any:
    """Merge the options of one loop into those of the call, which may be a function of the round's number."""
    if not own:
        return given
    if callable(given):
        return lambda number: {**given(number), **own}
    return {**(given or {}), **own}


def run_loops(
    settings: LoopSettings,
    lab: Lab,
    models: Models,
    live: Live,
    default_rate: float | None,
    grid: Grid,
    seeds: int,
    check_price: Callable[[str], None],
) -> Loops:
    """Check every loop, then make the rounds that each lacks, one loop after another.

    After an interrupt or an error what is finished stays, and the same call makes the rest. The selected model stays
    selected.

    Args:
        settings: what the loops have in common.
        lab: the store.
        models: the models of the service.
        live: shows the loops.
        default_rate: the policy's learning rate, if known.
        grid: the settings in which the loops differ; empty if only their seeds do.
        seeds: how many loops each combination of settings has.
        check_price: called with each model; raises InputError if there is a budget, and no price of the model.

    Raises:
        As `Session.sweep`.
    """
    steps = settings.steps
    check_counts(jobs=settings.jobs, seeds=seeds, every=settings.every, patience=settings.patience)
    lab.check_name(steps.name)
    _check_given_once(steps, grid)
    variants = plan_variants(steps.name, models.selected, grid, seeds)
    loops = Loops(steps.name, variants)
    if not settings.jobs:
        loops.loops = [_load(lab, each, steps) for each in variants]
        return loops
    over, held_out = read_rows(settings.over, steps.held_out, steps.sampling.get("limit"))
    settings = replace(settings, over=over, steps=replace(steps, held_out=held_out))
    for variant in [each for each in variants if each.seed == 0]:
        _check_variant(settings, variant)
    for variant in variants:
        check_price(variant.model)
    start, missing = _check_models(lab, models, steps, variants)
    one_live = _LiveLoop(live, loops)
    try:
        for i, variant in enumerate(variants):
            live.update(loops, f"{i + 1} of {len(variants)}: {variant}")
            if variant.model in missing:
                _make_model(lab, models, steps, variant, start)
            with models.switch(variant.model):
                loop = run_loop(
                    settings.steps_of(variant), lab, settings.over, one_live, default_rate,
                    jobs=settings.jobs, every=settings.every, patience=settings.patience, one_of_several=True,
                )  # fmt: skip
            loops.put(loop)
    except BaseException as error:
        loops.ended = f"stopped by {type(error).__name__}; the same call makes the rest"
        live.update(loops, "")
        raise
    return loops


def _make_model(lab: Lab, models: Models, steps: LoopSteps, variant: Variant, start: _ModelStart) -> None:
    """Register the model of a loop, and record that it belongs to this sweep."""
    # recorded first: a kill in between must not leave a model that belongs to nothing
    origin = Origin(start.made_from, steps.name, dict(variant.settings), variant.seed)
    lab.origins.set(steps.service, variant.model, origin)
    if start.made_from is None:
        models.register(variant.model, start.base)
    else:
        with models.switch(variant.model):
            models.select(variant.model, None, start.made_from)


def _check_given_once(steps: LoopSteps, grid: Grid) -> None:
    """Raise InputError if a setting is in the grid, and is given once more beside it."""
    own = {} if steps.options is None or callable(steps.options) else steps.options
    for name in grid:
        if name in own or name in steps.sampling:
            raise InputError(f"{name} is in the grid, and is given once more", hint=f"leave out {name}=")


def _check_variant(settings: LoopSettings, variant: Variant) -> None:
    """Raise the errors that a loop of this variant would raise before it samples anything."""
    steps = settings.steps_of(variant)
    settle(check_config(expand_options(steps.options_of(1), {steps.name: steps.sampling.get("max_tokens")}).options))
    steps.check(None if callable(settings.over) else settings.over, steps.held_out)


def _check_models(
    lab: Lab, models: Models, steps: LoopSteps, variants: Sequence[Variant]
) -> tuple[_ModelStart, set[str]]:
    """Check the models and collections of the loops; return where missing models begin, and their names.

    All begin where the first one began: at what was then the newest checkpoint of the selected model.

    Raises:
        InputError: there is a model or a collection of such a name that this sweep has not made.
        NotOfferedError: the selected model has been trained, and the service makes no models from checkpoints.
    """
    origins, there, names = lab.origins.all(), set[str](), set(lab.sizes())
    with suppress(NotOfferedError):
        there = {card.id for card in models.cards()}
    own = {each.model: origins.get((steps.service, each.model)) for each in variants}
    for variant in variants:
        _check_own(variant, own[variant.model], steps.name, there, names)
    missing = {variant.model for variant in variants if variant.model not in there}
    if not missing:
        return _ModelStart(), missing
    selected = models.find(models.selected)
    begun = [known for known in own.values() if known is not None]
    now = f"{selected.name}@{selected.newest}" if selected.newest > 0 else None
    made_from = begun[0].made_from if begun else now
    if made_from is not None:
        models.check_forks()
    return _ModelStart(selected.base, made_from), missing


def _check_own(variant: Variant, known: Origin | None, sweep: str, there: set[str], names: set[str]) -> None:
    """Raise InputError if this sweep has not made the model or the collection of a loop. known: who made the model."""
    is_own = known is not None and (known.sweep, known.seed) == (sweep, variant.seed)
    is_own = is_own and known is not None and known.settings == _as_read_back(variant.settings)
    if known is not None and not is_own:
        raise InputError(f"the model {variant.model} belongs to another sweep", hint="another NAME")
    taken = [name for name in names if name.partition(":")[0] == variant.collection]
    if known is None and (variant.model in there or taken):
        what = f"a collection {variant.collection}" if taken else f"a model {variant.model}"
        raise InputError(f"there is already {what}, which this sweep has not made", hint="another NAME")


def _as_read_back(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turn tuples into lists, as settings are when the lab reads them from JSON."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def _load(lab: Lab, variant: Variant, steps: LoopSteps) -> Loop:
    """Load the loop of a variant as the lab has it."""
    judged, scores = isinstance(steps.reward, Judge), steps.reward is not None
    loop = load_loop(lab, variant.collection, variant.model, Options(), judged=judged, scores=scores)
    # held-out rows are measured with the settings of the call, so they are not to be compared with those of the rounds
    return replace(loop, held_out_measure=loop.held_out_results[-1][1] if loop.held_out_results else None)
