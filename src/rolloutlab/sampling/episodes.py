"""Episodes of rollouts: what the environment does between two answers, how episodes are resumed, and how they end."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from rolloutlab.api.wire.chat import Choice, MessageOrChoice, ToolCall, ToolMessage
from rolloutlab.api.wire.reasoning import reasoning_of
from rolloutlab.environments.episode import Conversation, Episode, EpisodeError
from rolloutlab.environments.observations import MAX_CHARS, BadStepError, EnvironmentTurn, Scalar, step_of
from rolloutlab.environments.protocol import Source, Step
from rolloutlab.environments.record import End, EpisodeRecord
from rolloutlab.errors import InputError, RefusedError
from rolloutlab.sampling.config import SamplingConfig
from rolloutlab.sampling.rollout import Rollout
from rolloutlab.sampling.tools import Tools, as_text, call_name, failure_text
from rolloutlab.store.decoded import parse_message
from rolloutlab.store.models import Group, NewGroup
from rolloutlab.store.texts import plain_text

_MAX_FAILED_STARTS = 8
"""Episodes that cannot begin after which the run ends, if no answer has come yet."""
_NO_ROOM = re.compile(r"context|too long|maximum.{0,40}(?:length|tokens)", re.IGNORECASE)
"""Matches the message of a service that refuses a request because the conversation does not fit the context."""


class Episodes:
    """Plays the environments of a run, one instance for each rollout.

    tools: further tools that the policy may call, besides those of the environment.
    """

    def __init__(self, source: Source, plan: SamplingConfig, groups: Sequence[Group | NewGroup], tools: Tools) -> None:
        self._source = source
        self._plan = plan
        self._groups = groups
        self._tools = tools
        self._open: dict[tuple[int, int], _Played] = {}
        self._failed_starts: list[tuple[Rollout, EpisodeError]] = []

    async def prepare_next(self, rollout: Rollout) -> Rollout:
        """Add the messages before the next answer. If the episode has ended, `pending` of the returned rollout is 0.

        Raises:
            SignInError: an MCP server requires a sign-in for a tool.
        """
        is_new = self._key(rollout) not in self._open
        try:
            return await (self._begin if is_new else self._respond)(rollout)
        except EpisodeError as error:
            ended = await self._fail(rollout, error)
            if is_new:
                self._failed_starts.append((ended, error))
            return ended

    async def end_refused(self, rollout: Rollout, error: RefusedError) -> Rollout:
        """End an episode whose next request the service refused."""
        if not _NO_ROOM.search(error.message):
            return await self._fail(rollout, EpisodeError(error.message))
        return await self._end(_log(rollout, f"ended: {error.message}"), "context")

    def take_ended(self, rollout: Rollout, *, any_answer: bool) -> list[Rollout]:
        """Return the episodes to store now that the episode of `rollout` has ended, and forget them.

        An episode that failed at its start, new or resumed, is held back until any episode has an answer. If none gets
        one, the environment does not work: nothing is stored, so that a resume begins these episodes again.

        Raises:
            EpisodeError: several episodes failed at their start and no answer has come; the error of the first of them.
        """
        if not any(rollout is each for each, _ in self._failed_starts):
            return [rollout]
        if any_answer:
            return self.take_held_back(any_answer=True)
        if len(self._failed_starts) >= _MAX_FAILED_STARTS:
            raise self._failed_starts[0][1]
        return []

    def take_held_back(self, *, any_answer: bool) -> list[Rollout]:
        """Return the episodes that were held back, to store them. Raise EpisodeError if no answer has come for them."""
        if self._failed_starts and not any_answer:
            raise self._failed_starts[0][1]
        rest, self._failed_starts = self._failed_starts, []
        return [rollout for rollout, _ in rest]

    async def close(self, rollout: Rollout) -> None:
        """Close the instance of a rollout that does not go on in this run."""
        if played := self._open.get(self._key(rollout)):
            await played.episode.close()
            self._open.pop(self._key(rollout), None)

    async def close_all(self) -> None:
        """Close every instance."""
        await asyncio.gather(*(played.episode.close() for played in self._open.values()))
        self._open.clear()

    def _key(self, rollout: Rollout) -> tuple[int, int]:
        return rollout.place, rollout.positions[0]

    async def _begin(self, rollout: Rollout) -> Rollout:
        """Begin an episode in a new instance of the environment.

        A stored episode is resumed: the instance gets the stored answers again. If it does not respond as before, the
        episode starts over.
        """
        begun = await self._reset(rollout)
        if not rollout.items:
            return begun
        again = await self._replay(begun, rollout.items)
        if again is not None:
            return await self._respond(replace(again, logs=rollout.logs))
        await self.close(rollout)
        log = "started over: given the stored answers, the environment did not do the same again"
        return await self._reset(_log(replace(rollout, items=(), episode=None), log))

    async def _reset(self, rollout: Rollout) -> Rollout:
        group = self._groups[rollout.place]
        episode = Episode(self._source, group.row, self._plan.environment_seed(rollout.place), self._plan.env_timeout)
        self._open[self._key(rollout)] = played = _Played(episode)
        first = await episode.begin()
        if not first and not any(message.role == "user" for message in group.prompt):
            raise EpisodeError(f"{self._source.name}.reset gave no observation", hint="return 'the first one'")
        played.offer(self._tools)
        record, tools = EpisodeRecord(self._source.name), tuple(played.own.schemas)
        return replace(rollout, items=first, episode=record, tools=tools, logs=(*rollout.logs, *episode.logs))

    async def _replay(self, begun: Rollout, items: tuple[MessageOrChoice, ...]) -> Rollout | None:
        """Give an instance the stored answers; return the rollout up to the last of them.

        None if the environment does something else than before.
        """
        again = begun
        while True:
            length = len(again.items)
            if not again.pending or length >= len(items) or not _are_same(again.items, items[:length]):
                return None
            again = replace(again, items=items[: length + 1])
            if not isinstance(items[length], Choice):
                return None
            if length + 1 == len(items):
                return again
            again = await self._respond(again)

    async def _respond(self, rollout: Rollout) -> Rollout:
        """Add the response of the environment to the last answer, and end the episode if it is over."""
        played, choice = self._open[self._key(rollout)], rollout.items[-1]
        assert isinstance(choice, Choice)
        assert rollout.episode
        logs: list[str] = []
        if choice.message.tool_calls and played.has_tools:
            turn = await played.call_tools(choice.message.tool_calls, self._tools, logs)
        elif played.episode.takes_answers:
            turn = await played.episode.step(_answer_text(choice))
        else:
            turn = EnvironmentTurn((), done=True)
        record = rollout.episode.add_turn(turn)
        after = replace(rollout, items=(*rollout.items, *turn.messages), episode=record, logs=(*rollout.logs, *logs))
        if turn.done:
            return await self._end(after, "done")
        if choice.finish_reason in {"length", "content_filter"}:
            return await self._end(after, choice.finish_reason)
        if len(record.turn_rewards) >= self._plan.max_turns:
            return await self._end(after, "max_turns")
        return after

    async def _end(self, rollout: Rollout, end: End) -> Rollout:
        """End an episode with its final reward, and close its instance. A failure in that makes it a failed one."""
        played = self._open[self._key(rollout)]
        assert rollout.episode
        try:
            final = await played.episode.final_reward(self._conversation(rollout))
        except EpisodeError as error:
            return await self._fail(rollout, error)
        if final is None and played.gave_steps:
            final = 0.0
        record = replace(rollout.episode, final_reward=final, end=end)
        if not isfinite(record.total):
            too_large = EpisodeError("the sum of its rewards is no finite number", hint="smaller rewards")
            return await self._fail(rollout, too_large)
        await self.close(rollout)
        return replace(rollout, pending=0, episode=record)

    def _conversation(self, rollout: Rollout) -> Conversation:
        """Return the prompt and the completion of an episode as TRL gives them to reward functions."""
        items = (*self._groups[rollout.place].prompt, *rollout.items)
        first = next((i for i, item in enumerate(items) if isinstance(item, Choice)), len(items))
        return [item.to_wire() for item in items[:first]], [parse_message(item) for item in items[first:]]

    async def _fail(self, rollout: Rollout, error: EpisodeError) -> Rollout:
        """End an episode with an error, and close its instance."""
        await self.close(rollout)
        record = replace(rollout.episode or EpisodeRecord(self._source.name), end=error.end)
        return _log(replace(rollout, pending=0, episode=record), f"ended: {error.with_hint}")


class _Played:
    """An episode under way, with the tools that the policy is offered in it."""

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.own = Tools()
        self.has_tools = False
        self.gave_steps = False
        """Whether a tool returned a `Step`, and with it a reward."""

    def offer(self, shared: Tools) -> None:
        """Describe the tools of the episode; raise EpisodeError if one cannot be described, or is in `shared` too."""
        try:
            self.own = Tools(self.episode.tools)
        except InputError as error:
            raise EpisodeError(f"tools: {error.message}", hint=error.hint) from error
        twice = {tool.function.name for tool in self.own.schemas} & {tool.function.name for tool in shared.schemas}
        if twice:
            raise EpisodeError(f"the environment and --tools both have {min(twice)!r}", hint="leave --tools out")
        self.has_tools = bool(self.own.schemas or shared.schemas)

    async def call_tools(self, calls: Sequence[ToolCall], shared: Tools, logs: list[str]) -> EnvironmentTurn:
        """Make the calls of an answer one after the other, because each may change the state of the environment.

        shared: the tools that are not the environment's. logs: gets a line for each failed call.
        """
        messages: list[ToolMessage] = []
        reward, done = 0.0, False
        info: dict[str, Scalar] = {}
        for call in calls:
            if done:
                messages.append(ToolMessage(role="tool", tool_call_id=call.id, content="error: the episode has ended"))
            elif not self.own.has(call):
                others, troubles = await shared.answer([call])
                messages += others
                logs += troubles
            else:
                text, step = await self._call_tool(call, logs)
                reward, done, info = reward + step.reward, step.done, {**info, **step.info}
                messages.append(ToolMessage(role="tool", tool_call_id=call.id, content=text))
        return EnvironmentTurn(tuple(messages), reward, done, info)

    async def _call_tool(self, call: ToolCall, logs: list[str]) -> tuple[str, Step]:
        """Call a tool of the environment; return the text of its result, and the `Step` that it returned, if any.

        An exception becomes text, for the policy to read.
        """
        name = call_name(call)
        try:
            result = await self.episode.call(name, lambda: self.own.call(call))
        except EpisodeError as error:
            if error.end == "timeout" or error.__cause__ is None:
                raise
            text = failure_text(error.__cause__)
            logs.append(f"{name} failed: {text}")
            return f"error: {text}", Step(None)
        if not isinstance(result, Step):
            return self.episode.read(name, _bounded_text, result), Step(None)
        self.gave_steps = True
        step = self.episode.read(name, step_of, result)
        return "" if step.observation is None else self.episode.read(name, _bounded_text, step.observation), step


def _bounded_text(result: Any) -> str:
    """Return the text of a tool's result; raise BadStepError if it is longer than any policy reads."""
    text = as_text(result)
    if len(text) > MAX_CHARS:
        raise BadStepError(f"a result of {len(text):,} characters is longer than {MAX_CHARS:,} -> cut it short")
    return text


def _answer_text(choice: Choice) -> str:
    """Return the text of an answer without its reasoning."""
    message = choice.message.to_wire()
    return reasoning_of(message, plain_text(message.get("content")))[1]


def _are_same(these: Sequence[MessageOrChoice], those: Sequence[MessageOrChoice]) -> bool:
    return [item.to_wire() for item in these] == [item.to_wire() for item in those]


def _log(rollout: Rollout, line: str) -> Rollout:
    return replace(rollout, logs=(*rollout.logs, line))
