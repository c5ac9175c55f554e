"""Adapter of TextArena: `textarena:ID`, its games for one player."""

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Any

from rolloutlab.environments.adapters import check_name, import_package, name_with
from rolloutlab.environments.protocol import Step

_RAW = "-raw"
_playing: ContextVar[random.Random | None] = ContextVar("playing", default=None)


def source(name: str, **options: Any) -> "TextArena":
    """Make the source of a game. options: of the game, such as `max_turns=10`."""
    check_name("textarena", name, names())
    return TextArena(name, options)


def names() -> list[str]:
    """List the games of the package for one player."""
    textarena = import_package("textarena", "textarena")
    folder = Path(textarena.__file__ or "").parent
    alone: dict[str, bool] = {}
    for spec in _registry().values():
        if isinstance(spec.entry_point, str) and spec.entry_point not in alone:
            module = folder.joinpath(*spec.entry_point.partition(":")[0].split(".")[1:]).with_suffix(".py")
            # the text is read: some of the 90 modules are slow to import, or not valid in this version of Python
            alone[spec.entry_point] = module.exists() and "SinglePlayerState" in module.read_text(
                encoding="utf-8", errors="replace"
            )
    raw = (name for name, spec in _registry().items() if name.endswith(_RAW) and alone.get(spec.entry_point))
    return [name.removesuffix(_RAW) for name in raw]


class TextArena:
    """The source of one game. Its rows are empty, since the seed of a group decides how its game begins."""

    def __init__(self, game: str, options: Mapping[str, Any]) -> None:
        self.name = name_with(f"textarena:{game}", options)
        self._game = game
        self._options = options

    def rows(self, limit: int | None, seed: int) -> list[dict[str, Any]]:  # noqa: ARG002 - each group has its own
        return [{} for _ in range(limit or 1)]

    def environment(self, row: Mapping[str, Any]) -> "Game":  # noqa: ARG002
        import_module(_registry()[f"{self._game}{_RAW}"].entry_point.partition(":")[0])
        _take_over_random()
        return Game(self._game, self._options)


class Game:
    """One game of one player.

    The variant `-raw` of a game tells only what is new in each turn; the default variant repeats everything. The
    default variant's action wrappers are used here too: most add the brackets that an answer lacks.
    """

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        textarena = import_package("textarena", "textarena")
        self._unseen = textarena.ObservationType.PLAYER_ACTION
        self._generator = random.Random()
        with self._own_random():
            self._game = textarena.make(f"{name}{_RAW}", **options)
            for wrapper in _registry()[name].default_wrappers or ():
                if issubclass(wrapper, textarena.ActionWrapper):
                    self._game = wrapper(self._game)

    def reset(self, seed: int) -> str:
        with self._own_random():
            self._game.reset(num_players=1, seed=seed)
            return self._observation()

    def step(self, answer: str) -> Step:
        with self._own_random():
            done, _ = self._game.step(answer)
            if not done:
                return Step(self._observation())
            rewards, info = self._game.close()
            return Step(None, (rewards or {}).get(0, 0.0), done=True, info=info[0])

    def _observation(self) -> str:
        """Return what the game has said since the last turn, without the player's own words."""
        _, observed = self._game.get_observation()
        new = (message for _, message, kind in observed if kind != self._unseen)
        return "\n".join(message for message in new if isinstance(message, str))  # a few games mix up arguments

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        token = _playing.set(self._generator)
        try:
            yield
        finally:
            _playing.reset(token)


class _GameRandom:
    """Stands for the module `random` in TextArena's modules: each game has a generator of its own.

    Games seed the generator of the process and draw from it. So games that run at the same time would change each
    other's draws, and the user's. Swapping the generator's state around each call would not protect the user's threads.
    """

    def __getattr__(self, name: str) -> Any:
        generator = _playing.get()
        return getattr(generator if hasattr(generator, name) else random, name)


_RANDOM = _GameRandom()


def _take_over_random() -> None:
    """Replace the module `random` in all modules of TextArena that are imported."""
    for name, module in list(sys.modules.items()):
        if name.startswith("textarena.") and getattr(module, "random", None) is random:
            module.random = _RANDOM  # type: ignore[attr-defined]


def _registry() -> Mapping[str, Any]:
    registry: Mapping[str, Any] = import_package("textarena.envs.registration", "textarena").ENV_REGISTRY
    return registry
