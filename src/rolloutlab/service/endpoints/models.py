"""/v1/preview/models and /v1/preview/lost-checkpoints: models, their checkpoints, and recovery of lost ones."""

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query

from rolloutlab.api.wire import training as wire
from rolloutlab.errors import InputError
from rolloutlab.service.endpoints.body import describe, reads
from rolloutlab.service.job_queue import Jobs
from rolloutlab.service.model_registry import Registry

_ID = r"^[0-9a-f-]{36}:\d{1,18}$"


def router(registry: Registry, jobs: Jobs, **common: Any) -> APIRouter:
    """Make the router of models and their checkpoints."""
    routes = APIRouter(prefix="/v1/preview/models", tags=["models"], **common)

    extra = describe(wire.RegisterModel)

    @routes.post("", response_model=wire.Model, response_model_exclude_unset=True, openapi_extra=extra)
    def register_model(body: Annotated[wire.RegisterModel, Depends(reads(wire.RegisterModel))]) -> wire.Model:
        return registry.register(body)

    @routes.delete("/{model_id}")
    def delete_model(model_id: UUID) -> wire.DeletedModel:
        jobs.delete_model(str(model_id))
        return wire.DeletedModel(id=model_id, deleted=True)

    @routes.get("/{model_id}/checkpoints", response_model=wire.CheckpointList, response_model_exclude_unset=True)
    def list_checkpoints(
        model_id: UUID,
        after: Annotated[str | None, Query(pattern=_ID)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        order: Literal["asc", "desc"] = "asc",
    ) -> wire.CheckpointList:
        model = str(registry.model(str(model_id)).id)
        checkpoints = registry.page(model, _step_of(model, after), limit + 1, order == "desc")
        page = checkpoints[:limit]
        first, last = (page[0].id, page[-1].id) if page else (None, None)
        has_more = len(checkpoints) > limit
        return wire.CheckpointList(object="list", data=page, first_id=first, last_id=last, has_more=has_more)

    @routes.delete("/{model_id}/checkpoints", openapi_extra=describe(wire.DeleteCheckpoints))
    def delete_checkpoints(
        model_id: UUID, body: Annotated[wire.DeleteCheckpoints, Depends(reads(wire.DeleteCheckpoints))]
    ) -> wire.DeletedCheckpoints:
        return registry.delete_checkpoints(str(model_id), body.steps)

    return routes


def lost_router(registry: Registry, **common: Any) -> APIRouter:
    """Make the router of checkpoints on disk that the database does not list."""
    routes = APIRouter(prefix="/v1/preview/lost-checkpoints", tags=["models"], **common)

    @routes.get("", response_model_exclude_unset=True)
    def list_lost_checkpoints() -> wire.LostCheckpointList:
        return wire.LostCheckpointList(object="list", data=registry.lost.all())

    @routes.post("/recover", response_model_exclude_unset=True)
    def recover_lost_checkpoints() -> wire.RecoveredCheckpoints:
        return registry.lost.recover()

    @routes.delete("", response_model_exclude_unset=True)
    def purge_lost_checkpoints() -> wire.LostCheckpointList:
        return wire.LostCheckpointList(object="list", data=registry.lost.purge())

    return routes


def _step_of(model_id: str, after: str | None) -> int | None:
    """Return the step in a checkpoint's id, which must be of this model."""
    if after is None:
        return None
    owner, _, step = after.partition(":")
    if owner != model_id:
        raise InputError(f"{after} is not a checkpoint of the model {model_id}", hint="the last_id of a page")
    return int(step)
