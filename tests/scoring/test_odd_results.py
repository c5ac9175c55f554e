"""What goes wrong with one result, its conversion, its repr or its message fails that trajectory, and no other."""

import threading
from decimal import Decimal

import numpy
import pytest

from rolloutlab.errors import InputError

PATIENCE = 30.0
"""Seconds after which a test that waits for something is a test that fails."""
SURROGATE = "\ud83d"


class OddNumber(float):
    """Raises wherever it is converted or shown."""

    def __float__(self) -> float:
        raise LookupError("no float")

    def __repr__(self) -> str:
        raise LookupError("no repr")


class Item:
    """As a tensor of two elements has it."""

    def item(self) -> float:
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")

    def __repr__(self) -> str:
        return "tensor([1., 2.])"


class Exits:
    def item(self) -> float:
        raise SystemExit(3)


class Attributes:
    def __getattribute__(self, name: str) -> object:
        raise LookupError(name)


class Keys(dict):  # type: ignore[type-arg]
    def items(self):
        raise LookupError("no items")


class NoMessageError(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


class ExitsAsMessageError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("odd", "error", "message"),
    [
        (Item(), "RewardError", "the reward of capitals/1/1 is tensor([1., 2.]), which is no finite number"),
        (OddNumber(1), "RewardError", "is a value of type OddNumber, which is no finite number"),
        (10**5000, "RewardError", "is a value of type int, which is no finite number"),
        (numpy.array([1.0, 2.0]), "RewardError", "is array([1., 2.]), which is no finite number"),
        (Decimal("sNaN"), "RewardError", "is Decimal('sNaN'), which is no finite number"),
        (Attributes(), "LookupError", "__"),
        (Exits(), "SystemExit", "3"),
        (Keys(a=1.0), "LookupError", "no items"),
        ({SURROGATE: OddNumber(1)}, "RewardError", "\u27e8d83d\u27e9"),
    ],
    ids=str.split("tensor number digits array decimal attributes exit keys component"),
)
def test_a_value_that_cannot_be_converted_or_shown_fails_alone(lab, collect, rewards, odd, error, message):
    collect(4, 2)
    lines: list[str] = []
    lab.reward("capitals", lambda trajectory: odd if trajectory.name.endswith("1/1") else 1.0, say=lines.append)
    assert rewards() == [1.0] * 3 + [None] + [1.0] * 4
    assert lines[0].startswith(f"7 scored, 1 failed: {error}")
    (failure,) = lab.store.scorings.failures(lab.store.find("capitals"))
    assert (failure.trajectory.name, failure.error) == ("capitals/1/1", error)
    assert message in failure.message
    assert not (error == "RewardError" and failure.line)


def test_a_generator_that_raises_fails_its_group_alone(lab, collect, rewards):
    collect(4, 2)
    lines: list[str] = []
    lab.reward("capitals", lambda answers: (1 / (answer != "a1") for answer in answers), say=lines.append)
    assert rewards() == [1.0] * 2 + [None] * 2 + [1.0] * 4
    assert lines == ["6 scored, 2 failed: ZeroDivisionError \N{MULTIPLICATION SIGN}2 -> %%reward capitals --resume"]
    first, _ = lab.store.scorings.failures(lab.store.find("capitals"))
    assert first.message == "division by zero"
    assert "1 / (answer" in first.line


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError(f"no unit in {SURROGATE}"), "no unit in \u27e8d83d\u27e9"),
        (NoMessageError(), "its message cannot be shown"),
        (ExitsAsMessageError(), "its message cannot be shown"),
    ],
)
@pytest.mark.parametrize("concurrency", [1, 8])
def test_an_error_whose_message_cannot_be_stored_or_shown_fails_alone(
    lab, collect, rewards, error, message, concurrency
):
    collect(4, 2)

    def fails(trajectory):
        if trajectory.name.endswith("1/1"):
            raise error
        return 1.0

    async def fails_later(trajectory):
        return fails(trajectory)

    for function in (fails, fails_later):
        lines: list[str] = []
        lab.reward("capitals", function, concurrency=concurrency, timeout=PATIENCE, say=lines.append)
        assert rewards() == [1.0] * 3 + [None] + [1.0] * 4
        assert lines[0].startswith(f"7 scored, 1 failed: {type(error).__name__}")
        (failure,) = lab.store.scorings.failures(lab.store.find("capitals"))
        assert failure.message == message
        assert failure.line
        assert message in lab.rewards("capitals").to_frame()["reward_error"]["capitals/1/1"]


def test_a_weight_may_be_for_a_late_component_of_nearly_the_name_of_another(lab, collect, rewards):
    collect(20, 2)

    def formatted(trajectory):
        if not trajectory.name.endswith("19/1"):
            return {"format": 1.0}
        return {"format": 1.0, "formats": 1.0 if heard.wait(PATIENCE) else 0.0}

    heard = Heard(lab)
    lab.reward("capitals", formatted, {"formats": 2.0}, concurrency=1, say=pytest.fail)
    assert rewards() == [1.0] * 39 + [3.0]


class Heard:
    """Waits for the first rewards to be stored."""

    def __init__(self, lab) -> None:
        self._stored = threading.Event()
        lab.store.rewards.listen(self.edited)

    def edited(self, _ids) -> None:
        self._stored.set()

    def wait(self, seconds: float) -> bool:
        return self._stored.wait(seconds)


def test_a_weight_that_no_component_has_names_the_one_of_nearly_that_name(lab, collect):
    collect(20, 2)
    heard, lines = Heard(lab), []

    def formatted(trajectory):
        return {"format": float(not trajectory.name.endswith("19/1") or heard.wait(PATIENCE))}

    lab.reward("capitals", formatted, {"formt": 2.0}, concurrency=1, say=lines.append)
    assert lines == [
        "no trajectory has the component 'formt', so its weight is not used -> --weight format=... (not formt)"
    ]


def test_a_weight_may_be_for_a_function_of_trl_that_never_applies(lab, collect, rewards):
    collect(2, 2)

    def first(completions, **kwargs):
        return [1.0 for _ in completions]

    def never(completions, **kwargs):
        return [None for _ in completions]

    lab.reward("capitals", [first, never], {"never": 3.0}, say=lambda _: None)
    assert rewards() == [1.0] * 4
    with pytest.raises(InputError, match="a weight is given for 'nevr'"):
        lab.reward("capitals", [first, never], {"nevr": 3.0}, say=lambda _: None)


def test_an_interrupt_keeps_what_is_scored_also_where_a_weight_has_no_component_yet(lab, collect, rewards):
    collect(2, 2)

    def interrupted(trajectory):
        if trajectory.name.endswith("1/1"):
            raise KeyboardInterrupt
        return {"format": 1.0}

    with pytest.raises(KeyboardInterrupt):
        lab.reward("capitals", interrupted, {"formats": 2.0}, concurrency=1)
    assert rewards() == [1.0] * 3 + [None]
