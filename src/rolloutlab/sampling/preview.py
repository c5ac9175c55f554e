"""Preview of a sampling plan: the requests, an upper bound of their cost, and an estimate from earlier completions."""

import json
from collections.abc import Callable, Iterable, Mapping

from rolloutlab.api.prices import Amount, Tokens, cost, prompt_bound, shown
from rolloutlab.api.wire.chat import ChatRequest
from rolloutlab.errors import InputError
from rolloutlab.objective.preflight import count
from rolloutlab.sampling.plan import SamplingRun
from rolloutlab.sampling.rollout import Rollout, messages_of
from rolloutlab.settings import Price
from rolloutlab.store.models import CollectionSummary

Judged = Mapping[int, Mapping[str, Tokens]]
"""The tokens of each model that has judged a collection, by the id of the collection."""


class Preview:
    """What a call would sample; nothing is sent.

    work: the plan of the call. cost: a line on its cost; "" if that is not known. request: the first request, if the
    plan has an environment. An instance of the environment was started to build it.
    """

    def __init__(self, work: SamplingRun, cost: str = "", request: ChatRequest | None = None) -> None:
        self.request = request if work.source else work.first_request()
        self.plan, self.groups = work.plan, tuple(work.groups)
        self.requests = len(work.rollouts)
        self.trajectories = sum(len(rollout.positions) for rollout in work.rollouts)
        self.notes = tuple(work.notes)
        self.cost = cost

    def __repr__(self) -> str:
        if self.request is None:
            return "nothing is left to sample"
        body = json.dumps(self.request.to_wire(), indent=2, ensure_ascii=False)
        begins = count(self.requests, "request")
        heading = f"{count(self.trajectories, 'trajectory')}, beginning with {begins}; the first:"
        return "\n".join([*self.notes, *filter(None, [self.cost]), heading, body])


def cost_line(
    run: SamplingRun, price: Price, trials: Tokens, earlier: Iterable[CollectionSummary], judged: Callable[[], Judged]
) -> str:
    """Describe the cost of a plan in a line: the most, and an estimate from an earlier generation.

    Args:
        run: the plan.
        price: the price of the model.
        trials: the most tokens of requests that find out which fields the service accepts.
        earlier: earlier generations, the newest first. The first that is like the plan gives the estimate.
        judged: returns the tokens of judges.
    """
    try:
        most = f"at most {shown(cost(price, most_tokens(run).plus(trials)), up=True)} without retries (max_tokens)"
    except InputError as error:
        most = f"no bound: {error.message}{f' -> {error.hint}' if error.hint else ''}"
    like = (each for each in earlier if is_like(run, each))
    before = next(like, None)
    about = "" if before is None else f", about {shown(estimate_cost(run, price, before, judged()))} as {before.label}"
    return f"cost: {most}{about}"


def most_tokens(run: SamplingRun) -> Tokens:
    """Bound the tokens of all requests, if each is sent once.

    A prompt counts once for each completion, together with the answers before it.

    Raises:
        InputError: the plan has no max_tokens, its tools or environments may return any text, or as `prompt_bound`.
    """
    longest = run.plan.max_tokens
    if longest is None:
        raise InputError("no most tokens of a completion", hint="--max-tokens 512")
    if run.plan.tools:
        raise InputError("results of tools may be of any length")
    if run.source:
        raise InputError("observations may be of any length")
    return sum_of(_most_of(run, rollout, longest) for rollout in run.rollouts)


def _most_of(run: SamplingRun, rollout: Rollout, longest: int) -> Tokens:
    group, tokens = run.groups[rollout.place], Tokens()
    messages = messages_of(rollout, group)
    described = sum(len(tool.to_json().encode()) for tool in rollout.tools)
    for answers, line in enumerate(group.script[len(group.script) - rollout.pending :]):
        messages = [*messages, *line]
        tokens = tokens.plus(Tokens(prompt_bound(messages, described) + answers * longest, longest))
    return Tokens(tokens.prompt * len(rollout.positions), tokens.completion * len(rollout.positions))


def is_like(run: SamplingRun, earlier: CollectionSummary) -> bool:
    """Whether an earlier generation can tell how many tokens this run takes.

    It must have the name of the run and counted tokens, and both of them or none continue conversations.
    """
    known = earlier.trajectories > 0 and earlier.completion_tokens > 0 and earlier.name == run.name
    return known and bool(earlier.plan.get("continues")) == bool(run.plan.continues)


def estimate_cost(run: SamplingRun, price: Price, earlier: CollectionSummary, judged: Judged) -> Amount:
    """Estimate the cost of this run by the tokens per trajectory of an earlier generation, without its judges."""
    judges = sum_of(judged.get(earlier.id, {}).values())
    wanted = sum(len(rollout.positions) for rollout in run.rollouts)
    took = earlier.prompt_tokens - judges.prompt, earlier.completion_tokens - judges.completion
    return cost(price, Tokens(*(max(0, round(each * wanted / earlier.trajectories)) for each in took)))


def sum_of(tokens: Iterable[Tokens]) -> Tokens:
    """Add up counts of tokens."""
    total = Tokens()
    for each in tokens:
        total = total.plus(each)
    return total
