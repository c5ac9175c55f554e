"""Options of the calls that sample: chats, rollouts of a program, programs with sessions, and what goes on."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from rolloutlab.api.budget import Budget
from rolloutlab.sampling.mcp.registry import Tool
from rolloutlab.sampling.programs.program import Program, Solve


class SamplingOptions(TypedDict, total=False):
    """What every new generation can be sampled with.

    model: sampled instead of the newest checkpoint of the selected model.
    temperature: 0 to 2; 0 takes the most likely token. 1 by default; of a program, in the place of its own.
    top_p: sample from the most likely tokens that reach this probability. 1 by default; of a program, as temperature.
    max_tokens: the most tokens of one completion; without, as many as fit. Of a program, as temperature.
    seed: row i is sampled with seed + i. By default it is drawn, and recorded.
    budget: dollars that this call may cost, by the prices of the settings; a request that could exceed it is not sent.
    """

    model: str | None
    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    seed: int | None
    budget: Budget | float | None


class TurnOptions(SamplingOptions, total=False):
    """What the next turns of conversations can be sampled with, beside that.

    stop: up to four strings; a completion ends before the first of them.
    tools: functions, described by signature and docstring and run in this process, and names of MCP servers of
        `lab.tools.add` or of their tools (`docs.find`). Results and errors are recorded as tool messages.
    max_turns: consecutive completions that may call tools, or completions of an episode. 10 by default.
    concurrency: requests at a time. 64 by default.
    variables: values for `{{x}}` where a row has no column x.
    """

    stop: str | Sequence[str] | None
    tools: Sequence[Tool]
    max_turns: int | None
    concurrency: int
    variables: Mapping[str, Any] | None


class ChatOptions(TurnOptions, total=False):
    """What new conversations can be sampled with, beside that.

    n: completions per prompt. 1 by default.
    over: a DataFrame, a list, an iterator, a dataset or a file: one group per row.
    limit: no more than the first rows.
    prompt_column: the column with the prompt: a text, messages or their JSON.
    system: a system message before the prompt.
    env: a class, factory or generator function of environments, or what `environment` returns: an instance plays each
        rollout, and its observations follow the prompt, which may be empty.
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

    over: rows, as of `chat`; without, one empty row.
    n: rollouts per row. 1 by default.
    limit: no more than the first rows.
    concurrency: rollouts at a time. 64 by default.
    timeout: seconds of one rollout. 600 by default.
    """

    over: Any
    n: int | None
    limit: int | None
    concurrency: int
    timeout: float


class SessionOptions(SamplingOptions, total=False):
    """What the sessions of a program can be sampled with, beside `SamplingOptions`.

    timeout: seconds of the whole run. 86,400 by default, a day.
    """

    timeout: float


class ResumeOptions(TypedDict, total=False):
    """What a collection that goes on has beside its own settings.

    tools: those that it was sampled with.
    env: that which it was sampled with.
    program: that of its rollouts; without, the one that they were captured from in this notebook.
    concurrency: requests at a time, or rollouts of a program. 64 by default.
    budget: dollars that this call may cost, whatever earlier ones did.
    """

    tools: Sequence[Tool]
    env: Any
    program: Solve | Program | Sequence[str] | None
    concurrency: int
    budget: Budget | float | None
