"""The flow's requests, sent: no redirect is followed, little is read, and only where its server may lead us."""

from dataclasses import dataclass

from rolloutlab.auth.addresses import host
from rolloutlab.auth.challenges import Challenge, bearer
from rolloutlab.auth.messages import Flow, Request, Response, T
from rolloutlab.errors import ServiceError, SignInError
from rolloutlab.reach import Reach, allows, reach_of_all
from rolloutlab.untrusted import Fetched, fetch

_MOST = 1 << 20
"""Bytes of an answer."""
_PATIENCE = 20.0
"""Seconds of an answer as a whole."""


@dataclass(frozen=True)
class Transport:
    """Sends what a flow asks for, on behalf of a server in some network."""

    reach: Reach

    async def run(self, flow: Flow[T]) -> T:
        """What comes of a flow.

        Raises:
            UnreachableError: nothing answers, or where nobody may be asked. ServiceError: an answer has no end.
        """
        try:
            request = next(flow)
            while True:
                try:
                    answer = await _sent(request, self.reach)
                except ServiceError as error:
                    request = flow.throw(error)  # the flow may know another place to ask
                else:
                    request = flow.send(Response(answer.status, answer.headers, answer.body))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            flow.close()


async def met(server: str) -> tuple[Transport, Challenge | None]:
    """How to ask on behalf of a server, and its challenge to somebody without a token, None where it gives none.

    It leads no further into private networks than it is itself: at the address that it has answered from, which another
    look at its name need not give.
    """
    answer = await _sent(Request("GET", server, {"Accept": "application/json, text/event-stream"}), Reach.LOOPBACK)
    reach = reach_of_all(answer.addresses)
    if reach is None:
        raise SignInError(f"{host(server)} is at an address where no server can be")
    told = Response(answer.status, answer.headers)
    return Transport(reach), bearer(told.values("WWW-Authenticate")) if answer.status == 401 else None


async def _sent(request: Request, reach: Reach) -> Fetched:
    return await fetch(
        request.method,
        request.url,
        headers=request.headers,
        content=request.body,
        reachable=lambda address: allows(reach, address),
        most=_MOST,
        patience=_PATIENCE,
    )
