"""/v1/preview/models/{id}/checkpoints/{step}/files: an adapter with its tokenizer, to be taken to another machine."""

import hashlib
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter
from fastapi import Path as InPath
from fastapi.responses import FileResponse, Response

from rolloutlab.api.wire import training as wire
from rolloutlab.api.wire.levels import LARGEST_STEP
from rolloutlab.errors import NotFoundError
from rolloutlab.policy.base import Base
from rolloutlab.policy.tokenizer_files import tokenizer_files
from rolloutlab.service.model_registry import Registry

_BYTES = "application/octet-stream"
_IN_BF16 = "--dtype=bfloat16"
Step = Annotated[int, InPath(ge=0, le=LARGEST_STEP)]


def router(registry: Registry, base: Base, *, on_this_machine: bool, **common: Any) -> APIRouter:
    """Make the router. on_this_machine: whether clients are on the service's machine, and can read its folders."""
    routes = APIRouter(prefix="/v1/preview/models", tags=["models"], **common)
    read_tokenizer_files = cache(lambda: tokenizer_files(base.tokenizer))

    @routes.get("/{model_id}/checkpoints/{step}/files", response_model_exclude_unset=True)
    def list_checkpoint_files(model_id: UUID, step: Step) -> wire.CheckpointFileList:
        files = registry.files(str(model_id), step)
        if files.elsewhere:
            return wire.CheckpointFileList(object="list", data=[], elsewhere=files.elsewhere)
        data = [
            *(_file(name, (files.folder / name).stat().st_size, digest) for name, digest in files.sums.items()),
            *(
                _file(name, len(text), hashlib.sha256(text).hexdigest())
                for name, text in read_tokenizer_files().items()
            ),
        ]
        source = base.source or base.name
        return wire.CheckpointFileList(
            object="list",
            data=data,
            base=source if on_this_machine or not Path(source).is_absolute() else base.name,
            fingerprint=base.fingerprint,
            dtype="bfloat16" if _IN_BF16 in base.bound_options else "float32",
            merged_base=base.merged,
        )

    @routes.get(
        "/{model_id}/checkpoints/{step}/files/{name}",
        response_class=FileResponse,
        responses={200: {"description": "the bytes of the file", "content": {_BYTES: {}}}},
    )
    def checkpoint_file(model_id: UUID, step: Step, name: str) -> Response:
        # a name is looked up among the files of the adapter and of the tokenizer, and never becomes part of a path
        files = registry.files(str(model_id), step)
        if name in files.sums:
            return FileResponse(files.folder / name, media_type=_BYTES)
        if files.sums and name in read_tokenizer_files():
            return Response(read_tokenizer_files()[name], media_type=_BYTES)
        raise NotFoundError(f"the checkpoint {step} of this model has no such file")

    return routes


def _file(name: str, size: int, digest: str) -> wire.CheckpointFile:
    return wire.CheckpointFile(name=name, bytes=size, sha256=digest)
