"""Run the service: its parts, its socket, its shutdown."""

import asyncio
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import uvicorn

from rolloutlab.engines.engine import Engine
from rolloutlab.engines.open import open_engine, quiet_transformers
from rolloutlab.errors import InputError
from rolloutlab.service.app import make_app
from rolloutlab.service.database import open_service_database
from rolloutlab.service.endpoints.chat import Ledger
from rolloutlab.service.job_queue import Jobs
from rolloutlab.service.lifecycle import Folder, watch
from rolloutlab.service.listen import ACCEPTED_AT_ONCE, ListenAddress, limit_connections, max_connections
from rolloutlab.service.mcp.lab import LabTools
from rolloutlab.service.model_registry import Registry
from rolloutlab.service.oauth.server import AuthorizationServer
from rolloutlab.settings import ModelSettings, named_policy, read_settings
from rolloutlab.store.sqlite import Database

_BACKLOG = 2048
_STOP_SECONDS = 12.0
"""Seconds after which the process ends at the latest, whatever its threads do. `%service stop` waits longer."""
_IDLE_SECONDS = 15
"""Longer than clients keep an unused connection (httpx: 5 s), so that no request meets one that is being closed."""


class Server(uvicorn.Server):
    """Limits the number of connections by file descriptors; ends event streams, then waits for the last requests."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams
        config.load()
        if limit := max_connections():
            config.http_protocol_class = limit_connections(config.http_protocol_class, limit)  # type: ignore[assignment]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():  # again: asyncio uses one number both as backlog and for accepts per turn
            listener.listen(_BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        await super().shutdown(sockets)


def serve(
    folder: Folder,
    address: ListenAddress,
    port: int,
    policy_name: str,
    linger: float | None,
    token_lifetime: float,
    *,
    model: ModelSettings,
    start_empty: bool = False,
) -> None:
    """Serve a claimed folder until interrupted, or until it has been idle for `linger` seconds.

    Args:
        folder: The claimed folder of the service.
        address: The address to listen on.
        port: The port; 0 takes that of the last start, or any free one.
        policy_name: The policy.
        linger: Idle seconds after which it stops; None never stops it.
        token_lifetime: The lifetime of an OAuth access token, in seconds.
        model: How the policy is loaded.
        start_empty: As in `Registry`.

    Raises:
        PolicyError: the policy cannot be loaded, or the engine's extra is missing.
        InputError: the address or an option cannot be used.
        LabError: the disk refuses, or the folder has checkpoints but the database lists no model.
    """
    quiet_transformers()
    listener = _listen(address, folder, port)
    url = address.url(listener.getsockname()[1])
    with ExitStack() as failing:
        failing.callback(listener.close)
        engine = open_engine(policy_name, model, note=_make_note(folder))
        database, registry, jobs = _open(folder, engine, start_empty=start_empty)
        for close in (database.close, engine.close, jobs.close):
            failing.callback(close)
        identity = {"policy": named_policy(policy_name, model), "instance": folder.instance}
        lab = LabTools(replace(read_settings(), home=folder.path.parent))
        authority = AuthorizationServer(url, database, folder.key(), folder.passcode, lifetime=token_lifetime)
        app = make_app(registry, engine, jobs, Ledger(database), folder.draw_token(), identity, authority, lab)
        failing.pop_all()

    def end_streams() -> None:
        end_process_within(_STOP_SECONDS)
        jobs.end_streams()
        engine.close()

    options: dict[str, Any] = {"ssl_certfile": address.certificate, "ssl_keyfile": address.key, "log_level": "warning"}
    config = uvicorn.Config(app, lifespan="on", backlog=ACCEPTED_AT_ONCE, timeout_keep_alive=_IDLE_SECONDS, **options)
    server = Server(config, end_streams)

    async def run() -> None:
        folder.publish(url, identity["policy"])
        print("\x1b[K" * sys.stdout.isatty(), end="")  # clears the line of `_make_note`
        print(f"rolloutlab serves {policy_name} at {url}; the token is in {folder.path / 'token'}", flush=True)
        print(*engine.base.notes(), sep="\n", end="\n" * bool(engine.base.notes()), flush=True)
        stop = partial(setattr, server, "should_exit", True)
        watching = asyncio.create_task(watch(folder, jobs.busy, linger, stop)) if linger is not None else None
        await server.serve(sockets=[listener])
        if watching:
            watching.cancel()

    # uvicorn raises the signal again after its shutdown; the default action would end the process before `finally`
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        asyncio.run(run())
    finally:
        folder.withdraw()
        jobs.close()
        engine.close()
        lab.close()
        database.close()


def _make_note(folder: Folder) -> Callable[[str], None]:
    """Make a function that says what a long start is doing: in the folder, for kernels, and in a terminal."""

    def note(doing: str) -> None:
        folder.note_start(doing)
        if sys.stdout.isatty():
            print(f"\r\x1b[K{doing[: shutil.get_terminal_size().columns - 1]}", end="\r", flush=True)

    return note


def end_process_within(seconds: float) -> None:
    """End this process after so many seconds, if it has not ended by itself.

    A thread in the middle of a long piece of work, such as a step of a large model or the rendering of a request, holds
    up the end of the process. To be killed there loses nothing: the next start goes on from what is on disk.
    """

    def end() -> None:
        print(f"the service has been stopping for {seconds:g} seconds, and ends in the middle of its work", flush=True)
        os._exit(128 + signal.SIGTERM)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _open(folder: Folder, engine: Engine, *, start_empty: bool) -> tuple[Database, Registry, Jobs]:
    database = open_service_database(folder.path)
    try:
        registry = Registry(database, folder.path, engine, start_empty=start_empty)
        return database, registry, Jobs(database, folder.path, registry, engine)
    except BaseException:
        database.close()  # a write-ahead log left beside it would be applied to a database that is restored there
        engine.close()
        raise


def _listen(address: ListenAddress, folder: Folder, port: int) -> socket.socket:
    """Listen on a port. For 0 it is that of the last start, so that OAuth grants stay valid, or else a free one."""
    try:
        listener = address.listen(port or folder.last_port())
    except InputError:
        if port:
            raise
        listener = address.listen(0)
    folder.save_port(listener.getsockname()[1])
    return listener
