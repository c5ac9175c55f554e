"""Training API of a service: models, checkpoints, jobs and their events."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import Any
from urllib.parse import quote

from rolloutlab.api.answers import parse_answer
from rolloutlab.api.dialect import Dialect, dialect_of
from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.http.ip_scope import on_this_machine
from rolloutlab.api.inference import SELECT
from rolloutlab.api.wire import fine_tuning
from rolloutlab.api.wire import training as wire
from rolloutlab.api.wire.base import Wire
from rolloutlab.api.wire.trajectories import TrajectoryGroup
from rolloutlab.errors import (
    BrokenOffError,
    FullError,
    NotFoundError,
    NotOfferedError,
    RefusedError,
    RolloutlabError,
    ServiceError,
    SignInError,
    UnreachableError,
)
from rolloutlab.settings import Address

_PAGE = 1000
_CHUNK_BYTES = 256 * 1024
_NO_LOST = "keeps no lost checkpoints"
_NO_FILES = "hands out no files of checkpoints"
_OF_SERVICE = "download it where that service keeps its checkpoints, or update the rolloutlab that serves it"


async def register_model(http: HttpClient, address: Address, model: wire.RegisterModel) -> wire.Model:
    """POST /v1/preview/models."""
    dialect = dialect_of(address)
    body, again = dialect.registration(address, model), model.return_existing and dialect.repeats
    lacks, hint = "registers no models", SELECT
    answer = await _call(http, address, "POST", "models", json=body, retry=again, lacks=lacks, hint=hint)
    return parse_answer(wire.Model, answer)


async def checkpoints(http: HttpClient, address: Address, model_id: str) -> list[wire.Checkpoint]:
    """Return all checkpoints of a model, oldest first."""
    path = f"models/{model_id}/checkpoints"
    return await _read_pages(http, address, path, wire.CheckpointList, lacks="lists no checkpoints")


async def delete_checkpoints(
    http: HttpClient, address: Address, model_id: str, steps: Sequence[int]
) -> wire.DeletedCheckpoints:
    """DELETE /v1/preview/models/{id}/checkpoints; at least one checkpoint of a model stays."""
    body = wire.DeleteCheckpoints(steps=list(steps)).to_wire()
    path = f"models/{model_id}/checkpoints"
    answer = await _call(http, address, "DELETE", path, json=body, lacks="deletes no checkpoints")
    return parse_answer(wire.DeletedCheckpoints, answer)


async def checkpoint_files(http: HttpClient, address: Address, model_id: str, step: int) -> wire.CheckpointFileList:
    """GET /v1/preview/models/{id}/checkpoints/{step}/files; rolloutlab's own services only.

    Raises:
        NotOfferedError: the service hands out no files, or its engine keeps the adapter elsewhere.
    """
    path = f"models/{model_id}/checkpoints/{step}/files"
    answer = await _call(http, address, "GET", path, lacks=_NO_FILES, hint=_OF_SERVICE)
    listed = parse_answer(wire.CheckpointFileList, answer)
    if listed.elsewhere:
        raise NotOfferedError(f"{address.base_url} {_NO_FILES}", hint=listed.elsewhere)
    return listed


async def save_checkpoint_file(
    http: HttpClient, address: Address, model_id: str, step: int, name: str, write: Callable[[bytes], object]
) -> None:
    """GET /v1/preview/models/{id}/checkpoints/{step}/files/{name}.

    Args:
        http: Sends the request.
        address: The service.
        model_id: The id of the model.
        step: The checkpoint.
        name: The name of the file.
        write: Called with each part of the file.
    """
    url = f"{address.base_url}/v1/preview/models/{model_id}/checkpoints/{step}/files/{quote(name, safe='')}"
    async for part in http.download(url, token=address.token, headers=address.headers):
        write(part)


async def lost_checkpoints(http: HttpClient, address: Address) -> list[wire.LostCheckpoint]:
    """GET /v1/preview/lost-checkpoints; empty where a service has no such endpoint."""
    try:
        answer = await _call(http, address, "GET", "lost-checkpoints", retry=False, lacks=_NO_LOST)
    except NotFoundError:
        return []
    return parse_answer(wire.LostCheckpointList, answer).data


async def recover_checkpoints(http: HttpClient, address: Address) -> wire.RecoveredCheckpoints:
    """POST /v1/preview/lost-checkpoints/recover; embedded service only."""
    answer = await _call(http, address, "POST", "lost-checkpoints/recover", timeout=300.0, lacks=_NO_LOST)
    return parse_answer(wire.RecoveredCheckpoints, answer)


async def purge_checkpoints(http: HttpClient, address: Address) -> list[wire.LostCheckpoint]:
    """DELETE /v1/preview/lost-checkpoints, and return what was removed; embedded service only."""
    answer = await _call(http, address, "DELETE", "lost-checkpoints", timeout=300.0, retry=False, lacks=_NO_LOST)
    return parse_answer(wire.LostCheckpointList, answer).data


async def delete_model(http: HttpClient, address: Address, model_id: str) -> None:
    """DELETE /v1/preview/models/{id}, with its checkpoints; its jobs end."""
    await _call(http, address, "DELETE", f"models/{model_id}", lacks="deletes no models")


async def create_job(
    http: HttpClient,
    address: Address,
    job: wire.CreateTrainingJob,
    key: str,
    groups: Iterable[TrajectoryGroup] | None = None,
) -> str:
    """POST /v1/preview/training-jobs; return the id of the job.

    The body is streamed while it is made, in the dialect of the service.

    Args:
        http: Sends the request.
        address: The service.
        job: The job.
        key: The idempotency key: a repeated request with it is the same job.
        groups: Groups to send instead of the job's own; iterated again for each try, and their exceptions are raised
            here.
    """
    sent = job.trajectory_groups if groups is None else groups
    dialect = dialect_of(address)
    headers, body = {"Idempotency-Key": key}, partial(_body, dialect.job(job), sent, dialect)
    answer = await _call(
        http, address, "POST", "training-jobs", content=body, headers=headers, timeout=300.0, lacks="trains no models"
    )
    return str(parse_answer(wire.TrainingJobResponse, answer).id)


async def upload(
    http: HttpClient, address: Address, lines: Iterable[bytes], *, dry_run: bool = False
) -> fine_tuning.UploadedFile:
    """POST /v1/preview/files: lines of fine-tuning data, iterated again for each try; embedded service only.

    dry_run: have the service read and report them, and keep nothing.
    """
    path, body = "files?dry_run=true" if dry_run else "files", partial(_chunk, lines)
    answer = await _call(
        http, address, "POST", path, content=body, retry=True, timeout=3600.0, lacks="takes no fine-tuning data"
    )
    return parse_answer(fine_tuning.UploadedFile, answer)


async def create_sft_job(http: HttpClient, address: Address, job: fine_tuning.CreateSFTTrainingJob, key: str) -> str:
    """POST /v1/preview/sft-training-jobs; return the id of the job. key: as in `create_job`."""
    body, headers = job.to_wire(), {"Idempotency-Key": key}
    answer = await _call(
        http,
        address,
        "POST",
        "sft-training-jobs",
        json=body,
        headers=headers,
        timeout=300.0,
        lacks="fine-tunes nothing",
    )
    return str(parse_answer(wire.TrainingJobResponse, answer).id)


async def job(
    http: HttpClient, address: Address, job_id: str, *, timeout: float = 60.0, retry: bool = True
) -> wire.TrainingJob:
    """GET /v1/preview/training-jobs/{id}.

    Args:
        http: Sends the request.
        address: The service.
        job_id: The id of the job.
        timeout: The largest number of seconds without a byte of the response.
        retry: Whether to try again if that can help.
    """
    path = f"training-jobs/{job_id}"
    answer = await _call(http, address, "GET", path, timeout=timeout, retry=retry, lacks="shows no jobs")
    return parse_answer(wire.TrainingJob, answer)


async def cancel_job(http: HttpClient, address: Address, job_id: str) -> wire.TrainingJob:
    """POST /v1/preview/training-jobs/{id}/cancel; embedded service only."""
    path = f"training-jobs/{job_id}/cancel"
    answer = await _call(http, address, "POST", path, retry=True, lacks="cancels no jobs")
    return parse_answer(wire.TrainingJob, answer)


async def events(http: HttpClient, address: Address, job_id: str, after: str | None = None) -> list[wire.Event]:
    """Return the events of a job after the one with the id `after`."""
    path = f"training-jobs/{job_id}/events"
    return await _read_pages(http, address, path, wire.EventList, after, lacks="reports no events of jobs")


async def _read_pages(
    http: HttpClient, address: Address, path: str, kind: type[Any], after: str | None = None, *, lacks: str
) -> list[Any]:
    """Read the items of every page of a list, after the one with the id `after`."""
    dialect = dialect_of(address)
    listed: list[Any] = []
    more = True
    while more:
        last = listed[-1].id if listed else after
        params: dict[str, str | int] = {"limit": _PAGE} if dialect.has_limits else {}
        params |= {"after": last} if last else {}
        answer = await _call(http, address, "GET", path, params=params, lacks=lacks)
        page = parse_answer(kind, dialect.page(answer))
        if not page.data or (
            listed and page.data[-1].id == last
        ):  # it ignores `after`, and would send this page for ever
            break
        listed += page.data
        more = page.has_more
    return listed


async def _call(
    http: HttpClient,
    address: Address,
    method: str,
    path: str,
    *,
    lacks: str,
    hint: str | None = None,
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> Any:
    """Send one request to the training API. lacks: the message of NotOfferedError, if there is no such endpoint."""
    url, headers = f"{address.base_url}/v1/preview/{path}", {**address.headers, **(headers or {})}
    dialect = dialect_of(address)
    if not dialect.has(method, path):
        raise NotOfferedError(f"{address.base_url} {lacks}", hint=hint)
    if not dialect.repeats:
        headers.pop("Idempotency-Key", None)  # a repeated request makes another job there
    try:
        return await http.request(method, url, token=address.token, headers=headers, **options)
    except NotOfferedError as error:
        raise NotOfferedError(f"{address.base_url} {lacks}", hint=hint, status=error.status) from error


async def _body(
    job: wire.CreateTrainingJob, groups: Iterable[TrajectoryGroup], dialect: Dialect
) -> AsyncIterator[bytes]:
    """Yield the JSON of a job in chunks."""
    async for chunk in _chunk(_pieces(job, groups, dialect)):
        yield chunk


async def _chunk(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield a body in chunks. They are made in a thread, as the parts may be read from a disk."""
    pieces = iter(parts)
    while chunk := await asyncio.to_thread(_next_chunk, pieces):
        yield chunk


