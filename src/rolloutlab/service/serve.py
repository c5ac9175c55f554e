"""Put the service's parts together and run it until it is told to stop."""

import asyncio
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import transformers
import uvicorn

from rolloutlab.errors import InputError
from rolloutlab.policy.model import limit_threads, load_policy
from rolloutlab.policy.sampler import Sampler
from rolloutlab.service.app import make_app
from rolloutlab.service.connections import ACCEPTED_AT_ONCE, bounded, most_connections
from rolloutlab.service.database import open_service_database
from rolloutlab.service.job_queue import Jobs
from rolloutlab.service.lifecycle import Folder, watch
from rolloutlab.service.listen import ListenAddress
from rolloutlab.service.mcp.lab import LabTools
from rolloutlab.service.model_registry import Registry
from rolloutlab.service.oauth.server import AuthorizationServer
from rolloutlab.service.usage import Ledger
from rolloutlab.settings import named_policy, read_settings
from rolloutlab.store.sqlite import Database

_WAITING = 2048
"""Connections that the operating system keeps until they are accepted."""


class Server(uvicorn.Server):
    """Before it waits for its last requests to end, it ends those that would last as long as a job.

    It has no more connections than there are file descriptors for.
    """

    def __init__(self, config: uvicorn.Config, hang_up: Callable[[], None]) -> None:
        super().__init__(config)
        self._hang_up = hang_up
        config.load()
        if most := most_connections():
            config.http_protocol_class = bounded(config.http_protocol_class, most)  # type: ignore[assignment]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():  # asyncio takes one number for what waits and for what it accepts at once
            listener.listen(_WAITING)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hang_up()
        await super().shutdown(sockets)


def serve(
    folder: Folder,
    door: ListenAddress,
    port: int,
    policy_name: str,
    linger: float | None,
    token_lifetime: float,
    *,
    start_empty: bool = False,
) -> None:
    """Serve a claimed folder at a door until interrupted, or, with `linger`, until nobody has needed it that long.

    port 0 takes the one it had last, or any free one. token_lifetime: seconds of an OAuth access token.
    start_empty: as `Registry` has it.

    Raises:
        PolicyError: the policy cannot be loaded. InputError: the door cannot be used. LabError: the disk refuses, or
        the database lists no model and checkpoints lie beside it.
    """
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # between it and peft
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    listener = _listening(door, folder, port)
    url = door.url(listener.getsockname()[1])
    database, registry, jobs = _opened(folder, policy_name, start_empty=start_empty)
    sampler = Sampler(registry.policy)
    identity = {"policy": named_policy(policy_name), "instance": folder.instance}
    memory = LabTools(replace(read_settings(), home=folder.path.parent))
    authority = AuthorizationServer(url, database, folder.key(), folder.passcode, lifetime=token_lifetime)
    app = make_app(registry, sampler, jobs, Ledger(database), folder.draw_token(), identity, authority, memory)

    def hang_up() -> None:
        jobs.hang_up()
        sampler.close()

    options: dict[str, Any] = {"ssl_certfile": door.certificate, "ssl_keyfile": door.key, "log_level": "warning"}
    server = Server(uvicorn.Config(app, lifespan="on", backlog=ACCEPTED_AT_ONCE, **options), hang_up)

    async def run() -> None:
        folder.publish(url, identity["policy"])
        print(f"rolloutlab serves {policy_name} at {url}; the token is in {folder.path / 'token'}", flush=True)
        watching = (
            asyncio.create_task(watch(folder, jobs.busy, linger, lambda: setattr(server, "should_exit", True)))
            if linger
            else None
        )
        await server.serve(sockets=[listener])
        if watching:
            watching.cancel()

    # uvicorn sends it to us once more after it has ended, which by itself would end the process before the rest is done
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        asyncio.run(run())
    finally:
        folder.withdraw()
        jobs.close()
        sampler.close()
        memory.close()
        database.close()


def _opened(folder: Folder, policy_name: str, *, start_empty: bool) -> tuple[Database, Registry, Jobs]:
    """What the folder holds, on the policy; where that fails the database is closed."""
    database = open_service_database(folder.path)
    try:
        policy = load_policy(policy_name)
        limit_threads(policy)
        registry = Registry(database, folder.path, policy, start_empty=start_empty)
        return database, registry, Jobs(database, folder.path, registry)
    except BaseException:
        database.close()  # a write-ahead log left beside it would be applied to the database that is put back
        raise


def _listening(door: ListenAddress, folder: Folder, port: int) -> socket.socket:
    """The socket of the service, whose port is kept for the next start."""
    listener = door.listen(port) if port else _listen_again(door, folder)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else answers wait 40 ms for an acknowledgement
    folder.keep_port(listener.getsockname()[1])
    return listener


def _listen_again(door: ListenAddress, folder: Folder) -> socket.socket:
    """Where the service listened last, so that what was granted for that address still holds; else anywhere."""
    try:
        return door.listen(folder.last_port())
    except InputError:
        return door.listen(0)
