"""Options of the calls that sample: chats, rollouts of a program, programs with sessions, and resumed ones."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from rolloutlab.api.budget import Budget
from rolloutlab.sampling.mcp.registry import Tool
from rolloutlab.sampling.programs.program import Program, Solve


class SamplingOptions(TypedDict, total=False):
    """What every new generation can be sampled with.

    model: the model or checkpoint to sample. By default the newest checkpoint of the selected model.
    temperature: 0 to 2; 0 takes the most likely token. 1 by default. For a program it overrides the program's own
        value.
    top_p: sample from the most likely tokens that reach this probability. 1 by default. For a program, as temperature.
    max_tokens: the most tokens of one completion; by default as many as fit. For a program, as temperature.
    seed: row i is sampled with seed + i. By default a random seed, which the collection records.
    budget: the most dollars that this call may cost, by the prices in the settings. A request that could exceed it is
        not sent.
    """

    model: str | None
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    seed: int | None
    budget: Budget | float | None


class TurnOptions(SamplingOptions, total=False):
    """What the next turns of conversations can be sampled with, beside `SamplingOptions`.

    stop: up to four strings; a completion ends before the first of them.
    tools: functions that the policy may call; they run in this process, and are described by their signatures and
        docstrings. Also names of MCP servers that you gave to `lab.tools.add`, or of single tools (`docs.find`).
        Results and errors become tool messages.
    max_turns: the most consecutive completions that call tools, or the most completions of an episode. 10 by default.
    concurrency: requests at a time. 64 by default.
    variables: values for `{{x}}` where a row has no column x.
    """

    stop: str | Sequence[str] | None
    tools: Sequence[Tool]
    max_turns: int | None
    concurrency: int
    variables: Mapping[str, Any] | None


class ChatOptions(TurnOptions, total=False):
    """What new conversations can be sampled with, beside `TurnOptions`.

    n: completions per prompt. 1 by default, 8 in `loop`.
    over: a DataFrame, a list, an iterator, a dataset or a file: one group per row.
    limit: how many rows to read; by default all.
    prompt_column: the column with the prompt: a text, messages or their JSON.
    system: a system message before the prompt.
    env: a class, factory or generator function of environments, or what the call `environment` returns. Each rollout
        gets its own instance. Its observations follow the prompt, which may then be empty.
    env_timeout: seconds for each call of an environment. 60 by default.
    """

    n: int
    over: Any
    limit: int | None
    prompt_column: str | None
    system: str | None
    env: Any
    env_timeout: float | None


class RolloutOptions(SamplingOptions, total=False):
    """What the rollouts of a program can be sampled with, beside `SamplingOptions`.

    over: rows, as of `chat`. By default one empty row.
    n: rollouts per row. 1 by default.
    limit: how many rows to read; by default all.
    concurrency: rollouts at a time. 64 by default.
    timeout: seconds for one rollout. 600 by default.
    """

    over: Any
    n: int | None
    limit: int | None
    concurrency: int
    timeout: float


class SessionOptions(SamplingOptions, total=False):
    """What the sessions of a program can be sampled with, beside `SamplingOptions`.

    timeout: seconds for the whole run. 86,400 by default, a day.
    """

    timeout: float


class ResumeOptions(TypedDict, total=False):
    """What a resumed collection can be sampled with, beside its own settings.

    tools: the tools that the collection was sampled with.
    env: the environment that the collection was sampled with.
    program: the program that the collection was captured from. By default the one that this notebook ran for it.
    concurrency: requests at a time, or rollouts of a program. 64 by default.
    budget: the most dollars that this call may cost, not counting earlier calls.
    """

    tools: Sequence[Tool]
    env: Any
    program: Solve | Program | Sequence[str] | None
    concurrency: int
    budget: Budget | float | None
