"""Record of an episode: what its trajectory stores beside the conversation, and how the episode ended."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from rolloutlab.environments.observations import EnvironmentTurn, Scalar
from rolloutlab.objective.credit import ENVIRONMENT, TURN_REWARD

End = Literal["done", "max_turns", "length", "content_filter", "context", "timeout", "error"]
"""How an episode ended.

- done: the environment ended it.
- max_turns: it had as many answers as the plan allows.
- length: its last answer was cut off by max_tokens or by the service.
- content_filter: the service's filter cut its last answer off.
- context: the policy's context has no room for another answer.
- timeout, error: a call of its environment took too long or failed. Such an episode has no reward."""
END = "episode_end"
"""The property of a trajectory's metadata that holds the `End`."""


@dataclass(frozen=True)
class EpisodeRecord:
    """An episode, apart from its conversation.

    environment: the name of the environment.
    turn_rewards: the reward of each answer.
    final_reward: the reward of the whole episode. None if nothing in the environment gives a reward, because 0 would
        count as a reward.
    info: numbers and texts of the steps, the latest of each name.
    end: how the episode ended; None before its end.
    """

    environment: str
    turn_rewards: tuple[float, ...] = ()
    final_reward: float | None = 0.0
    info: Mapping[str, Scalar] = field(default_factory=dict)
    end: End | None = None

    def add_turn(self, turn: EnvironmentTurn) -> Self:
        """Return the record with one more turn."""
        return replace(self, turn_rewards=(*self.turn_rewards, turn.reward), info={**self.info, **turn.info})

    @property
    def total(self) -> float:
        """The sum of all rewards; not finite if it is too large for a float."""
        try:
            return math.fsum([*self.turn_rewards, self.final_reward or 0.0])
        except OverflowError:
            return math.inf

    @property
    def components(self) -> dict[str, float]:
        """The episode's reward as a component. Empty if there is none: before its end, or if its environment failed."""
        if self.end in {None, "timeout", "error"} or self.final_reward is None:
            return {}
        return {ENVIRONMENT: self.total}

    def extra(self) -> dict[str, Any]:
        """Return properties of the trajectory on the wire: its metrics and metadata."""
        own = {
            name: value for name, value in self.info.items() if name != ENVIRONMENT and not name.startswith(TURN_REWARD)
        }
        numbers = {name: value for name, value in own.items() if not isinstance(value, str)}
        texts = {name: value for name, value in own.items() if isinstance(value, str)}
        given = self.turn_rewards if self.final_reward is not None else ()
        rewards = {f"{TURN_REWARD}{turn}": reward for turn, reward in enumerate(given)}
        ended = {END: self.end} if self.end else {}
        return {
            "metrics": {**numbers, **rewards, **self.components},
            "metadata": {**texts, "environment": self.environment, **ended},
        }
