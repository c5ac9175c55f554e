"""Dry run of a training job: a report, and the advantage of each trajectory."""

from typing import TYPE_CHECKING, Any

from rolloutlab.api.prices import Tokens, cost, shown
from rolloutlab.api.training import upload
from rolloutlab.api.wire.engine import EngineStatus
from rolloutlab.api.wire.fine_tuning import UploadedFile
from rolloutlab.connection import Connector
from rolloutlab.errors import InputError, NothingTrainsError
from rolloutlab.hints import as_hint
from rolloutlab.objective.option_docs import LARGE_POLICY_SFT_RATE, OPTIONS, rate_warnings, written
from rolloutlab.objective.options import settle
from rolloutlab.objective.preflight import count, explained
from rolloutlab.sanitize import escape_control_chars
from rolloutlab.settings import Address, Price
from rolloutlab.training.fine_tuning import FineTuning
from rolloutlab.training.refusals import refusal_lines
from rolloutlab.training.submission import Submission
from rolloutlab.trajectories.tables import data_frame
from rolloutlab.widgets import dry_run as render
from rolloutlab.widgets.dry_run import LastJob, Plan
from rolloutlab.widgets.html import for_notebook
from rolloutlab.widgets.kit.parts import band, chip, figure, head, hints, line, panel

if TYPE_CHECKING:
    import pandas as pd


class DryRun:
    """What a job would train and why the rest would not; nothing was submitted.

    It does not follow rewards that change after it was made.
    """

    def __init__(self, submission: Submission, price: Price | None = None, last: LastJob | None = None) -> None:
        self._plan = plan_of(submission, price, last)
        self.preflight = submission.check
        self.groups = render.rate(submission.seats, submission.check)

    def to_frame(self) -> "pd.DataFrame":
        """Return a DataFrame with a row per trajectory, indexed by name (`capitals/0/3`); per turn with `credit: turn`.

        Its columns:

        - `reward`: NaN without one.
        - `advantage`, `weight`: of each of its tokens; 0 if it would not train.
        - `tokens`.
        - `sequences`: more than one if the chat template does not keep earlier turns as they were sampled.
        - `reason`: why it would not train; missing if it would.
        - with `credit: turn` also `turn` (missing for additional histories) and `reward_to_go`.
        """
        rated = [row for group in self.groups for one in group for row in render.by_turn(one)]
        columns = {
            "reward": [one.reward for one in rated],
            "advantage": [one.advantage for one in rated],
            "weight": [one.weight for one in rated],
            "tokens": [one.tokens for one in rated],
            "sequences": [one.sequences for one in rated],
            "reason": [one.reason and str(one.reason) for one in rated],
        }
        types: dict[str, Any] = {"reward": float}
        if any(one.turns for one in rated):
            columns["turn"] = [one.turns[0].turn if one.turns else None for one in rated]
            columns["reward_to_go"] = [one.turns[0].reward_to_go if one.turns else None for one in rated]
            types |= {"turn": "Int64", "reward_to_go": float}
        return data_frame(columns, [one.name for one in rated], types=types)

    def __repr__(self) -> str:
        return escape_control_chars(render.text(self._plan, self.groups))

    def _repr_html_(self) -> str:
        return for_notebook(render.html(self._plan, self.groups))


def plan_of(submission: Submission, price: Price | None, last: LastJob | None) -> Plan:
    """Collect what a view shows of a job. last: the last job of its model."""
    sizes = {len(group) for group in submission.seats}
    each = f" \N{MULTIPLICATION SIGN} {sizes.pop()}" if len(sizes) == 1 else ""
    options, tokens = settle(submission.config), submission.check.trainable_tokens
    given, default = options.learning_rate, submission.default_rate
    rate = (
        None
        if given is None and default is None
        else (f"{given:g}", "")
        if given is not None
        else (f"{default:g}", "the default")
    )
    paid = price is not None and price.train is not None
    return Plan(
        submission.names,
        f"{count(len(submission.seats), 'prompt')}{each}",
        submission.checkpoint,
        submission.check,
        submission.outcome(),
        submission.plans(),
        options.epochs,
        rate,
        shown(cost(price, Tokens(trained=tokens)), up=True) if price and paid else "",
        last,
        submission.groups.hints,
        _cell(submission),
    )


