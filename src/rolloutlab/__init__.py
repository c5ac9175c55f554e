"""Reinforcement learning on language models, in a notebook: sample, look, score, train, compare, search."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Judge", "Session", "__version__", "lab", "load_ipython_extension", "math_answer"]

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from rolloutlab.session import Session, lab
    from rolloutlab.trajectories.judge import Judge
    from rolloutlab.trajectories.scoring.math_answers import math_answer


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
    """`rolloutlab.Session`, `.lab`, `.Judge` and `.math_answer`, imported when they are first used."""
    if name == "Judge":
        from rolloutlab.trajectories.judge import Judge

        return Judge
    if name == "math_answer":
        from rolloutlab.trajectories.scoring.math_answers import math_answer

        return math_answer
    if name in {"Session", "lab"}:
        from rolloutlab import session

        return getattr(session, name)
    raise AttributeError(f"module 'rolloutlab' has no attribute {name!r}")
