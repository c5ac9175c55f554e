"""Player of chats: sends the prompts of a plan, and makes records of the answers for the writer."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from rolloutlab.api.wire.chat import ChatCompletion
from rolloutlab.connection import Connector
from rolloutlab.errors import RolloutlabError
from rolloutlab.sampling.metering import Meter
from rolloutlab.sampling.plan import SamplingRun
from rolloutlab.sampling.rollout import Rollout, RolloutRunner
from rolloutlab.sampling.sending import EarlierTokens, make_sender, retries_of
from rolloutlab.settings import Address
from rolloutlab.store.arrivals import DumpedArrival, Placed, dump_arrival
from rolloutlab.store.lab import Lab
from rolloutlab.store.models import Arrival, Group


class PreparedAnswer(NamedTuple):
    """What is stored of conversations of one group after one completion; a `writer.SampledRecord`.

    The conversations are serialized already, because a thousand records wait for the disk while 512 requests are under
    way. With an object per token they took 80 MB more memory and, because of cache misses, an eighth more time.
    """

    place: int
    arrivals: Sequence[DumpedArrival]
    step: int | None = None
    usage: tuple[int, int] = (0, 0)
    unscored: int = 0
    surplus: int = 0
    trouble: str = ""

    @property
    def begun(self) -> int:
        return len(self.arrivals)

    @property
    def done(self) -> int:
        return sum(not arrival.pending for arrival in self.arrivals)


class ChatPlayer:
    """Plays the rollouts of a plan without a program.

    text: the text of the completion so far, if the plan has only one, which is streamed; else "".
    """

    def __init__(self, run: SamplingRun, connector: Connector, address: Address, meter: Meter) -> None:
        self._run = run
        self.text = ""
        is_single = sum(len(rollout.positions) for rollout in run.rollouts) == 1
        send = partial(make_sender(connector, address, meter), on_text=self._show if is_single else None)
        self._complete = partial(EarlierTokens(connector.http, address).complete, send=send)
        self._retries = retries_of(connector)
        self._runner: RolloutRunner[PreparedAnswer] | None = None

    @property
    def waits(self) -> bool:
        """Whether the service is unreachable now."""
        return self._runner is not None and self._runner.waits

    async def play(
        self,
        concurrency: int,
        take: Callable[[Sequence[PreparedAnswer]], None],
        fail: Callable[[int, RolloutlabError], None],
    ) -> None:
        """Play all rollouts to their end, as `RolloutRunner.play` does.

        take: stores records, in a thread. fail: called for each failed request, with its number of trajectories.
        """
        run = self._run
        self._runner = RolloutRunner(
            run.plan, run.groups, self._complete, run.tools, partial(make_record, run), take, fail, self._retries,
            run.episodes(),
        )  # fmt: skip
        await self._runner.play(run.rollouts, concurrency)

    def _show(self, text: str) -> None:
        self.text = text


def make_record(run: SamplingRun, rollouts: Sequence[Rollout], completion: ChatCompletion | None) -> PreparedAnswer:
    """Make the record of conversations of one group after a completion.

    completion: None if they ended without one, because the service refused it or the environment ended them.
    """
    ended = [rollout.episode for rollout in rollouts if not rollout.pending]
    unscored = sum(episode is not None and episode.final_reward is None for episode in ended)
    arrivals = [dump_arrival(_make_arrival(run, rollout)) for rollout in rollouts]
    usage = (0, 0) if completion is None else usage_of(completion)
    surplus = 0 if completion is None else len(completion.choices) - len(rollouts)
    return PreparedAnswer(rollouts[0].place, arrivals, _step_of(completion), usage, unscored, surplus)


def put_answers(
    lab: Lab, run: SamplingRun, answers: Sequence[PreparedAnswer], groups: Sequence[Group], *, begins: bool
) -> None:
    """Write records, inside a transaction.

    Args:
        lab: the lab.
        run: the run.
        answers: the records.
        groups: the stored groups, by place.
        begins: whether these are the first records; then `run.copies` are written too.
    """
    copies = [make_record(run, [copy], None) for copy in run.copies] if begins else []
    plan, sampling = run.plan, run.plan.sampling()
    lab.put_all(
        [
            Placed(groups[each.place], each.arrivals, plan.model, each.step, sampling, each.usage)
            for each in (*copies, *answers)
        ]
    )


def _make_arrival(run: SamplingRun, rollout: Rollout) -> Arrival:
    episode = rollout.episode
    offered = [*run.plan.tools, *rollout.tools]
    extra = {
        **({"tools": [tool.to_wire() for tool in offered]} if offered else {}),
        **({"logs": rollout.logs} if rollout.logs else {}),
        **(episode.extra() if episode else {}),
    }
    components = episode.components if episode else {}
    return Arrival(rollout.positions[0], rollout.items, rollout.pending, extra, components)


def _step_of(completion: ChatCompletion | None) -> int | None:
    """Return the sampled checkpoint; None unless the service reports one, and the same one on all choices."""
    if completion is None:
        return None
    steps = {(choice.model_extra or {}).get("policy_version") for choice in completion.choices}
    step = steps.pop() if len(steps) == 1 else None
    return step if isinstance(step, int) else None


def usage_of(completion: ChatCompletion) -> tuple[int, int]:
    """Return the prompt tokens and sampled tokens as the service counts them.

    If the service does not count, they are 0 and the number of tokens that have logprobs.
    """
    if completion.usage:
        return completion.usage.prompt_tokens, completion.usage.completion_tokens
    return 0, sum(len(choice.sampled_tokens()) for choice in completion.choices)
