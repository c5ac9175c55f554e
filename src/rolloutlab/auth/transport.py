"""The flow's requests, sent: no redirect is followed, little is read, and only where its server may lead us."""

from dataclasses import dataclass

from rolloutlab.auth.addresses import host
from rolloutlab.auth.messages import Flow, Response, T
from rolloutlab.auth.reach import Reach, allows, reach_of_all
from rolloutlab.errors import SignInError
from rolloutlab.untrusted import addresses, fetch

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
                answer = await fetch(
                    request.method,
                    request.url,
                    headers=request.headers,
                    content=request.body,
                    reachable=lambda address: allows(self.reach, address),
                    most=_MOST,
                    patience=_PATIENCE,
                )
                request = flow.send(Response(answer.status, answer.headers, answer.body))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            flow.close()


async def transport_for(server: str) -> Transport:
    """How to ask on behalf of a server: no further into private networks than the server is itself."""
    reach = reach_of_all(await addresses(server))
    if reach is None:
        raise SignInError(f"{host(server)} is at an address where no server can be")
    return Transport(reach)
