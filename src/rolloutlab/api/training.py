"""The training half of a service."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.http.ip_scope import on_this_machine
from rolloutlab.api.inference import SELECT, not_offered
from rolloutlab.api.wire.base import Wire
from rolloutlab.api.wire.training import (
    Checkpoint,
    CheckpointList,
    CreateTrainingJob,
    DeleteCheckpoints,
    DeletedCheckpoints,
    Event,
    EventList,
    LostCheckpoint,
    LostCheckpointList,
    Model,
    RecoveredCheckpoints,
    RegisterModel,
    TrainingJob,
    TrainingJobResponse,
)
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
_AT_ONCE = 256 * 1024
"""Bytes of a job that are made together."""
_NO_LOST = "keeps no lost checkpoints"


async def register_model(http: HttpClient, address: Address, model: RegisterModel) -> Model:
    """POST /v1/preview/models."""
    body, again = model.to_wire(), model.return_existing
    does, hint = "registers no models", SELECT
    answer = await _call(http, address, "POST", "models", json=body, retry=again, lacks=does, hint=hint)
    return Model.model_validate(answer)


async def checkpoints(http: HttpClient, address: Address, model_id: str) -> list[Checkpoint]:
    """All checkpoints of a model, oldest first."""
    path = f"models/{model_id}/checkpoints"
    found: list[Checkpoint] = []
    more = True
    while more:
        after = {"after": found[-1].id} if found else {}
        params = {"limit": _PAGE, **after}
        answer = await _call(http, address, "GET", path, params=params, lacks="lists no checkpoints")
        page = CheckpointList.model_validate(answer)
        found += page.data
        more = page.has_more
    return found


async def delete_checkpoints(
    http: HttpClient, address: Address, model_id: str, steps: Sequence[int]
) -> DeletedCheckpoints:
    """DELETE /v1/preview/models/{id}/checkpoints; at least one checkpoint of a model stays."""
    body = DeleteCheckpoints(steps=list(steps)).to_wire()
    path = f"models/{model_id}/checkpoints"
    answer = await _call(http, address, "DELETE", path, json=body, lacks="deletes no checkpoints")
    return DeletedCheckpoints.model_validate(answer)


async def lost_checkpoints(http: HttpClient, address: Address) -> list[LostCheckpoint]:
    """GET /v1/preview/lost-checkpoints; none where a service knows of no such thing."""
    try:
        answer = await _call(http, address, "GET", "lost-checkpoints", retry=False, lacks=_NO_LOST)
    except NotFoundError:
        return []
    return LostCheckpointList.model_validate(answer).data


async def recover_checkpoints(http: HttpClient, address: Address) -> RecoveredCheckpoints:
    """POST /v1/preview/lost-checkpoints/recover; embedded service only."""
    answer = await _call(http, address, "POST", "lost-checkpoints/recover", patience=300.0, lacks=_NO_LOST)
    return RecoveredCheckpoints.model_validate(answer)


async def purge_checkpoints(http: HttpClient, address: Address) -> list[LostCheckpoint]:
    """DELETE /v1/preview/lost-checkpoints: what was removed; embedded service only."""
    answer = await _call(http, address, "DELETE", "lost-checkpoints", patience=300.0, retry=False, lacks=_NO_LOST)
    return LostCheckpointList.model_validate(answer).data


async def delete_model(http: HttpClient, address: Address, model_id: str) -> None:
    """DELETE /v1/preview/models/{id}, with its checkpoints; its jobs end."""
    await _call(http, address, "DELETE", f"models/{model_id}", lacks="deletes no models")


async def create_job(
    http: HttpClient,
    address: Address,
    job: CreateTrainingJob,
    key: str,
    groups: Iterable[TrajectoryGroup] | None = None,
) -> str:
    """POST /v1/preview/training-jobs; the id of the job. `key` makes a repeated request the same job.

    groups: what is sent in the place of the job's own, from their beginning each time; what they raise is raised here.
    The body is sent as it is made, some trajectories at a time. The penalty on the change of logprobs is sent under
    both of its names: services read the one or the other.
    """
    sent = job.trajectory_groups if groups is None else groups
    headers, body = {"Idempotency-Key": key}, partial(_body, _under_both_names(job), sent)
    answer = await _call(
        http,
        address,
        "POST",
        "training-jobs",
        content=body,
        headers=headers,
        patience=300.0,
        lacks="trains no models",
    )
    return str(TrainingJobResponse.model_validate(answer).id)


async def job(
    http: HttpClient, address: Address, job_id: str, *, patience: float = 60.0, retry: bool = True
) -> TrainingJob:
    """GET /v1/preview/training-jobs/{id}. patience: seconds without any byte of an answer."""
    path = f"training-jobs/{job_id}"
    answer = await _call(http, address, "GET", path, patience=patience, retry=retry, lacks="shows no jobs")
    return TrainingJob.model_validate(answer)


async def cancel_job(http: HttpClient, address: Address, job_id: str) -> TrainingJob:
    """POST /v1/preview/training-jobs/{id}/cancel; embedded service only."""
    path = f"training-jobs/{job_id}/cancel"
    answer = await _call(http, address, "POST", path, retry=True, lacks="cancels no jobs")
    return TrainingJob.model_validate(answer)


async def events(http: HttpClient, address: Address, job_id: str, after: str | None = None) -> list[Event]:
    """The events of a job that came after the event with that id."""
    path = f"training-jobs/{job_id}/events"
    found: list[Event] = []
    more = True
    while more:
        last = found[-1].id if found else after
        params: dict[str, str | int] = {"limit": _PAGE, **({"after": last} if last else {})}
        answer = await _call(http, address, "GET", path, params=params, lacks="reports no events of jobs")
        page = EventList.model_validate(answer)
        found += page.data
        more = page.has_more
    return found


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
    """One request to the training half, with the token and the project of the address.

    Raises:
        NotOfferedError: the service has no such endpoint: it `lacks` that; and all that `Http.request` raises.
    """
    url, headers = f"{address.base_url}/v1/preview/{path}", {**address.headers, **(headers or {})}
    try:
        return await http.request(method, url, token=address.token, headers=headers, **options)
    except NotOfferedError as error:
        raise not_offered(error, f"{address.base_url} {lacks}", hint) from error


def _under_both_names(job: CreateTrainingJob) -> CreateTrainingJob:
    config = job.experimental_config
    if config is None or config.vendor_k2_tau is None:
        return job
    both = config.model_copy(update={"kimi_k2_tau": config.vendor_k2_tau})
    return job.model_copy(update={"experimental_config": both})


async def _body(job: CreateTrainingJob, groups: Iterable[TrajectoryGroup]) -> AsyncIterator[bytes]:
    """The JSON of a job, some pieces at a time; they are made in a thread, as its groups may be read from a disk."""
    pieces = _pieces(job, groups)
    while some := await asyncio.to_thread(_some, pieces):
        yield some


def _some(pieces: Iterator[bytes]) -> bytes:
    """The next pieces together, about `_AT_ONCE` bytes; none at their end."""
    some = bytearray()
    for piece in pieces:
        some += piece
        if len(some) >= _AT_ONCE:
            break
    return bytes(some)


def _pieces(job: CreateTrainingJob, groups: Iterable[TrajectoryGroup]) -> Iterator[bytes]:
    """The JSON of a job: its head, each trajectory, and what lies between them."""
    yield _begin(job, "trajectory_groups")
    for i, group in enumerate(groups):
        yield b"," * bool(i) + _begin(group, "trajectories")
        for j, trajectory in enumerate(group.trajectories):
            yield b"," * bool(j) + trajectory.to_json().encode()
        yield b"]}"
    yield b"]}"


def _begin(whole: Wire, array: str) -> bytes:
    """The JSON of an object up to the first item of an array, which comes last."""
    rest = whole.model_dump_json(by_alias=True, exclude_unset=True, exclude={array})[:-1]
    return f'{rest}{"," * (len(rest) > 1)}"{array}":['.encode()


async def deliver(
    http: HttpClient,
    address: Address,
    body: CreateTrainingJob,
    key: str,
    groups: Iterable[TrajectoryGroup] | None = None,
) -> str:
    """The id of the job once it is accepted; `key` is a UUID. groups: as in `create_job`.

    Where the answer is lost the service is asked for the job of that key. Where it has none it is sent once more, but
    only to a service on this machine: rolloutlab's own, which takes the same key for the same job.

    Raises:
        BrokenOffError: it is not known whether it was accepted; and all that `Http.request` raises. What `groups` raise
        is raised as it is: no service accepts a job whose body did not end.
    """
    try:
        return await create_job(http, address, body, key, groups)
    except ServiceError as error:
        if never_arrived(error):
            raise
        why = error.message
    lost = BrokenOffError(
        f"the job {key[:8]} may have been accepted, but the answer was lost: {why}", hint=f"%job {key[:8]}"
    )
    try:
        return str((await job(http, address, key)).id)
    except NotFoundError as error:
        if not on_this_machine(address.base_url):
            raise lost from error
    except ServiceError as error:
        raise lost from error
    try:
        return await create_job(http, address, body, key, groups)
    except FullError:
        raise
    except (ServiceError, NotFoundError) as error:
        raise lost from error


def never_arrived(error: RolloutlabError) -> bool:
    """Whether it is certain, after this error, that no job was accepted."""
    if isinstance(error, UnreachableError):
        return not isinstance(error, BrokenOffError)
    return isinstance(error, RefusedError | SignInError | FullError) or not isinstance(error, ServiceError)
