"""A training job is handed over so that it trains once, also where the answer is lost."""

from collections.abc import Iterable

from rolloutlab.client import training
from rolloutlab.errors import (
    BrokenOffError,
    FullError,
    NotFoundError,
    RefusedError,
    RolloutlabError,
    ServiceError,
    SignInError,
    UnreachableError,
)
from rolloutlab.http import Http
from rolloutlab.settings import Address
from rolloutlab.wire.training import CreateTrainingJob
from rolloutlab.wire.trajectories import TrajectoryGroup


async def deliver(
    http: Http, address: Address, job: CreateTrainingJob, key: str, groups: Iterable[TrajectoryGroup] | None = None
) -> str:
    """The id of the job once it is accepted; `key` is a UUID. groups: as in `create_job`.

    Where the answer is lost the service is asked for the job of that key. Where it has none it is sent once more, but
    only to a service on this machine: rolloutlab's own, which takes the same key for the same job.

    Raises:
        BrokenOffError: it is not known whether it was accepted; and all that `Http.request` raises. What `groups` raise
        is raised as it is: no service accepts a job whose body did not end.
    """
    try:
        return await training.create_job(http, address, job, key, groups)
    except ServiceError as error:
        if never_arrived(error):
            raise
        why = error.message
    lost = BrokenOffError(
        f"the job {key[:8]} may have been accepted, but the answer was lost: {why}", hint=f"%job {key[:8]}"
    )
    try:
        return str((await training.job(http, address, key)).id)
    except NotFoundError as error:
        if not address.on_this_machine:
            raise lost from error
    except ServiceError as error:
        raise lost from error
    try:
        return await training.create_job(http, address, job, key, groups)
    except FullError:
        raise
    except (ServiceError, NotFoundError) as error:
        raise lost from error


def never_arrived(error: RolloutlabError) -> bool:
    """Whether it is certain, after this error, that no job was accepted."""
    if isinstance(error, UnreachableError):
        return not isinstance(error, BrokenOffError)
    return isinstance(error, RefusedError | SignInError | FullError) or not isinstance(error, ServiceError)
