"""/v1/preview/files and /v1/preview/sft-training-jobs: upload fine-tuning data, and create jobs on it.

A job's events, status and cancellation are those of `/v1/preview/training-jobs`.
"""

import hashlib
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Request
from starlette.concurrency import run_in_threadpool

from rolloutlab.api.wire.errors import ValidationError
from rolloutlab.api.wire.fine_tuning import CreateSFTTrainingJob, SFTTrainingConfig, UploadedFile
from rolloutlab.api.wire.training import TrainingJobResponse
from rolloutlab.policy.base import Base
from rolloutlab.policy.fine_tuning import read_conversations
from rolloutlab.service.endpoints import sft_upload
from rolloutlab.service.endpoints.body import InvalidBodyError, describe, reads, spool
from rolloutlab.service.job_queue import Jobs
from rolloutlab.service.uploaded_files import FileSize

_MAX_NAMES = 20
"""Names of conversations that are listed for a reason."""
_LINES = {"requestBody": {"required": True, "content": {"application/jsonl": {"schema": {"type": "string"}}}}}


def router(base: Base, jobs: Jobs, **common: Any) -> APIRouter:
    routes = APIRouter(prefix="/v1/preview", tags=["fine-tuning"], **common)

    @routes.post("/files", response_model=UploadedFile, response_model_exclude_unset=True, openapi_extra=_LINES)
    async def upload_file(request: Request, dry_run: bool = False) -> UploadedFile:
        """JSON Lines of conversations; with `dry_run` they are read and reported, and not kept."""
        with jobs.bodies.draft() as draft:
            await spool(request, draft)
            report = await run_in_threadpool(_report, draft, base)
            kept: dict[str, Any] = {}
            if not dry_run:
                size = FileSize(report["trainable"], report["rows"])
                file_id, url, expires_at = await run_in_threadpool(jobs.files.keep, draft, size)
                kept = {"id": UUID(file_id), "url": url, "expires_at": expires_at}
        return UploadedFile(object="file", **kept, **report)

    @routes.post("/sft-training-jobs", openapi_extra=describe(CreateSFTTrainingJob))
    def create_sft_training_job(
        body: Annotated[CreateSFTTrainingJob, Depends(reads(CreateSFTTrainingJob))],
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> TrainingJobResponse:
        digest = hashlib.sha256(body.to_json().encode()).hexdigest()
        if present := jobs.find_by_key(idempotency_key, digest):  # it has a copy of data that may have expired
            return TrainingJobResponse(id=UUID(present))
        data = jobs.files.path(body.training_data_url)
        if data is None:
            raise _not_issued()
        with jobs.bodies.draft() as draft:
            try:
                if body.config and isinstance(body.config.learning_rate, list):
                    _check_rates(body.config, jobs.files.size(data) or _size(data, base))
                sft_upload.write(body, data, draft)
            except FileNotFoundError as error:
                if data.exists():  # the draft's folder is missing
                    raise
                raise _not_issued() from error  # it has expired meanwhile
            return TrainingJobResponse(id=UUID(jobs.create(draft, digest, idempotency_key, body)))

    return routes


def _not_issued() -> InvalidBodyError:
    message = "not a URL of POST /v1/preview/files, or expired; no other URL is fetched"
    return InvalidBodyError([ValidationError(loc=["body", "training_data_url"], msg=message, type="url")])


def _size(data: Path, base: Base) -> FileSize:
    read = read_conversations(sft_upload.conversations(data), base)
    return FileSize(len(read.sequences), len(read.steps(base)))


def _check_rates(config: SFTTrainingConfig, size: FileSize) -> None:
    """InvalidBodyError where there are fewer learning rates than the job has gradient steps."""
    steps = config.steps(*size)
    if lack := config.lacks_rates(steps):
        error = ValidationError(
            loc=["body", "config", "learning_rate"], msg=f"{lack}: one number, or {steps} of them", type="too_short"
        )
        raise InvalidBodyError([error])


def _report(draft: Path, base: Base) -> dict[str, Any]:
    """What a job on a file would learn. InvalidBodyError: it has no conversation, or a line is none."""
    read = read_conversations(sft_upload.conversations(draft), base)
    if not read.number:
        message = 'no conversation; a line is {"messages": [...]}'
        raise InvalidBodyError([ValidationError(loc=["body"], msg=message, type="too_short")])
    return {
        "bytes": draft.stat().st_size,
        "conversations": read.number,
        "trainable": len(read.sequences),
        "tokens": read.tokens,
        "rows": len(read.steps(base)),
        "reasons": {str(reason): len(names) for reason, names in read.skipped.items()},
        "skipped": {str(reason): _some(names) for reason, names in read.skipped.items()},
        "unreadable": {what: _some(names) for what, names in read.unreadable.items()},
        "warnings": read.warnings[:_MAX_NAMES],
    }


def _some(names: list[str]) -> list[str]:
    return names[:_MAX_NAMES]
