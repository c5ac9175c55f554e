"""Sampling plan: the rollouts that one call samples, by prompts or by a program.

`plan_chat`, `plan_program`, `plan_again`, `plan_continuation` and `plan_resume` each return a `SamplingRun`, which
`sampling.run.sample` plays. Nothing is sent or stored before that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.environments.protocol import Source
from rolloutlab.environments.source import source_or_none
from rolloutlab.errors import InputError, NotFoundError
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.code_digest import describe_parts
from rolloutlab.sampling.config import SamplingConfig, make_config, new_seed
from rolloutlab.sampling.conversation import tools_beside
from rolloutlab.sampling.dataset import ReadRows, check_limit, describe_left_out, kinds_of, rows_of
from rolloutlab.sampling.episodes import Episodes
from rolloutlab.sampling.options import ChatOptions, TurnOptions
from rolloutlab.sampling.programs.program import (
    Program,
    check_captured,
    check_no_program,
    resume_hint,
)
from rolloutlab.sampling.prompt import Row, as_messages, fill_turn, turns_of
from rolloutlab.sampling.rollout import (
    Rollout,
    continued_rollouts,
    missing_rollouts,
    new_rollouts,
    request_of,
    with_next_prompt,
)
from rolloutlab.sampling.split import first_ranges, ranges_of
from rolloutlab.sampling.template import Prompt, PromptTemplate, read_template, template_before, template_of
from rolloutlab.sampling.tools import Tools, tools_in
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import CollectionSummary, Group, NewGroup, StoredCollection

_PLANNED = ("model", "n", "temperature", "top_p", "max_tokens", "stop", "seed", "max_turns", "env_timeout")
"""Options that a plan stores as they are given."""
_INHERITED = ("temperature", "top_p", "max_tokens", "stop", "max_turns", "types", "parts")
"""Fields of a plan that its continuation inherits: settings of the requests, and facts about the rows."""
_FIXED = ("temperature", "top_p", "max_tokens")
"""Options that override the ones in a program's own requests."""
OF_PROGRAMS = ("model", "n", "seed", "timeout", *_FIXED)
"""Options that the plan of a program stores."""


@dataclass(frozen=True)
class SamplingRun:
    """The rollouts that one call samples, and the generation that they belong to.

    name: the collection.
    plan: its settings.
    groups: new or stored groups. `Rollout.place` is an index into them.
    rollouts: those to sample.
    tools: the functions that the policy may call.
    begun: the stored generation that the rollouts are added to; None for a new one.
    copies: conversations of an older generation, stored in the new one together with its first answers.
    notes: lines about the prompts.
    source: makes the environments, if there are any.
    program: the program that plays each rollout; None if prompts are sent.
    """

    name: str
    plan: SamplingConfig
    groups: Sequence[NewGroup | Group]
    rollouts: Sequence[Rollout]
    tools: Tools = field(default_factory=Tools)
    begun: CollectionSummary | None = None
    copies: Sequence[Rollout] = ()
    notes: Sequence[str] = ()
    source: Source | None = None
    program: Program | None = None

    def episodes(self) -> Episodes | None:
        """Make the environments of the conversations, if there are any."""
        return Episodes(self.source, self.plan, self.groups, self.tools) if self.source else None

    def first_request(self) -> ChatRequest | None:
        """Make the request that would be sent first; None if nothing is left to sample."""
        if not self.rollouts:
            return None
        rollout, group = self.rollouts[0], self.groups[self.rollouts[0].place]
        return request_of(with_next_prompt(rollout, group), group, self.plan)

    async def first_request_in_episode(self) -> ChatRequest | None:
        """Make the request that would be sent first with an environment; None if nothing is left to sample.

        One instance of the environment is started for it, and closed again.

        Raises:
            EpisodeError: the environment cannot begin.
        """
        episodes = self.episodes()
        assert episodes, "it has an environment"
        try:
            for ready in [await episodes.prepare_next(rollout) for rollout in self.rollouts[:1]]:
                episodes.take_held_back(any_answer=not ready.pending and bool(ready.items))
                return request_of(ready, self.groups[ready.place], self.plan)
            return None
        finally:
            await episodes.close_all()


