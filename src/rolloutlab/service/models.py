"""/v1/preview/models: register models, list their checkpoints."""

from uuid import UUID

from fastapi import APIRouter, Query

from rolloutlab.service.body import StrictRoute
from rolloutlab.service.registry import Registry
from rolloutlab.wire.training import CheckpointList, Model, RegisterModel


def router(registry: Registry) -> APIRouter:
    """The models of the training half of the service."""
    routes = APIRouter(route_class=StrictRoute, prefix="/v1/preview/models", tags=["models"])

    @routes.post("", response_model=Model, response_model_exclude_unset=True)
    def register_model(body: RegisterModel) -> Model:
        return registry.register(body)

    @routes.get("/{model_id}/checkpoints", response_model=CheckpointList, response_model_exclude_unset=True)
    def list_checkpoints(
        model_id: UUID,
        after: str | None = None,
        limit: int = Query(default=100, ge=1, le=1000),
        order: str = Query(default="asc", pattern="^(asc|desc)$"),
    ) -> CheckpointList:
        found = registry.checkpoints(str(registry.model(str(model_id)).id))
        if order == "desc":
            found.reverse()
        ids = [checkpoint.id for checkpoint in found]
        rest = found[ids.index(after) + 1 :] if after in ids else found
        page = rest[:limit]
        return CheckpointList(
            object="list",
            data=page,
            first_id=page[0].id if page else None,
            last_id=page[-1].id if page else None,
            has_more=len(rest) > limit,
        )

    return routes
