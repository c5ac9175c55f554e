"""IPython magics: each parses a cell, calls `Session` once and returns the result."""

from types import MethodType
from typing import TYPE_CHECKING, Any

from rolloutlab.magics import completion
from rolloutlab.magics.base import LabMagics, Opened, add_body

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from rolloutlab.session import Session


def register(shell: "InteractiveShell", session: "Session | None" = None) -> None:
    """Register every magic with one session: the given one, the notebook's own, or a new one."""
    from rolloutlab.magics.chat import ChatMagics
    from rolloutlab.magics.collections import CollectionMagics
    from rolloutlab.magics.compare import CompareMagics
    from rolloutlab.magics.connect import ConnectMagics, ModelMagics, ServiceMagics
    from rolloutlab.magics.files import ExchangeMagics
    from rolloutlab.magics.login import SignInMagics
    from rolloutlab.magics.reward import RewardMagics
    from rolloutlab.magics.rollout import RolloutMagics
    from rolloutlab.magics.runs import RunMagics
    from rolloutlab.magics.search import SearchMagics
    from rolloutlab.magics.tools import ToolMagics
    from rolloutlab.magics.train import JobMagics, TrainMagics

    kinds = (
        ChatMagics,
        CollectionMagics,
        CompareMagics,
        ConnectMagics,
        ExchangeMagics,
        JobMagics,
        ModelMagics,
        RewardMagics,
        RolloutMagics,
        RunMagics,
        SearchMagics,
        ServiceMagics,
        SignInMagics,
        ToolMagics,
        TrainMagics,
    )
    known = next((magics.opened for magics in list_magics(shell)), None)
    opened = Opened(session) if session else known or Opened()
    unregister(shell)
    for kind in kinds:
        shell.register_magics(kind(shell, opened))
    shell.events.register("post_run_cell", shell.magics_manager.registry["SearchMagics"].after_cell)
    shell.input_transformers_cleanup.insert(0, add_body)
    completion.register(shell)


def unregister(shell: "InteractiveShell") -> None:
    """Remove the magics. Their session stays for `rolloutlab.lab()`, and its objects still work."""
    completion.unregister(shell)
    shell.input_transformers_cleanup[:] = [t for t in shell.input_transformers_cleanup if t is not add_body]
    for callback in filter(_is_ours, list(shell.events.callbacks["post_run_cell"])):
        shell.events.unregister("post_run_cell", callback)
    for magics in shell.magics_manager.magics.values():
        for name in [name for name, magic in magics.items() if _is_ours(magic)]:
            del magics[name]


def list_magics(shell: "InteractiveShell") -> list[LabMagics]:
    """List every object with magics of rolloutlab that the shell has or had."""
    return [magics for magics in shell.magics_manager.registry.values() if isinstance(magics, LabMagics)]


def _is_ours(method: Any) -> bool:
    # the type comes first: asking a lazily loaded magic for an attribute would load it
    return isinstance(method, MethodType) and isinstance(method.__self__, LabMagics)