def _next_chunk(pieces: Iterator[bytes]) -> bytes:
    """Join the next pieces, about `_CHUNK_BYTES` of them; empty at the end."""
    chunk = bytearray()
    for piece in pieces:
        chunk += piece
        if len(chunk) >= _CHUNK_BYTES:
            break
    return bytes(chunk)


def _pieces(job: wire.CreateTrainingJob, groups: Iterable[TrajectoryGroup], dialect: Dialect) -> Iterator[bytes]:
    """Yield the JSON of a job: its head, each trajectory, and the separators."""
    yield _begin(job, "trajectory_groups")
    for i, group in enumerate(groups):
        yield b"," * bool(i) + _begin(group, "trajectories")
        for j, trajectory in enumerate(group.trajectories):
            yield b"," * bool(j) + dialect.trajectory(trajectory)
        yield dialect.group_end
    yield b"]}"


def _begin(whole: Wire, array: str) -> bytes:
    """Write the JSON of an object up to the first item of an array, which becomes its last member."""
    rest = whole.model_dump_json(by_alias=True, exclude_unset=True, exclude={array})[:-1]
    return f'{rest}{"," * (len(rest) > 1)}"{array}":['.encode()


async def deliver(
    http: HttpClient,
    address: Address,
    body: wire.CreateTrainingJob,
    key: str,
    groups: Iterable[TrajectoryGroup] | None = None,
) -> str:
    """Create a job exactly once, as `create_once` does.

    Args:
        http: Sends the requests.
        address: The service.
        body: The job.
        key: The idempotency key.
        groups: As in `create_job`.
    """
    return await create_once(http, address, key, partial(create_job, http, address, body, key, groups))


