"""The models of a service as a table: the selected one marked, newest checkpoint, its reward, what trained it last."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rolloutlab.api.wire.training import ModelCard
from rolloutlab.store.models import CollectionSummary, SubmittedJob
from rolloutlab.store.results import CollectionResult
from rolloutlab.widgets.html import Html, escape
from rolloutlab.widgets.kit.listing import Cell, Drawn, Listing, ListingRow, ago, draw_mean, whole
from rolloutlab.widgets.kit.parts import chip
from rolloutlab.widgets.kit.table import Heading

_COLUMNS = (
    Heading("model"),
    Heading(""),
    Heading("checkpoint", number=True),
    Heading("mean reward", number=True),
    Heading("last trained on", middle=True),
    Heading("made from", middle=True),
    Heading("when"),
)


@dataclass(frozen=True)
class LabRecord:
    """What a lab knows of models. jobs, collections: newest first. results: by the ids of collections."""

    jobs: Sequence[SubmittedJob] = ()
    collections: Sequence[CollectionSummary] = ()
    results: Mapping[int, CollectionResult] = field(default_factory=dict)


def model_listing(cards: Sequence[ModelCard], selected: str, lab: LabRecord, now: datetime) -> Listing:
    """List the models that a service lists, with what the lab knows of them."""
    now_called = {f"{each.name}:{each.generation}": each.label for each in lab.collections}
    trained = {job.model: job for job in lab.jobs[::-1]}
    sampled: dict[str, CollectionResult] = {}
    for each in lab.collections:
        if (result := lab.results.get(each.id)) and result.mean is not None and not result.others:
            sampled.setdefault(result.model, result)
    rows = []
    for card in cards:
        job = trained.get(card.id)
        names = [now_called.get(label, label) for label in job.collections] if job else []
        cells = [
            Drawn(card.id, Html(f"<b>{escape(card.id)}</b>")),
            Drawn("selected", chip("selected", "now")) if card.id == selected else "",
            "" if card.newest_step is None else f"@{card.newest_step}",
            _reward(sampled.get(card.id), card.newest_step),
            whole(names[0] + f" and {len(names) - 1} more" * (len(names) > 1) if names else ""),
            whole(card.made_from or card.base_model or ""),
            ago(job.created_at, now) if job else "",
        ]
        rows.append(ListingRow(cells))
    return Listing("Models", f"{len(rows):,}", _COLUMNS, rows, cells=[] if rows else ["%model lab/first"])


def _reward(result: CollectionResult | None, newest: int | None) -> Cell:
    """Draw the mean reward of a model's newest samples, with their step if it is not the newest checkpoint's."""
    if result is None or result.mean is None:
        return ""
    mean = draw_mean(result.mean)
    if result.step in {None, newest}:
        return mean
    return Drawn(f"{mean.text} @{result.step}", Html(f'{mean.html} <span class="rl-dim">@{result.step}</span>'))
