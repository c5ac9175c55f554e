"""Differences in sampling and scoring that make the mean rewards of two collections incomparable."""

from collections.abc import Iterator

from rolloutlab.sampling.config import SamplingConfig, read_config
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import StoredCollection
from rolloutlab.store.scorings import StoredScoring

_SETTINGS = ("max_tokens", "temperature", "top_p")


def find_differences(lab: Lab, one: StoredCollection, other: StoredCollection, *, scored: bool = True) -> list[str]:
    """List what differs in `one`, such as `max_tokens=3` or `another prompt`. Rows, seed and checkpoint may differ.

    scored: whether both have rewards. Then the functions that gave them are compared too.
    """
    plan, other_plan = read_config(one.plan), read_config(other.plan)
    if plan is None or other_plan is None:
        return ["unknown settings"]
    scorings = [_source_of_rewards(lab.scorings.last(each)) for each in (one, other)]
    return [
        *_compare_settings(plan, other_plan),
        *(["another reward"] if scored and scorings[0] != scorings[1] else []),
    ]


def _compare_settings(one: SamplingConfig, other: SamplingConfig) -> Iterator[str]:
    prompts = [(each.template, each.prompt_column, not each.continues) for each in (one, other)]
    if prompts[0] != prompts[1]:
        yield "another prompt"
    for name in _SETTINGS:
        if (value := getattr(one, name)) != getattr(other, name):
            yield f"no {name}" if value is None else f"{name}={value:g}"
    if one.stop != other.stop:
        yield "another stop"
    yield from _compare_surroundings(one, other)
    if bool(one.topped_up) != bool(other.topped_up):
        yield "groups topped up" if one.topped_up else "no groups topped up"


def _compare_surroundings(one: SamplingConfig, other: SamplingConfig) -> Iterator[str]:
    """Compare tools, environment and program."""
    if one.tools != other.tools:
        names, others = ([tool.function.name for tool in each.tools] for each in (one, other))
        yield "other tools" if names == others else f"tools={','.join(names)}" if names else "no tools"
    if (one.tools or one.env) and one.max_turns != other.max_turns:
        yield f"max_turns={one.max_turns}"
    for name in ("env", "program"):
        value = getattr(one, name)
        if value != getattr(other, name):
            yield f"{name}={value}" if value else f"no {name}"
        elif value and _is_changed(one, other):
            yield f"another version of {value}"
    if one.fixed != other.fixed:
        yield "other settings of the program"


def _is_changed(one: SamplingConfig, other: SamplingConfig) -> bool:
    """Whether the code of two plans differs, apart from the parts that change while it runs."""
    if not isinstance(one.code, dict) or not isinstance(other.code, dict):
        return one.code != other.code
    varying = {*one.state, *other.state}
    return any(
        one.code.get(part) != other.code.get(part)
        for part in one.code.keys() | other.code.keys()
        if part not in varying
    )


def _source_of_rewards(scoring: StoredScoring | None) -> object:
    """Return what identifies the functions that gave the rewards; None if no function did."""
    if scoring is None:
        return None
    return scoring.source, list(scoring.names), scoring.code, scoring.style, scoring.options.get("weights")
