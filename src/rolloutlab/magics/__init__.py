"""A cell becomes one call on Session."""

from typing import TYPE_CHECKING

from rolloutlab.magics.cells import allow_empty_bodies

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from rolloutlab.session import Session


def register(shell: "InteractiveShell", session: "Session | None" = None) -> None:
    """Register every magic with one session, a new one unless it is handed in."""
    from rolloutlab.magics.chat import ChatMagics
    from rolloutlab.magics.collections import CollectionMagics
    from rolloutlab.magics.compare import CompareMagics
    from rolloutlab.magics.exchange import ExchangeMagics
    from rolloutlab.magics.jobs import JobMagics
    from rolloutlab.magics.model import ModelMagics
    from rolloutlab.magics.reward import RewardMagics
    from rolloutlab.magics.service import ServiceMagics
    from rolloutlab.magics.train import TrainMagics
    from rolloutlab.session import Session

    session = session or Session()
    for kind in (
        ChatMagics,
        CollectionMagics,
        CompareMagics,
        ExchangeMagics,
        JobMagics,
        ModelMagics,
        RewardMagics,
        ServiceMagics,
        TrainMagics,
    ):
        shell.register_magics(kind(shell, session))
    allow_empty_bodies(shell)