def plan_chat(
    lab: Lab, name: str, prompt: Prompt, model: str, given: ChatOptions, tools: Tools, read: ReadRows = rows_of
) -> SamplingRun:
    """Plan what a chat samples: the prompt or, if that is empty, the prompts of the collection again.

    Args:
        lab: the store.
        name: the collection.
        prompt: empty for the prompts of the collection.
        model: the model to sample if `given` has none.
        given: the options of the call.
        tools: `given["tools"]`, resolved.
        read: reads the rows.

    Raises:
        InputError: the prompt, a variable or a setting is wrong.
    """
    over, limit, variables = given.get("over"), given.get("limit"), given.get("variables") or {}
    source, system, column = source_or_none(given.get("env")), given.get("system"), given.get("prompt_column")
    settings: dict[str, Any] = {"model": model} | {key: value for key, value in given.items() if key in _PLANNED}
    is_empty = isinstance(prompt, str) and not prompt.strip()
    if is_empty and not (source or system or column) and (stored := _find_newest(lab, name)):
        rows = over if over is None else read(over, limit)
        model, n = settings.pop("model"), settings.pop("n", None)
        settings = {"seed": new_seed()} | settings
        check_limit(limit)
        return plan_again(
            lab, stored.label, stored.name, model, rows, variables, n, tools, settings=settings, limit=limit
        )
    return plan_new(name, prompt, over, system, variables, settings, tools, limit, column, source, read)


def _find_newest(lab: Lab, name: str) -> StoredCollection | None:
    """Find the generation that a name means; None if there is none."""
    try:
        return lab.find(name)
    except NotFoundError:
        return None


def plan_new(
    name: str,
    prompt: Prompt,
    over: Any,
    system: str | None,
    variables: Mapping[str, Any],
    settings: Mapping[str, Any],
    tools: Tools,
    limit: int | None = None,
    column: str | None = None,
    source: Source | None = None,
    read: ReadRows = rows_of,
) -> SamplingRun:
    """Plan a new collection: one group per row, its trajectories from the prompt on.

    Args:
        name: the collection.
        prompt: as of `Session.chat`.
        over: rows, as `over` of `Session.chat`. None for the rows of `source`, or else for one empty row.
        system: a system message before the prompt.
        variables: values for `{{x}}` if a row has no column x.
        settings: fields of `SamplingConfig`.
        tools: the functions that the policy may call.
        limit: the most rows.
        column: the column that holds the prompt.
        source: makes environments, whose observations follow the prompt. It may have rows of its own.
        read: reads the rows.

    Raises:
        InputError: the prompt, a variable or a setting is wrong.
    """
    Lab.check_name(name)
    if source:
        template = template_before(prompt, system, column)
        settings = {**settings, "seed": seed if (seed := settings.get("seed")) is not None else new_seed()}
        over = _rows_of_source(source, limit, settings["seed"]) if over is None else over
    else:
        template = template_of(prompt, system, column)
    rows = read(over, limit)
    groups = [template.make_group(row, variables) for row in rows]
    of_prompt = {"template": template.to_store(), "prompt_column": template.column, "tools": tools.schemas}
    own = {"env": source.name, "code": describe_parts(source, "env")} if source else {}
    plan = make_config({**settings, **of_prompt, **_settings_of(rows), **own})
    notes = [*tools.notes, *describe_left_out(rows), *_unsent_notes(template, rows, tools)]
    return _make_run(name, plan, groups, tools, notes, source)


def _rows_of_source(source: Source, limit: int | None, seed: Any) -> Any:
    """Ask a source for its rows; None if it has none."""
    if not isinstance(seed, int):
        raise InputError(f"seed: {seed!r} is not an integer", hint="%%chat? shows the options")
    return source.rows(limit, seed)


def plan_program(
    name: str,
    program: Program,
    over: Any,
    settings: Mapping[str, Any],
    limit: int | None = None,
    read: ReadRows = rows_of,
) -> SamplingRun:
    """Plan a new collection of a program's rollouts: one group per row.

    A group has no prompt until its program has sent one.

    Args:
        name: the collection.
        program: plays each rollout.
        over: rows, as of `Session.rollouts`; None for one empty row.
        settings: fields of `SamplingConfig`. Those that do not apply to a program are ignored.
        limit: the most rows.
        read: reads the rows.

    Raises:
        InputError: a setting or the rows are wrong.
    """
    Lab.check_name(name)
    rows = read(over, limit)
    fixed = {key: settings[key] for key in _FIXED if settings.get(key) is not None}
    own = {"program": program.name, "fixed": fixed, "code": describe_parts(program.solve, "program")}
    given = {key: settings[key] for key in (*OF_PROGRAMS, "checkpoint") if key in settings}
    groups = [NewGroup((), row) for row in rows]
    plan = make_config({**given, **_settings_of(rows), **own})
    return _make_run(name, plan, groups, Tools(), describe_left_out(rows), program=program)


