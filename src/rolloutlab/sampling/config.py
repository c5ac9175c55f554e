"""Sampling settings of a collection, as the lab stores them."""

import secrets
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from hashlib import sha256
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from rolloutlab.api.wire.chat import ChatRequest, FunctionTool, Message, Stop
from rolloutlab.environments.episode import CALL_TIMEOUT
from rolloutlab.errors import InputError

ROLLOUT_TIMEOUT = 600.0
"""The time-out of one rollout of a program, in seconds, by default."""
_SEEDS = 2**31


def _to_list(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, tuple) else stop


def new_seed() -> int:
    """Draw a random seed."""
    return secrets.randbits(31)


class SamplingConfig(BaseModel):
    """Settings shared by every request of a collection.

    model: the name of the sampled model.
    n: trajectories per prompt.
    temperature, top_p, max_tokens, stop: as in the requests.
    seed: the group at place i is sampled with seed + i; later turns have seeds drawn from it.
    tools: descriptions of the functions that the policy may call.
    max_turns: the most consecutive answers that call tools. With `env`, the most answers of an episode.
    template: the messages before each answer, in which `{{name}}` is not filled in yet.
    total: trajectories of the whole collection.
    step: the number of the checkpoint that gave the first answer; `--resume` samples the same one.
    continues: the label of the collection whose conversations go on here.
    prompt_column: the column that holds the prompt, instead of the last message of the template.
    types: by column, the original type of its values if JSON does not have that type: dates, times and decimals.
    parts: the places of the groups of each part of a split (`train`, `held_out`), as ranges.
    env: the name of the environment that answers each turn.
    env_timeout: seconds for each call of the environment.
    program: the name of the program whose calls were captured.
    code: digests of the parts of the environment or program, by path; rewards compare only if these are equal. In labs
        of earlier versions it is one digest.
    state: paths of parts of `code` or of reward code that changed by themselves while a loop ran, such as counters and
        caches. Comparisons leave them out.
    timeout: seconds for each rollout of the program.
    fixed: settings that override the ones in the program's own requests.
    sessions: the name of the program whose sessions the collection holds.
    topped_up: the number of trajectories of each group that was topped up, by place; other groups have `n`.
    checkpoint: the unique key of the compared checkpoint, by which a later comparison finds its samples.
    """

    model_config = ConfigDict(frozen=True)

    model: str = Field(min_length=1)
    n: int = Field(default=1, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    stop: Annotated[list[Stop], BeforeValidator(_to_list), Field(max_length=4)] = []
    seed: int = Field(default_factory=new_seed, ge=-(2**63), lt=2**63)
    tools: list[FunctionTool] = []
    max_turns: int = Field(default=10, ge=1)
    template: list[list[dict[str, Any]]] = []
    total: int = 0
    step: int | None = None
    continues: str | None = None
    prompt_column: str | None = None
    types: dict[str, str] = {}
    parts: dict[str, list[tuple[int, int]]] = {}
    env: str | None = None
    env_timeout: float = Field(default=CALL_TIMEOUT, gt=0, allow_inf_nan=False)
    program: str | None = None
    code: dict[str, str] | str | None = None
    state: list[str] = []
    timeout: float = Field(default=ROLLOUT_TIMEOUT, gt=0, allow_inf_nan=False)
    fixed: dict[str, float | int] = {}
    sessions: str | None = None
    topped_up: dict[int, int] = {}
    checkpoint: str | None = None

    def request(
        self, messages: Sequence[Message], n: int, seed: int, further: Sequence[FunctionTool] = ()
    ) -> ChatRequest:
        """Make the request for `n` completions of a conversation, with logprobs.

        further: the tools that this conversation alone is offered.
        """
        tools = [*self.tools, *further]
        optional = {"max_tokens": self.max_tokens, "stop": self.stop, "tools": tools}
        return ChatRequest(
            model=self.pinned_model,
            messages=list(messages),
            n=n,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=seed,
            logprobs=True,
            **{name: value for name, value in optional.items() if value},
        )

    @property
    def pinned_model(self) -> str:
        """The name of the model with the checkpoint of the first completion, `lab/practice@3`.

        All completions of a group must come from one policy, because their rewards are compared.
        """
        pinned = self.step is not None and "/" in self.model and not {"@", ":"} & set(self.model)
        return f"{self.model}@{self.step}" if pinned else self.model

    def cell_again(self, name: str, option: str) -> str:
        """Return the line of a cell that goes on with a collection. option: `--resume` or `--top-up`.

        The line names the tools and the environment, because the lab does not store them.
        """
        names = ",".join(tool.function.name for tool in self.tools)
        sources = [*([f"--tools {names}"] if names else []), *([f"--env {self.env}"] if self.env else [])]
        return " ".join(["%%rollout" if self.program else "%%chat", name, option, *sources])

    def cell_of_continued(self) -> str:
        """Return what to type if the continued collection lacked conversations, so that this one lacks them too."""
        return f"%%chat {self.continues} --resume, then --continue"

    def size_of(self, place: int) -> int:
        """Return the number of trajectories that the group at `place` is to have."""
        return self.topped_up.get(place, self.n)

    def grow(self, sizes: Mapping[int, int]) -> "SamplingConfig":
        """Return the settings with larger groups. sizes: the new number of trajectories, by the place of the group."""
        more = sum(size - self.size_of(place) for place, size in sizes.items())
        return self.model_copy(update={"topped_up": {**self.topped_up, **sizes}, "total": self.total + more})

    def seed_of(self, place: int, position: int, turn: int) -> int:
        """Return the seed for one turn of the conversation at `position` of the group at `place`."""
        if not position and not turn:
            return self.seed + place
        drawn = sha256(f"{self.seed}/{place}/{position}/{turn}".encode()).digest()
        return int.from_bytes(drawn[:8]) % _SEEDS

    def environment_seed(self, place: int) -> int:
        """Return the seed for the environments of the group at `place`: all of them begin in the same state."""
        return (self.seed + place) % _SEEDS

    def sampling(self) -> dict[str, Any]:
        """Return the settings stored with each trajectory."""
        return {"temperature": self.temperature, "top_p": self.top_p, "seed": self.seed}


def read_config(plan: Mapping[str, Any]) -> SamplingConfig | None:
    """Read the settings in the stored plan of a collection; None if this version cannot read them."""
    try:
        return SamplingConfig.model_validate(plan)
    except ValidationError:
        return None


def make_config(settings: Mapping[str, Any]) -> SamplingConfig:
    """Make a config of settings. None stands for the default. Raise InputError for an invalid or unknown setting."""
    for name in settings.keys() - SamplingConfig.model_fields.keys():
        close = get_close_matches(name, SamplingConfig.model_fields, n=1)
        raise InputError(f"there is no setting {name!r}", hint=close[0] if close else "%%chat? shows the options")
    try:
        return SamplingConfig.model_validate({name: value for name, value in settings.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        message = f"{first['loc'][0]}: {first['input']!r} {_problem(first)}"
        raise InputError(message, hint="%%chat? shows the options") from error


_RANGES = {"temperature": "0 to 2", "top_p": "0 (exclusive) to 1"}
_PROBLEMS = {
    "greater_than_equal": "is below {ge}",
    "greater_than": "is not above {gt:g}",
    "int_parsing": "is not an integer",
    "int_from_float": "is not an integer",
    "float_parsing": "is not a number",
    "too_long": "are more than {max_length}",
    "string_too_short": "is empty",
}


def _problem(error: Mapping[str, Any]) -> str:
    name, kind = error["loc"][0], error["type"]
    if name in _RANGES and kind.startswith(("greater_than", "less_than")):
        return f"is outside {_RANGES[name]}"
    return _PROBLEMS.get(kind, f"is invalid: {error['msg']}").format(**error.get("ctx", {}))
