"""What `%%chat` asks of a service, and how its answers reach the lab as they arrive."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from rolloutlab.errors import InputError
from rolloutlab.prompt import fill
from rolloutlab.store.lab import Lab
from rolloutlab.store.records import Arrival, Group, NewGroup
from rolloutlab.wire.chat import ChatCompletion, ChatRequest

CONCURRENT = 64
"""Requests under way at once; the service batches what is."""


@dataclass(frozen=True)
class Prompt:
    """One group to be: the row of prompts it comes from, and the request that samples it."""

    row: Mapping[str, Any]
    request: ChatRequest


def rows_of(over: Any) -> list[dict[str, Any]]:
    """Rows of a DataFrame, a list of mappings, or a list of values (as `item`); None is one empty row.

    Raises:
        InputError: there are no rows, or they are of another kind.
    """
    if over is None:
        return [{}]
    if hasattr(over, "to_dict") and hasattr(over, "columns"):
        rows = over.to_dict(orient="records")
    elif isinstance(over, Sequence) and not isinstance(over, str):
        rows = [dict(row) if isinstance(row, Mapping) else {"item": row} for row in over]
    else:
        raise InputError(f"cannot sample over a {type(over).__name__}", hint="--over DATAFRAME, or a list of dicts")
    if not rows:
        raise InputError("there are no rows to sample over", hint="--over a DataFrame with at least one row")
    return [{str(column): _plain(value) for column, value in row.items()} for row in rows]


def make_prompt(
    messages: Sequence[Mapping[str, Any]],
    row: Mapping[str, Any],
    variables: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Prompt:
    """The request for one row, with every `{{name}}` filled in.

    Raises:
        InputError: a name stands for nothing, or a setting is out of range.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        request = ChatRequest(messages=fill(messages, row, variables), logprobs=True, **given)
        request.to_json()
    except PydanticSerializationError as error:
        raise InputError(
            "the prompt holds half of a character", hint="text.encode('utf-8', 'replace').decode()"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"{first['loc'][0]}: {first['msg']}, not {first['input']!r}", hint="%%chat? shows the options"
        ) from error
    return Prompt(row, request)


class Arrivals:
    """Takes completions into the lab the moment they are there; the collection comes to be with the first."""

    def __init__(self, lab: Lab, name: str, prompts: Sequence[Prompt]) -> None:
        lab.check_name(name)
        self._lab = lab
        self._name = name
        self._prompts = prompts
        self._groups: list[Group] = []
        self.done = 0
        self.label = name

    def take(self, place: int, completion: ChatCompletion) -> None:
        """Store the choices of the prompt at `place`."""
        if not self._groups:
            collection = self._lab.open_collection(self._name)
            self._groups = self._lab.add_groups(
                collection, [NewGroup(p.request.messages, p.row) for p in self._prompts]
            )
            self.label = f"{collection.name}:{collection.generation}"
        request = self._prompts[place].request
        self._lab.put(
            self._groups[place],
            [Arrival(position, [choice]) for position, choice in enumerate(completion.choices)],
            model=request.model,
            step=_step(completion),
            sampling={"temperature": request.temperature, "top_p": request.top_p, "seed": request.seed},
        )
        self.done += len(completion.choices)


async def sample_all(
    prompts: Sequence[Prompt],
    complete: Callable[[ChatRequest], Awaitable[ChatCompletion]],
    arrived: Callable[[int, ChatCompletion], None],
) -> None:
    """Send every request, some at a time; `arrived` gets each answer with its place the moment it is there.

    The first error cancels what is still under way and is raised; what had arrived stays.
    """
    free = asyncio.Semaphore(CONCURRENT)

    async def one(place: int, prompt: Prompt) -> None:
        async with free:
            completion = await complete(prompt.request)
        arrived(place, completion)

    tasks = [asyncio.create_task(one(place, prompt)) for place, prompt in enumerate(prompts)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _plain(value: Any) -> Any:
    """NumPy's scalars as Python's, and what pandas calls missing as None, so that a row can be kept as JSON."""
    plain = value.item() if hasattr(value, "item") and not hasattr(value, "__len__") else value
    missing = (isinstance(plain, float) and not math.isfinite(plain)) or type(plain).__name__ in {"NaTType", "NAType"}
    return None if missing else plain


def _step(completion: ChatCompletion) -> int | None:
    """The checkpoint that was sampled, where the service says so on its choices."""
    steps = {(choice.model_extra or {}).get("policy_version") for choice in completion.choices}
    step = steps.pop() if len(steps) == 1 else None
    return step if isinstance(step, int) else None
