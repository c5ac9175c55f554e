"""How a body is read: JSON whose text is Unicode, refused with a 4xx when it is not."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json


class StrictRequest(Request):
    """A request whose JSON has no half of a character: one could not be stored, answered or logged."""

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            try:
                self._json = from_json(body)
            except ValueError as error:
                raise json.JSONDecodeError(str(error), "", 0) from error
        return self._json


class StrictRoute(APIRoute):
    """A route that reads its requests so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly
