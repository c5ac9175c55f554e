"""The training half of a service."""

from collections.abc import AsyncIterator, Sequence

from rolloutlab.http import Http
from rolloutlab.settings import Address
from rolloutlab.wire.base import Wire
from rolloutlab.wire.events import Event, EventList
from rolloutlab.wire.training import (
    Checkpoint,
    CheckpointList,
    CreateTrainingJob,
    DeleteCheckpoints,
    DeletedCheckpoints,
    Model,
    RegisterModel,
    TrainingJob,
    TrainingJobResponse,
)

_PAGE = 1000


async def register_model(http: Http, address: Address, model: RegisterModel) -> Model:
    """POST /v1/preview/models."""
    url = f"{address.base_url}/v1/preview/models"
    return Model.model_validate(
        await http.request("POST", url, token=address.token, json=model.to_wire(), retry=model.return_existing)
    )


async def checkpoints(http: Http, address: Address, model_id: str) -> list[Checkpoint]:
    """All checkpoints of a model, oldest first."""
    url = f"{address.base_url}/v1/preview/models/{model_id}/checkpoints"
    found: list[Checkpoint] = []
    more = True
    while more:
        after = {"after": found[-1].id} if found else {}
        answer = await http.request("GET", url, token=address.token, params={"limit": _PAGE, **after})
        page = CheckpointList.model_validate(answer)
        found += page.data
        more = page.has_more
    return found


async def delete_checkpoints(http: Http, address: Address, model_id: str, steps: Sequence[int]) -> DeletedCheckpoints:
    """DELETE /v1/preview/models/{id}/checkpoints; at least one checkpoint of a model stays."""
    url = f"{address.base_url}/v1/preview/models/{model_id}/checkpoints"
    body = DeleteCheckpoints(steps=list(steps)).to_wire()
    return DeletedCheckpoints.model_validate(await http.request("DELETE", url, token=address.token, json=body))


async def delete_model(http: Http, address: Address, model_id: str) -> None:
    """DELETE /v1/preview/models/{id}, with its checkpoints; its jobs end."""
    await http.request("DELETE", f"{address.base_url}/v1/preview/models/{model_id}", token=address.token)


async def create_job(http: Http, address: Address, job: CreateTrainingJob, key: str) -> str:
    """POST /v1/preview/training-jobs; the id of the job. `key` makes a repeated request the same job.

    The body is sent as it is made, a trajectory at a time.
    """
    url = f"{address.base_url}/v1/preview/training-jobs"
    headers = {"Idempotency-Key": key}
    answer = await http.request("POST", url, token=address.token, content=_pieces(job), headers=headers, patience=300.0)
    return str(TrainingJobResponse.model_validate(answer).id)


async def job(http: Http, address: Address, job_id: str, *, patience: float = 60.0, retry: bool = True) -> TrainingJob:
    """GET /v1/preview/training-jobs/{id}. patience: seconds without any byte of an answer."""
    url = f"{address.base_url}/v1/preview/training-jobs/{job_id}"
    answer = await http.request("GET", url, token=address.token, patience=patience, retry=retry)
    return TrainingJob.model_validate(answer)


async def cancel_job(http: Http, address: Address, job_id: str) -> TrainingJob:
    """POST /v1/preview/training-jobs/{id}/cancel; embedded service only."""
    url = f"{address.base_url}/v1/preview/training-jobs/{job_id}/cancel"
    return TrainingJob.model_validate(await http.request("POST", url, token=address.token, retry=True))


async def events(http: Http, address: Address, job_id: str, after: str | None = None) -> list[Event]:
    """The events of a job that came after the event with that id."""
    url = f"{address.base_url}/v1/preview/training-jobs/{job_id}/events"
    found: list[Event] = []
    more = True
    while more:
        last = found[-1].id if found else after
        params: dict[str, str | int] = {"limit": _PAGE, **({"after": last} if last else {})}
        page = EventList.model_validate(await http.request("GET", url, token=address.token, params=params))
        found += page.data
        more = page.has_more
    return found


async def _pieces(job: CreateTrainingJob) -> AsyncIterator[bytes]:
    """The JSON of a job: its head, each trajectory, and what lies between them."""
    yield _begin(job, "trajectory_groups")
    for i, group in enumerate(job.trajectory_groups):
        yield b"," * bool(i) + _begin(group, "trajectories")
        for j, trajectory in enumerate(group.trajectories):
            yield b"," * bool(j) + trajectory.to_json().encode()
        yield b"]}"
    yield b"]}"


def _begin(whole: Wire, array: str) -> bytes:
    """The JSON of an object up to the first item of an array, which comes last."""
    rest = whole.model_dump_json(by_alias=True, exclude_unset=True, exclude={array})[:-1]
    return f'{rest}{"," * (len(rest) > 1)}"{array}":['.encode()
