"""Environments that a server of openenv serves, made with the package's own classes: `python openenv_servers.py NAME`.

NAME: `sums`, whose action is one text, or `chest`, with an action of two numbers and one session at a time.
"""

import random
import sys
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from pydantic import Field


class CalculatorAction(Action):
    """Calculates the value of an expression."""

    expression: str = Field(description="such as 12 + 34")


class SumObservation(Observation):
    text: str = ""


class Sums(Environment):
    """Three sums, one after the other; the calculator may help, and no answer is asked for."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> SumObservation:
        self._random = random.Random(seed)
        self._asked = 0
        return SumObservation(text=self._next())

    def step(self, action: CalculatorAction, timeout_s: float | None = None, **_: Any) -> SumObservation:
        right = action.expression.replace(" ", "") == self._sum.replace(" ", "")
        self._asked += 1
        done = self._asked == 3
        return SumObservation(text="" if done else self._next(), reward=float(right), done=done)

    def _next(self) -> str:
        self._sum = f"{self._random.randint(10, 99)} + {self._random.randint(10, 99)}"
        return f"What is {self._sum}?"

    @property
    def state(self) -> State:
        return State()


class ChestAction(Action):
    """Tries a combination of the lock."""

    left: int = Field(ge=0, le=3)
    right: int = 0


class ChestObservation(Observation):
    hint: str = ""
    tries: int = 0


class Chest(Environment):
    """A lock with two numbers; four tries."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> ChestObservation:
        self._numbers = [random.Random(seed).randint(0, 3) for _ in range(2)]
        self._tries = 0
        return ChestObservation(hint="Open the chest.")

    def step(self, action: ChestAction, timeout_s: float | None = None, **_: Any) -> ChestObservation:
        if action.right == 13:
            raise RuntimeError("the lock is broken")
        self._tries += 1
        right = sum(a == b for a, b in zip((action.left, action.right), self._numbers, strict=True))
        done = right == 2 or self._tries == 4
        return ChestObservation(hint=f"{right} of 2", tries=self._tries, reward=right / 2 if done else 0.0, done=done)

    @property
    def state(self) -> State:
        return State()


SERVED = {
    "sums": (Sums, CalculatorAction, SumObservation, 8),
    "chest": (Chest, ChestAction, ChestObservation, 1),
}

if __name__ == "__main__":
    environment, action, observation, sessions = SERVED[sys.argv[1]]
    app = create_fastapi_app(environment, action, observation, max_concurrent_envs=sessions)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    config_socket = server.config.bind_socket()
    print(config_socket.getsockname()[1], flush=True)
    server.run(sockets=[config_socket])
