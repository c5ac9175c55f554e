"""The nodes of a Ray cluster, what an actor loads there, and where actors are made."""

import logging
import os
from dataclasses import dataclass
from typing import Any

import ray
import torch
from peft import LoraConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rolloutlab.errors import PolicyError, RolloutlabError, ServiceError
from rolloutlab.integrations.ray.plan import check_address, check_same, with_dtype
from rolloutlab.policy.base import Base
from rolloutlab.policy.checkpoints import State
from rolloutlab.policy.model import Policy, base_of, limit_threads, load_policy, read_adapter
from rolloutlab.settings import ModelSettings

HINT = "`ray status` on the head of the cluster"
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Loaded:
    """What an actor has loaded. initial: checkpoint 0. workers: threads that train."""

    base: Base
    initial: State
    lora: LoraConfig
    device: str
    workers: int
    pid: int


def load(name: str, settings: ModelSettings, threads: int) -> tuple[Policy, Loaded]:
    """Load the policy, in the process of an actor. Raises as `load_policy` does."""
    torch.set_num_threads(threads)
    policy = load_policy(name, settings)
    limit_threads(policy)
    initial = State(read_adapter(policy.lora_copy()), {})
    return policy, Loaded(base_of(policy), initial, policy.lora, str(policy.device), policy.workers, os.getpid())


def connect(url: str | None) -> None:
    """Join the cluster at HOST:PORT, or start one on 127.0.0.1. Raises InputError, ServiceError."""
    here = {"address": "local", "_node_ip_address": _LOOPBACK, "include_dashboard": False}
    if url:
        check_address(url)
    where = {"address": url} if url else here
    try:
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray also raises errors that are no RayError
        problem = "Ray did not start" if url is None else f"no Ray cluster at {url} was joined"
        hint = "rolloutlab serve again, or --engine local" if url is None else "ray start --head"
        raise ServiceError(f"{problem}: {error_line(error)}", hint=hint) from error
    if url is None and (address := ray.util.get_node_ip_address()) != _LOOPBACK:
        ray.shutdown()
        raise ServiceError(f"Ray listens on {address}, not on {_LOOPBACK}", hint="start the cluster yourself")


class Nodes:
    """The nodes of the cluster that this process is connected to.

    Attributes:
        policy: Name and settings of the policy, the same on each node.
        loaded: What each node that has the policy has loaded, by node.
        refused: Why nodes are not used any more, by node.
        failed: Why a trainer or sampler did not start, by node and `trainer` or `sampler`.
        addresses: IP addresses of the nodes that `living` returned last, by node.
    """

    def __init__(self, policy_name: str, settings: ModelSettings) -> None:
        gpus = any(each["Alive"] and each["Resources"].get("GPU") for each in ray.nodes())
        self.policy = policy_name, with_dtype(settings, gpus=gpus)
        self.loaded: dict[str, Loaded] = {}
        self.refused: dict[str, PolicyError] = {}
        self.failed: dict[tuple[str, str], str] = {}
        self.addresses: dict[str, str] = {}

    def living(self) -> dict[str, int]:
        """Return the living nodes, with the number of their cores. Ray notices a lost node after some seconds."""
        nodes = [each for each in ray.nodes() if each["Alive"]]
        self.addresses = {each["NodeID"]: each["NodeManagerAddress"] for each in nodes}
        return {each["NodeID"]: int(each["Resources"].get("CPU", 1)) or 1 for each in nodes}

    def actor(self, kind: type, node: str, threads: int, max_concurrency: int) -> Any:
        """Make a new actor on a node. Ray does not restart it if it is lost."""
        with_gpu = any(each["NodeID"] == node and each["Resources"].get("GPU") for each in ray.nodes())
        options = {
            "num_cpus": 0,
            "num_gpus": 0.5 if with_gpu else 0,  # trainer and sampler share a device
            "max_restarts": 0,
            "max_concurrency": max_concurrency,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
            "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(threads)}},  # Ray's own default is one
        }
        return ray.remote(kind).options(**options).remote()

    def check(self, node: str, what: str, loaded: Loaded) -> None:
        """Check and record what a trainer or sampler has loaded. Raises PolicyError if it differs between nodes."""
        for first in list(self.loaded.values()):
            check_same(loaded.base, first.base)
        self.loaded[node] = loaded
        self.failed.pop((node, what), None)

    def refuse(self, node: str, error: PolicyError) -> None:
        """Stop using a node."""
        self.refused[node] = getattr(error, "cause", error)  # Ray wraps it in one with a traceback in its text
        logging.getLogger(__name__).warning("%s is not used: %s", self.addresses.get(node, node), error_line(error))

    def fail(self, node: str, what: str, error: Exception) -> None:
        """Record that a trainer or sampler did not start on a node. The caller tries the node again."""
        self.failed[node, what] = error_line(error)
        logging.getLogger(__name__).warning("no %s on %s: %s", what, self.addresses.get(node, node), error_line(error))

    def unused(self) -> str:
        """Name the living nodes that are not used, or not for everything, each with the reason; empty if none."""
        addresses = self.addresses
        reasons = [(node, error.message) for node, error in list(self.refused.items())]
        reasons += [(node, f"no {what}: {line}") for (node, what), line in list(self.failed.items())]
        return "; ".join(f"{addresses[node]} ({why})" for node, why in reasons if node in addresses)

    def no_node_error(self, problem: str) -> RolloutlabError:
        """Return the error that no node can do something, which `problem` says."""
        unused = self.unused()
        ours = ServiceError(f"{problem}: {unused}" if unused else problem, hint=HINT)
        return next(iter(self.refused.values()), ours)


def error_line(error: BaseException) -> str:
    """Return the last line of an error. The lines before it are a traceback of another process, which Ray adds."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