def plan_sessions(lab: Lab, label: str, program: Program, timeout: float) -> SamplingRun:
    """Plan a run of a program, the same as before or another one, whose sessions are added to a collection.

    Raises:
        NotFoundError: no such collection. InputError: it holds no sessions.
    """
    summary = lab.collection(label)
    if not summary.plan.get("sessions"):
        raise InputError(f"{label} holds no sessions of a program", hint="a new name, without resume")
    plan = make_config({**summary.plan, "timeout": timeout})
    return SamplingRun(summary.name, plan, (), (), begun=summary, program=program)


def check_environment(label: str, used: str | None, source: Source | None) -> None:
    """Raise InputError unless `source` has the name of the environment that a collection was sampled with."""
    if used != (source.name if source else None):
        how = f"with the environment {used}" if used else "without an environment"
        raise InputError(f"{label} was sampled {how}", hint=f"--env {used}" if used else "leave --env out")


def check_newest_environment(lab: Lab, name: str, source: Source | None) -> None:
    """Do what `check_environment` does for the newest generation of a collection, if there is one."""
    for newest in [each for each in lab.collections() if each.name == name][:1]:
        check_environment(newest.label, newest.plan.get("env"), source)


def _settings_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what a collection stores about its rows: types of columns and parts of a split."""
    return {"types": kinds_of(rows), "parts": ranges_of(rows)}


def _unsent_notes(template: PromptTemplate, rows: Sequence[Row], tools: Tools) -> list[str]:
    """Return lines about what the rows have and is not sent: tools, and messages of a conversation in a column."""
    notes = []
    described = [bool(tools_in(row, template.column)) for row in rows if tools_beside(row)]
    if template.column and (unread := described.count(False)):
        notes.append(f"the tools of {count(unread, 'row')} do not describe functions and are not sent")
    elif not template.column and not tools.schemas and any(described):
        what = f"tools of {count(sum(described), 'row')} are not sent"
        notes.append(f"{what} -> --prompt-column COLUMN sends them with the conversation in that column")
    texts, answered = sum(map(template.has_json, rows)), sum(map(template.has_answer, rows))
    value = f"row[{template.column!r}]"
    if texts:
        what = f"{count(texts, 'text')} of {template.column} read as JSON of messages"
        notes.append(f"{what} -> lambda row: {value}, as the prompt, sends the text")
    if answered:
        value = f"json.loads({value})" if texts else value
        conversations = f"{count(answered, 'conversation')} of {template.column}"
        what = f"the last answer of {conversations} is not sent, as the policy gives its own"
        notes.append(f"{what} -> {value}[-1] in a reward function has it")
    if begun := sum(map(template.begins_with_answer, rows)):
        what = f"{count(begun, 'conversation')} of {template.column} beginning with the model"
        notes.append(f"{what} -> lambda row: row[{template.column!r}][1:], as the prompt, leaves its message out")
    return notes


def plan_again(
    lab: Lab,
    label: str,
    name: str,
    model: str,
    over: Any,
    variables: Mapping[str, Any],
    n: int | None,
    tools: Tools,
    prompt: Prompt | None = None,
    source: Source | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
    program: Program | None = None,
    limit: int | None = None,
) -> SamplingRun:
    """Plan to sample the prompts of a collection again, with the same seeds, from another model or with other rows.

    Args:
        lab: the store.
        label: the collection that was sampled.
        name: the collection to sample into.
        model: the model to sample.
        over: rows to fill the template with; None for the same prompts.
        variables: values for `{{x}}` if a row has no column x.
        n: trajectories per prompt; None for as many as before.
        tools: the tools that the collection was sampled with.
        prompt: a function that makes the prompts of `over`. Needed if a function made those of the collection.
        source: makes the environments, if the collection was sampled with some.
        settings: fields of `SamplingConfig` that replace those of the collection.
        program: the program of the collection, if it has one. Then no tools, no prompt and no source may be given.
        limit: the most of the same prompts; None for all. It does not limit `over`.

    Raises:
        NotFoundError: no such collection.
        InputError: it was not sampled from prompts in this lab; or as of `plan_new`.
    """
    summary = lab.collection(label)
    plan = SamplingConfig.model_validate(summary.plan) if summary.plan else None
    if plan and program:
        _check_prompt_options(label, program, prompt=prompt, tools=tools.schemas, env=source)
        rows = [group.row for group in lab.groups(summary)] if over is None else over
        stored = {"n": plan.n if n is None else n, "seed": plan.seed, "timeout": plan.timeout, **plan.fixed}
        return plan_program(name, program, rows, {**stored, "model": model, **settings})
    plan = _check_has_prompts(label, plan)
    old = lab.groups(summary)
    tools.check(label, _tool_names(summary, old))
    check_environment(label, plan.env, source)
    changed: dict[str, Any] = {"model": model, "step": None, "tools": tools.schemas, "topped_up": {}}
    changed |= {"code": _describe_code(source, tools), **({} if n is None else {"n": n}), **settings}
    notes = list(tools.notes)
    if over is None:
        groups = [NewGroup(g.prompt, g.row, g.script) for g in old[:limit]]
        changed |= {"parts": first_ranges(plan.parts, len(groups))}
    else:
        rows, template = rows_of(over), _template_of_other_rows(label, plan, prompt)
        groups = [template.make_group(row, variables) for row in rows]
        notes += describe_left_out(rows)
        changed |= {**_settings_of(rows), "template": template.to_store(), "prompt_column": template.column}
    return _make_run(name, make_config(plan.model_dump(exclude_defaults=True) | changed), groups, tools, notes, source)


def _check_has_prompts(label: str, plan: SamplingConfig | None) -> SamplingConfig:
    """Return the plan; raise InputError unless it has prompts that can be sampled again."""
    if plan:
        check_no_program(label, plan)
    if plan is None or plan.continues:
        hint = f"%compare {plan.continues}" if plan and plan.continues else "%%chat NAME or lab.rollouts, then %compare"
        raise InputError(f"{label} was not sampled from prompts that could be sampled again", hint=hint)
    return plan


def _describe_code(source: Source | None, tools: Tools) -> dict[str, str] | None:
    """Return digests of the code of an environment and of tools; None if there is none."""
    code = {**(describe_parts(source, "env") if source else {})}
    for tool, function in tools.functions.items():
        code |= describe_parts(function, f"tool {tool}")
    return code or None


def _check_prompt_options(label: str, program: Program, **options: Any) -> None:
    """Raise InputError if options are given that only collections of prompts have."""
    if wrong := [option for option, value in options.items() if value]:
        message = f"{label} was captured from the program {program.name}, which takes no {' and no '.join(wrong)}"
        raise InputError(message, hint=f"lab.compare({label!r}, over=rows)")


def _template_of_other_rows(label: str, plan: SamplingConfig, prompt: Prompt | None) -> PromptTemplate:
    """Return the template for the prompts of other rows: the given one, or that of the collection."""
    if prompt is not None:
        return template_of(prompt)
    if not plan.template:
        hint = f"lab.compare({label!r}, over=rows, prompt=FUNCTION)"
        raise InputError(f"a function made the prompts of {label}: other rows need it, too", hint=hint)
    return read_template(plan.template, plan.prompt_column)


def _tool_names(summary: CollectionSummary, groups: Sequence[Group]) -> list[str]:
    """List the names of the tools that a collection was sampled with; of an imported one, those of its trajectories."""
    # tools of an environment or of a prompt column are not functions of the notebook, so they are not checked
    own = summary.plan.get("env") or summary.plan.get("prompt_column")
    planned = summary.plan.get("tools", [] if own else None)
    if planned is None:
        planned = next((t.extra["tools"] for g in groups for t in g.trajectories if t.extra.get("tools")), [])
    return [str(tool["function"]["name"]) for tool in planned]


def _make_run(
    name: str,
    plan: SamplingConfig,
    groups: Sequence[NewGroup],
    tools: Tools,
    notes: Sequence[str] = (),
    source: Source | None = None,
    program: Program | None = None,
) -> SamplingRun:
    """Make the run of a new generation: `plan.n` rollouts of each group."""
    plan = plan.model_copy(update={"total": plan.n * len(groups)})
    rollouts = [r for i, g in enumerate(groups) for r in new_rollouts(i, range(plan.n), g, plan)]
    return SamplingRun(name, plan, groups, rollouts, tools, notes=notes, source=source, program=program)


def plan_continuation(
    lab: Lab,
    label: str,
    prompt: Prompt,
    model: str,
    given: TurnOptions,
    tools: Tools,
) -> SamplingRun:
    """Plan a new generation that continues every conversation of an older one.

    Settings that are not in `given` are those of the older generation.

    Args:
        lab: the store.
        label: the older generation.
        prompt: the next messages.
        model: the model to sample if `given` has none.
        given: the options of the call.
        tools: `given["tools"]`, resolved.

    Raises:
        NotFoundError: no such collection.
        InputError: it holds no trajectory, or had other tools; or as of `plan_new`.
    """
    summary = lab.collection(label)
    if summary.plan and not summary.plan.get("sessions"):  # sessions, like imported conversations, can go on
        check_no_program(label, SamplingConfig.model_validate(summary.plan))
    turns = turns_of(as_messages(prompt))
    old = lab.groups(summary)
    tools.check(label, _tool_names(summary, old))
    groups = [
        NewGroup(g.prompt, g.row, [fill_turn(turn, g.row, given.get("variables") or {}) for turn in turns]) for g in old
    ]
    rollouts = [r for i, group in enumerate(old) for r in continued_rollouts(i, group, len(turns), tools.schemas)]
    if not rollouts:
        raise InputError(f"{label} holds no conversation to go on with", hint=f"%%chat {label} --resume")
    stored = {name: summary.plan[name] for name in _INHERITED if name in summary.plan}
    settings = {"model": model} | {key: value for key, value in given.items() if key in _PLANNED and value != ()}
    changed = {"total": summary.missing + len(rollouts), "continues": f"{summary.name}:{summary.generation}"}
    plan = make_config({**stored, **settings, "tools": tools.schemas, **changed})
    return SamplingRun(summary.name, plan, groups, rollouts, tools, copies=rollouts)


def plan_resume(
    lab: Lab,
    label: str,
    tools: Tools,
    source: Source | None = None,
    sizes: Mapping[int, int] = MappingProxyType({}),
    program: Program | None = None,
    timeout: float | None = None,
) -> SamplingRun:
    """Plan the trajectories that a generation lacks.

    Args:
        lab: the store.
        label: the generation.
        tools: the tools that it was sampled with.
        source: makes the environments, if it was sampled with some.
        sizes: the new number of trajectories of each group that grows, by its place.
        program: the program of the generation, if it has one.
        timeout: seconds for each rollout of the program. None for the time-out of the generation.

    Raises:
        NotFoundError: no such collection.
        InputError: the generation was not sampled in this lab, or had other tools, or another environment or program.
    """
    summary = lab.collection(label)
    if program:
        check_captured(summary)
    elif not summary.plan:
        raise InputError(f"{label} was not sampled here, so there is nothing to resume", hint=f"%%chat {summary.name}")
    plan = SamplingConfig.model_validate(summary.plan)
    if program is None:
        check_no_program(label, plan)
    elif program.name != plan.program:
        message = f"{label} was captured from {plan.program}, not {program.name}"
        raise InputError(message, hint=resume_hint(label, str(plan.program), program.typed))
    if timeout is not None:
        plan = make_config({**summary.plan, "timeout": timeout})
    groups = lab.groups(summary, unfinished=True)
    if program is None:
        tools.check(label, _tool_names(summary, groups))
        check_environment(label, plan.env, source)
    plan = plan.grow(sizes)
    rollouts = [r for i, group in enumerate(groups) for r in missing_rollouts(i, group, plan)]
    if plan.continues and summary.missing and not rollouts:
        message = f"{count(summary.missing, 'answer')} missing in {label} had no conversation to go on with"
        raise InputError(f"{message}: {plan.continues} lacked it", hint=plan.cell_of_continued())
    return SamplingRun(summary.name, plan, groups, rollouts, tools, begun=summary, source=source, program=program)
