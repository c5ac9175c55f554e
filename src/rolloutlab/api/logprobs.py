"""What a service thinks of conversations that exist already."""

from collections.abc import Sequence

from rolloutlab.api.http.client import HttpClient
from rolloutlab.api.wire.trajectories import History, LogprobsRequest, ScoredHistories
from rolloutlab.errors import NotFoundError, NotOfferedError, ServiceError
from rolloutlab.settings import Address

_LONGEST_ANSWER = 600.0


async def score(http: HttpClient, address: Address, model: str, histories: Sequence[History]) -> ScoredHistories:
    """POST /v1/preview/logprobs; tried again when the connection breaks: it has no effect.

    Raises:
        ServiceError: the service has no such endpoint; and all that `Http.request` raises.
    """
    url = f"{address.base_url}/v1/preview/logprobs"
    body = LogprobsRequest(model=model, histories=list(histories)).to_json()
    try:
        answer = await http.request(
            "POST",
            url,
            token=address.token,
            headers=address.headers,
            content=body,
            patience=_LONGEST_ANSWER,
            retry=True,
        )
    except NotOfferedError as error:
        raise ServiceError(
            f"{address.base_url} gives no logprobs for conversations from elsewhere",
            hint="the embedded service does: start a kernel without ROLLOUTLAB_URL",
        ) from error
    except NotFoundError as error:
        raise NotFoundError(error.message, hint=f"%model {model} registers it") from error
    return ScoredHistories.model_validate(answer)
