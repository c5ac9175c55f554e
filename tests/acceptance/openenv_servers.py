"""Environments that a server of openenv serves, made with the package's own classes: `python openenv_servers.py NAME`.

NAME: `sums`, whose action is one text, or `adder`, with an action of two numbers and one session at a time.
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


class TextObservation(Observation):
    text: str = ""


class Sums(Environment):
    """Three sums, one after the other; the calculator may help, and no answer is asked for."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> TextObservation:
        self._random = random.Random(seed)
        self._asked = 0
        return TextObservation(text=self._next())

    def step(self, action: CalculatorAction, timeout_s: float | None = None, **_: Any) -> TextObservation:
        right = action.expression.replace(" ", "") == self._sum.replace(" ", "")
        self._asked += 1
        done = self._asked == 3
        return TextObservation(text="" if done else self._next(), reward=float(right), done=done)

    def _next(self) -> str:
        self._sum = f"{self._random.randint(10, 99)} + {self._random.randint(10, 99)}"
        return f"What is {self._sum}?"

    @property
    def state(self) -> State:
        return State()


class AddAction(Action):
    """Add two numbers."""

    a: int = Field(ge=0)
    b: int


class Adder(Environment):
    """One sum; three tries to add its numbers."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> TextObservation:
        self._numbers = [random.Random(seed).randint(10, 99), 10]
        self._tries = 0
        return TextObservation(text="What is {} + {}?".format(*self._numbers))

    def step(self, action: AddAction, timeout_s: float | None = None, **_: Any) -> TextObservation:
        self._tries += 1
        right = [action.a, action.b] == self._numbers
        return TextObservation(text=str(action.a + action.b), reward=float(right), done=self._tries == 3)

    @property
    def state(self) -> State:
        return State()


SERVED = {
    "sums": (Sums, CalculatorAction, TextObservation, 8),
    "adder": (Adder, AddAction, TextObservation, 1),
}

if __name__ == "__main__":
    environment, action, observation, sessions = SERVED[sys.argv[1]]
    app = create_fastapi_app(environment, action, observation, max_concurrent_envs=sessions)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    config_socket = server.config.bind_socket()
    print(config_socket.getsockname()[1], flush=True)
    server.run(sockets=[config_socket])
