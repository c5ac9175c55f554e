"""Logprobs of existing conversations (POST /v1/preview/logprobs)."""

from collections.abc import Sequence

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.inference import TIMEOUT
from rolloutlab.api.wire.trajectories import History, LogprobsRequest, ScoredHistories
from rolloutlab.errors import NotFoundError, NotOfferedError, ServiceError
from rolloutlab.settings import Address


async def score(http: HttpClient, address: Address, model: str, histories: Sequence[History]) -> ScoredHistories:
    """POST /v1/preview/logprobs; retried when the connection breaks, as it has no side effect.

    Raises:
        ServiceError: the service has no such endpoint; and as `HttpClient.request`.
    """
    url = f"{address.base_url}/v1/preview/logprobs"
    body = LogprobsRequest(model=model, histories=list(histories)).to_json()
    try:
        token, headers = address.token, address.headers
        scored = await http.request(
            "POST", url, token=token, headers=headers, content=body, timeout=TIMEOUT, retry=True
        )
    except NotOfferedError as error:
        raise ServiceError(
            f"{address.base_url} gives no logprobs for conversations from elsewhere",
            hint="the embedded service does: start a kernel without ROLLOUTLAB_URL",
        ) from error
    except NotFoundError as error:
        raise NotFoundError(error.message, hint=f"%model {model} registers it") from error
    return ScoredHistories.model_validate(scored)
