"""OpenAI graders: their JSON as a reward function. https://developers.openai.com/api/docs/guides/graders

The guide leaves open what to do if a completion lacks what a template names, such as `sample.output_json.x` of a text
that is not JSON. Here the grader gives its lowest score, because the completion is wrong and not the grader. A column
that a row lacks is an error.
"""

import json
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, NamedTuple

from rolloutlab.errors import InputError, RewardError
from rolloutlab.fsutil import path_of
from rolloutlab.integrations.openai_graders.formula import Formula
from rolloutlab.integrations.openai_graders.models import label_model, score_model
from rolloutlab.integrations.openai_graders.similarity import similarity
from rolloutlab.integrations.openai_graders.templates import MissingPartError, Template, sample_of
from rolloutlab.scoring import sandbox
from rolloutlab.scoring.ask import Ask
from rolloutlab.scoring.calls import Arguments, RewardCall
from rolloutlab.scoring.foreign import ForeignReward
from rolloutlab.scoring.signatures import with_parts
from rolloutlab.store.models import Group, StoredTrajectory
from rolloutlab.store.rewards import finite

_FIELDS: Mapping[str, tuple[set[str], set[str]]] = {
    "string_check": ({"input", "reference", "operation"}, set()),
    "text_similarity": ({"input", "reference", "evaluation_metric"}, {"pass_threshold"}),
    "score_model": ({"input", "model"}, {"range", "pass_threshold", "sampling_params"}),
    "label_model": ({"input", "model", "labels", "passing_labels"}, {"sampling_params"}),
    "python": ({"source"}, {"image_tag", "pass_threshold"}),
    "multi": ({"graders", "calculate_output"}, {"pass_threshold"}),
}
"""Required and optional fields of each type, besides `type`, `name` and `id`."""
_OPERATIONS: Mapping[str, Callable[[str, str], bool]] = {
    "eq": lambda text, reference: text == reference,
    "ne": lambda text, reference: text != reference,
    "neq": lambda text, reference: text != reference,
    "like": lambda text, reference: reference in text,
    "ilike": lambda text, reference: reference.casefold() in text.casefold(),
}
_PYTHON_SECONDS, _PYTHON_MB = 120, 2048
_LONGEST_SOURCE = 256_000
"""The longest source, like the limits above, of OpenAI's python graders."""
_RUNNER = """\
import json, linecache, sys, types
given = json.loads(sys.stdin.buffer.read())
module = sys.modules["grader"] = types.ModuleType("grader")
linecache.cache["<grader>"] = (0, None, given["source"].splitlines(True), "<grader>")
exec(compile(given["source"], "<grader>", "exec"), module.__dict__)
grade = float(module.grade(given["sample"], given["item"]))
print("\\n" + given["mark"] + json.dumps(grade))
"""

GraderSource = Mapping[str, Any] | str | PathLike[str]
"""The JSON of a grader: as a mapping or a text, or the path of a file with it."""

Values = Mapping[str, Any]
"""`item` and `sample` of a trajectory."""


class Grader(NamedTuple):
    """A checked grader.

    grade: scores a trajectory by its values. columns: the columns of the row that it uses. lowest: its score if a
    completion lacks what a template names. threshold: the least score for which the component `passed` is 1.
    """

    grade: Callable[[StoredTrajectory, Values], Any]
    columns: Sequence[str] = ()
    lowest: float = 0.0
    threshold: float | None = None

    def score(self, trajectory: StoredTrajectory, values: Values) -> Any:
        """Score a trajectory; return a number, or a number with its parts."""
        try:
            score = self.grade(trajectory, values)
        except MissingPartError as error:
            if error.path.startswith("item"):
                raise RewardError(f"the row of {trajectory.name} has no {error.path}") from None
            score = self.lowest
        if self.threshold is None:
            return score
        parts = score if isinstance(score, Mapping) else {"reward": score}
        return {**parts, "passed": float(parts["reward"] >= self.threshold)}


