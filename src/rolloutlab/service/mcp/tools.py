"""The MCP tools: names, descriptions, JSON schemas of their arguments, required scopes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rolloutlab.errors import InputError
from rolloutlab.search.dictionary.schema import json_schema
from rolloutlab.service.mcp.lab import LabTools, Plain
from rolloutlab.service.oauth.metadata import READ, WRITE

TOKEN_INFO = "rolloutlab.access"
"""Key of the ASGI scope under which the SDK's handlers find the caller."""
MAX_BYTES = 4 * 1024 * 1024
"""The largest size of a request, in bytes."""


@dataclass(frozen=True)
class Tool:
    """An MCP tool. arguments: the pydantic model of its arguments; None if they are a search dictionary."""

    name: str
    arguments: type[BaseModel] | None
    run: Callable[[LabTools, Any, str], Plain]
    """The implementation. It gets the lab, valid arguments and the caller's name, and returns a JSON-ready result."""
    description: str
    scope: str = READ

    @property
    def writes(self) -> bool:
        """Whether it changes the lab."""
        return self.scope == WRITE

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON schema of the arguments. For a search it has no `if` and `not`, which some model APIs refuse."""
        if self.arguments:
            return self.arguments.model_json_schema()
        unsupported = {"if", "then", "not", "$schema", "title"}
        return {name: part for name, part in json_schema().items() if name not in unsupported}

    def call(self, lab: LabTools, arguments: Mapping[str, Any], caller: str) -> Plain:
        """Run the tool with a caller's arguments. Raises InputError if they are invalid, and the errors of the lab."""
        try:
            valid = self.arguments.model_validate(arguments) if self.arguments else arguments
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(str(each) for each in first["loc"])
            hint = f"the arguments are {', '.join(self.arguments.model_fields) if self.arguments else ''}"
            raise InputError(f"{path}: {first['msg']}", hint=hint) from error
        return self.run(lab, valid, caller)


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _GetTrajectory(_Arguments):
    id: str = Field(description="the trajectory, as letters:1/0/3: collection, group, place in the group")


class _ListGroups(_Arguments):
    collection: str | None = Field(None, description="a collection's name; without it the collections are listed")
    limit: int = Field(20, ge=1, le=100, description="how many")
    offset: int = Field(0, ge=0, description="how many to skip")
    comparisons: bool = Field(False, description="also list the collections of comparisons")


class _AddTrajectory(_Arguments):
    into: str = Field(
        description="an existing group, as letters:1/0; or a collection's name, which begins a new generation of it"
    )
    messages: list[dict[str, Any]] = Field(
        min_length=2,
        description="the whole conversation as chat messages; the prompt ends at the first assistant message",
    )
    model: str = Field("", description="what wrote the answers")
    reward: Annotated[float, Field(allow_inf_nan=False)] | None = Field(None, description="how good it is, if known")
    note: str = Field("", max_length=500, description="why that reward")


class _SetReward(_GetTrajectory):
    reward: float = Field(allow_inf_nan=False, description="how good it is; higher is better")
    note: str = Field("", max_length=500, description="why")


def _list(lab: LabTools, page: _ListGroups, _caller: str) -> Plain:
    if page.collection is None:
        return lab.collections(page.limit, page.offset, everything=page.comparisons)
    return lab.groups(page.collection, page.limit, page.offset)


def _add(lab: LabTools, new: _AddTrajectory, caller: str) -> Plain:
    return lab.add(new.into, new.messages, new.model or caller, new.reward, new.note, caller)


_TOOLS = (
    Tool("search_trajectories", None, lambda lab, dictionary, _caller: lab.search(dictionary),
         "Search every conversation of this lab by metadata, words and meaning. Answers with id, score (lower is"
         ' better), a passage and metadata. Examples: {"rank": {"$knn": {"query": "answers in the wrong language"}},'
         ' "limit": 5}; {"where": {"$and": [{"reward": {"$lt": 0.5}}, {"#document": {"$contains": "Paris"}}]}}.'
         " Metadata: collection, group, model, step, reward, source, job, finish_reason, turns, tokens, tools, time,"
         " reasoning (its length), row.COLUMN. What comparisons of checkpoints sampled is left out, unless a condition"
         " names its collection. The text of reasoning is reasoning_text, for $contains and $regex."),
    Tool("get_trajectory", _GetTrajectory, lambda lab, trajectory, _caller: lab.trajectory(trajectory.id),
         "One whole conversation with its reward: messages, model, checkpoint, the row it was sampled for."),
    Tool("list_groups", _ListGroups, _list,
         "The collections of this lab, newest first; or, with a collection, its groups: each a prompt and the"
         " rewards of its answers."),
    Tool("add_trajectory", _AddTrajectory, _add,
         "Store a conversation in this lab, with a reward if it has one. Answers with its id and its group, into"
         " which further answers to the same prompt can be put.", WRITE),
    Tool("set_reward", _SetReward, lambda lab, new, caller: lab.set_reward(new.id, new.reward, new.note, caller),
         "Set the reward of one conversation, unless its owner gave it one by hand. It is logged, and the owner can"
         " take it back.", WRITE),
)  # fmt: skip
TOOLS = {tool.name: tool for tool in _TOOLS}