async def create_once(http: HttpClient, address: Address, key: str, create: Callable[[], Awaitable[str]]) -> str:
    """Create a job exactly once, even if a response is lost, and return its id.

    After a lost response the job is looked up by its key. If it is not there, it is sent again, but only to
    rolloutlab's own service on this machine: that service creates one job per key. Its health check shows whose it is.

    key: a UUID, which `create` sends.

    Raises:
        BrokenOffError: it is unknown whether the job was accepted. Other errors are those of `create`.
    """
    try:
        return await create()
    except ServiceError as error:
        if never_arrived(error):
            raise
        message = f"the job {key[:8]} may have been accepted, but the response was lost: {error.message}"
    lost = BrokenOffError(message, hint=f"%job {key[:8]}")
    try:
        return str((await job(http, address, key)).id)
    except NotFoundError as error:
        if isinstance(error, NotOfferedError) or not await _is_rolloutlab(http, address):
            raise lost from error
    except ServiceError as error:
        raise lost from error
    try:
        return await create()
    except FullError:
        raise
    except (ServiceError, NotFoundError) as error:
        raise lost from error


async def _is_rolloutlab(http: HttpClient, address: Address) -> bool:
    if not on_this_machine(address.base_url):
        return False
    try:
        health = await http.request("GET", f"{address.base_url}/v1/health", params={"nonce": token_hex(16)})
    except RolloutlabError:
        return False
    return isinstance(health, Mapping) and "proof" in health


def never_arrived(error: RolloutlabError) -> bool:
    """Whether this error means for certain that no job was accepted."""
    if isinstance(error, UnreachableError):
        return not isinstance(error, BrokenOffError)
    return isinstance(error, RefusedError | SignInError | FullError) or not isinstance(error, ServiceError)