def reward(grader: GraderSource, ask: Ask, model: str | None = None) -> ForeignReward:
    """Make a reward function of an OpenAI grader.

    The scores of the graders in a multi grader are components that do not count, and so is `passed` of a grader with a
    pass_threshold.

    Args:
        grader: its JSON, as a mapping, a text or the path of a file.
        ask: asks a model, for score_model and label_model.
        model: the model to ask instead of those in the JSON.

    Raises:
        InputError: it is not a grader, or its kind is not supported.
    """
    spec = read_grader(grader)
    made = _check_grader(spec, partial(_make_grader, ask=ask, model=model))

    def call(name: str, columns: Sequence[str]) -> RewardCall:
        for column in made.columns:
            if column not in columns:
                hint = (
                    ", ".join(f"{{{{item.{each}}}}}" for each in columns) or "a collection that was sampled over rows"
                )
                raise InputError(f"the grader uses item.{column}, which is not a column", hint=hint)
        return RewardCall(name, made_score, "trajectory", "OpenAI grader", False, _arguments)

    def made_score(trajectory: StoredTrajectory) -> Any:
        return made.score(trajectory, {"item": dict(trajectory.row), "sample": sample_of(trajectory)})

    made_score.__name__ = made_score.__qualname__ = str(spec.get("name") or spec["type"])
    return ForeignReward(made_score, call)


