"""The public Python API, put together: every magic is one call of `Session`, found by its noun."""

from rolloutlab.session.base import DEFAULT_MODEL
from rolloutlab.session.chat import CONCURRENT, ChatCalls
from rolloutlab.session.collections import CollectionCalls
from rolloutlab.session.compare import CompareCalls
from rolloutlab.session.connect import ConnectCalls
from rolloutlab.session.exchange import ExchangeCalls
from rolloutlab.session.jobs import JobCalls
from rolloutlab.session.loop import LoopCalls
from rolloutlab.session.model import ModelCalls
from rolloutlab.session.reward import RewardCalls
from rolloutlab.session.search import SearchCalls
from rolloutlab.session.service import ServiceCalls
from rolloutlab.session.sign_in import SignInCalls
from rolloutlab.session.tools import ToolCalls
from rolloutlab.session.train import TrainCalls

__all__ = ["CONCURRENT", "DEFAULT_MODEL", "Session", "lab"]


class Session(  # each before those that it calls
    LoopCalls,
    CompareCalls,
    ChatCalls,
    RewardCalls,
    ExchangeCalls,
    ConnectCalls,
    SearchCalls,
    CollectionCalls,
    ToolCalls,
    SignInCalls,
    TrainCalls,
    JobCalls,
    ModelCalls,
    ServiceCalls,
):
    """One notebook's hold on a lab and a service.

    settings: where the lab is and which service it talks to; by default from the environment. Nothing is opened or
    started before a call needs it.
    """


def lab() -> Session:
    """The session of this notebook once `%load_ext rolloutlab` has run; elsewhere, a new one."""
    from IPython import get_ipython

    shell = get_ipython()
    found = shell.magics_manager.registry.get("ChatMagics") if shell else None
    return found.session if found else Session()