def _cell(submission: Submission) -> str:
    """Write the cell that submits the job, with its options."""
    given = submission.config.to_wire()
    options = (f"{name}: {written(given[name])}" for name in OPTIONS if not OPTIONS[name].is_default(given.get(name)))
    return "\n".join([f"%%train {' '.join(submission.names)}", *options])


class FineTuningCheck:
    """What a fine-tuning job would learn, as its service has read it; nothing was submitted.

    file: the service's report. batch_size: conversations per gradient step, if the option is given. steps: the number
    of gradient steps.
    """

    def __init__(
        self, wanted: FineTuning, file: UploadedFile, engine: EngineStatus | None, price: Price | None = None
    ) -> None:
        self._cost = training_cost(price, file.tokens)
        self._names = wanted.names
        self._model = wanted.model
        self._warnings = wanted.warnings()
        self.file = file
        self.batch_size = wanted.config.batch_size
        self.steps = wanted.config.steps(file.trainable, file.rows)
        self._refused = refusal_lines(wanted.config, engine)
        rates = wanted.config.learning_rate or 0.0
        rate, default = max(rates) if isinstance(rates, list) else rates, engine.sft_learning_rate if engine else None
        self._rate = rate_warnings(rate, default, LARGE_POLICY_SFT_RATE)
        self._lack = wanted.config.lacks_rates(self.steps)

    def report(self) -> list[str]:
        """Return `412 conversations, 38,000 tokens in 17 steps`, a line per reason why some are left out, warnings."""
        file = self.file
        what = f"{count(file.trainable, 'conversation')}, {count(file.tokens, 'token')}"
        lines = [f"{what} in {count(self.steps, 'step')}"]
        for reason, number in file.reasons.items():
            why, _ = explained(reason, self._names)
            names = file.skipped.get(reason, [])
            which = ", ".join(names[:3]) + f" and {number - 3} more" * (number > 3)
            what = f": {'; '.join(list(file.unreadable)[:3])}" if reason == "unreadable" and file.unreadable else ""
            lines.append(f"{number:,} left out: {why}{what} ({which})")
        lacks = [f"no job can begin: {self._lack} -> {self._rates_hint}"] if self._lack else []
        return [*lines, *lacks, *self._refused, *self._rate, *file.warnings, *self._warnings, *self._cost]

    @property
    def _rates_hint(self) -> str:
        return f"learning_rate: one number, or {self.steps} of them"

    def check(self) -> None:
        """Raise NothingTrainsError if nothing would be learned, or InputError if a step has no learning rate."""
        if not self.file.trainable:
            why = "; ".join(self.report()[1:])
            raise NothingTrainsError(
                f"nothing in {self._names} would train: {why}", hint="%%train NAME --sft --dry-run"
            )
        if self._lack:
            raise InputError(self._lack, hint=self._rates_hint)

    @property
    def _title(self) -> str:
        return f"dry run of {self._names} for {self._model}: nothing was submitted"

    def __repr__(self) -> str:
        return escape_control_chars("\n".join([self._title, *self.report()]))

    def _repr_html_(self) -> str:
        notes = [each for each in self.report()[1:] if each not in self._cost]
        file = self.file
        figures = [
            figure(
                "Conversations that train", f"{file.trainable:,}", f"of {file.conversations:,}", odd=not file.trainable
            ),
            figure("Tokens", f"{file.tokens:,}", "", *map(line, self._cost)),
            figure("Steps", f"{self.steps:,}"),
        ]
        made = panel(
            head(f"Dry run of {self._names}", f"fine-tuning {self._model}", chip("nothing was submitted")),
            hints([as_hint(each, "info" if " left out: " in each else "warn") for each in notes]),
            band(*figures),
        )
        return for_notebook(made)


def check_fine_tuning(
    wanted: FineTuning, connector: Connector, address: Address, price: Price | None = None
) -> FineTuningCheck:
    """Have the service read the data, and keep none of it. Raises as `upload` does."""
    file = connector.http.run(upload(connector.http, address, wanted, dry_run=True))
    return FineTuningCheck(wanted, file, connector.engine(address), price)


def training_cost(price: Price | None, tokens: int) -> list[str]:
    """Return a line with the cost of a job on so many tokens; no line if the settings have no price for training."""
    if price is None or price.train is None:
        return []
    return [f"cost: {shown(cost(price, Tokens(trained=tokens)), up=True)} for {count(tokens, 'trained token')}"]
