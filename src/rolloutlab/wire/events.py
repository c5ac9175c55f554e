"""What a training job reports while it runs: one envelope, told apart by `type`."""

from typing import Any, Literal

from rolloutlab.wire.base import Boolean, Wire


class Event(Wire):
    """One event of a job; `data` is free-form, and the values of a `gradient_step` are all numbers.

    Types: training_started, preflight, gradient_step, checkpoint_saved, restarted, and those of `ENDINGS`.
    Readers ignore types they do not know.
    """

    id: str
    type: str
    data: dict[str, Any] = {}


class EventList(Wire):
    object: Literal["list"]
    data: list[Event]
    has_more: Boolean


ENDINGS = frozenset({"training_ended", "training_failed", "training_cancelled"})
"""Types of the event after which a job reports nothing more."""