def read_grader(grader: Any) -> Mapping[str, Any]:
    """Read the JSON of a grader from a mapping, a text or a file. Raises InputError if there is none."""
    if isinstance(grader, Mapping):
        return grader
    if not isinstance(grader, str | PathLike):
        raise InputError(f"a grader is a mapping, not {type(grader).__name__}", hint='lab.grader({"type": ...})')
    try:
        text = grader.lstrip("\ufeff \n\r\t") if isinstance(grader, str) else ""
        hint = "--grader grader.json"
        spec = _parse(text if text.startswith("{") else path_of(grader, hint).read_text("utf-8-sig"))
    except OSError as error:
        raise InputError(f"{grader} cannot be read: {error.strerror}", hint="--grader grader.json") from None
    except UnicodeDecodeError:
        raise InputError(f"{grader} is not UTF-8", hint="a text file, in UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"the grader is not JSON: {error}", hint='{"type": "string_check", ...}') from None
    return read_grader(spec)


def _parse(text: str) -> Any:
    """Parse JSON. Raises ValueError also for a key that occurs twice, as two graders of one name would."""

    def values(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _check_once([key for key, _ in pairs])
        return dict(pairs)

    return json.loads(text, object_pairs_hook=values)


def _check_once(names: Sequence[str]) -> None:
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f"{twice[0]!r} is there twice")


def _arguments(members: Sequence[StoredTrajectory], _group: Group) -> Arguments:
    return Arguments((members[0],), {})


def _check_grader(spec: Any, make: Callable[[Mapping[str, Any]], Grader], inside: bool = False) -> Grader:
    kind = spec.get("type") if isinstance(spec, Mapping) else None
    if not isinstance(kind, str) or kind not in _FIELDS or (inside and kind == "multi"):
        known = ", ".join(t for t in _FIELDS if not (inside and t == "multi"))
        raise InputError(f"{kind!r} is not a type of graders", hint=known)
    required, optional = _FIELDS[kind]
    allowed = required | optional | {"type", "name", "id"}
    for field in sorted(required - spec.keys()):
        raise InputError(f"a {kind} grader needs {field!r}", hint=f'"{field}": ...')
    for field in sorted(spec.keys() - allowed):
        raise InputError(f"{field!r} is not a field of {kind} graders", hint=", ".join(sorted(allowed)))
    threshold = spec.get("pass_threshold")
    return make(spec)._replace(threshold=None if threshold is None else finite(threshold, "pass_threshold"))


def _make_grader(spec: Mapping[str, Any], *, ask: Ask, model: str | None) -> Grader:
    kind = spec["type"]
    if kind == "string_check":
        return _comparison(spec, _operation(spec["operation"]))
    if kind == "text_similarity":
        return _comparison(spec, similarity(spec["evaluation_metric"]))
    if kind == "python":
        return _python(spec)
    if kind == "multi":
        return _multi(spec, partial(_make_grader, ask=ask, model=model))
    prepared = (score_model if kind == "score_model" else label_model)({**spec, "model": model or spec["model"]}, ask)
    return Grader(*prepared)


def _operation(name: Any) -> Callable[[str, str], bool]:
    if not isinstance(name, str) or name not in _OPERATIONS:
        raise InputError(f"{name!r} is not an operation of string_check", hint="eq, ne, like, ilike")
    return _OPERATIONS[name]


def _comparison(spec: Mapping[str, Any], compare: Callable[[str, str], float]) -> Grader:
    for field in ("input", "reference"):
        if not isinstance(spec[field], str):
            raise InputError(f"{field} must be a string, not {spec[field]!r}", hint='"{{sample.output_text}}"')
    text, reference = Template(spec["input"]), Template(spec["reference"])

    def grade(_trajectory: StoredTrajectory, values: Values) -> float:
        return float(compare(text.fill(values), reference.fill(values)))

    return Grader(grade, [*text.columns, *reference.columns])


def _python(spec: Mapping[str, Any]) -> Grader:
    source = spec["source"]
    if not isinstance(source, str) or len(source) > _LONGEST_SOURCE:
        raise InputError("source must be Python with a function grade(sample, item)", hint="at most 256 kB")
    try:
        compile(source, "<grader>", "exec")
    except (SyntaxError, ValueError) as error:
        raise InputError(f"the source of the grader is not Python: {error}", hint="def grade(sample, item):") from None

    def grade(trajectory: StoredTrajectory, values: Values) -> float:
        mark = secrets.token_hex(16)
        sample = {"output_json": {}, **values["sample"]}
        given = {"source": source, "sample": sample, "item": values["item"], "mark": mark}
        ran = sandbox.python(_RUNNER, _PYTHON_SECONDS, _PYTHON_MB, json.dumps(given, default=str))
        _, marked, result = ran.stdout.rpartition(mark)
        if ran.ok and marked:
            return float(json.loads(result))
        reason = ran.limit or (ran.stderr.strip().splitlines() or ["it ended without a result"])[-1]
        line = next((x.strip() for x in reversed(ran.stderr.splitlines()) if 'File "<grader>"' in x), "")
        where = f" ({line.partition(', ')[2]})" if line else ""
        raise RewardError(f"grade() failed on {trajectory.name}: {reason}{where}", hint="return a number")

    return Grader(grade)


def _multi(spec: Mapping[str, Any], make: Callable[[Mapping[str, Any]], Grader]) -> Grader:
    """Make a grader of graders. The formula has their keys as names, or, for a list, their names."""
    inner = spec["graders"]
    if isinstance(inner, Sequence) and not isinstance(inner, str):
        names = [str(each.get("name") or "") if isinstance(each, Mapping) else "" for each in inner]
        if len(set(names)) < len(names) or "" in names:
            raise InputError(f"each grader of a list needs a name of its own, not {names}", hint='"name": "exact"')
        inner = dict(zip(names, inner, strict=True))
    if not isinstance(inner, Mapping) or not inner:
        raise InputError("graders must be an object of graders by name", hint='{"name": {"type": ...}, ...}')
    graders = {name: _check_grader(each, make, inside=True) for name, each in inner.items()}
    formula = Formula(str(spec["calculate_output"]), list(graders))

    def grade(trajectory: StoredTrajectory, values: Values) -> Any:
        scores = {name: each._replace(threshold=None).score(trajectory, values) for name, each in graders.items()}
        return with_parts(formula.value(scores), scores)

    return Grader(grade, [column for each in graders.values() for column in each.columns])
