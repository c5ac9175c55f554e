"""Reinforcement learning on language models, in a notebook: sample, look, score, train, compare, search."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Judge", "Session", "Step", "__version__", "lab", "load_ipython_extension", "math_answer"]

_MODULES = {
    "Judge": "rolloutlab.scoring.judge",
    "Session": "rolloutlab.session",
    "Step": "rolloutlab.environments.protocol",
    "lab": "rolloutlab.session",
    "math_answer": "rolloutlab.scoring.math_answers",
}

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from rolloutlab.environments.protocol import Step
    from rolloutlab.scoring.judge import Judge
    from rolloutlab.scoring.math_answers import math_answer
    from rolloutlab.session import Session, lab


def load_ipython_extension(shell: "InteractiveShell") -> None:
    """`%load_ext rolloutlab`: register the magics."""
    from rolloutlab.magics import register

    register(shell)


def unload_ipython_extension(shell: "InteractiveShell") -> None:
    """`%unload_ext rolloutlab`: remove the magics. The session stays, and `%load_ext` attaches to it again."""
    from rolloutlab.magics import unregister

    unregister(shell)


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """The extension of Jupyter servers: a module that imports nothing of the kernel side."""
    return [{"module": "rolloutlab.auth.redirect.jupyter_server"}]


def __getattr__(name: str) -> Any:
    """`rolloutlab.Session`, `.lab`, `.Judge`, `.Step` and `.math_answer`, imported when they are first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'rolloutlab' has no attribute {name!r}")
    return getattr(_imported(_MODULES[name]), name)


def _imported(module: str) -> ModuleType:
    """Import in another thread: an interrupt, which the main thread alone gets, does not end the import in the middle.

    Packages such as aiohttp could not be imported again then, before the kernel is restarted.
    """
    from concurrent.futures import ThreadPoolExecutor

    executor = ThreadPoolExecutor(max_workers=1)
    try:
        return executor.submit(import_module, module).result()
    finally:
        executor.shutdown(wait=False)
