"""Says whether the gateway lives, and whether it is ready for requests."""

import asyncio
from collections.abc import Awaitable, Callable

from pydantic import BaseModel
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer
from toolfleet_gateway.http.problem_answers import unavailable
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest

LIVE, READY = "/livez", "/readyz"
_READY_SECONDS = 2.0


class HealthAnswer(BaseModel):
    """It is well."""

    status: str = "ok"
    """Always `ok`: else the answer is a problem."""


def health_routes(is_ready: Callable[[], Awaitable[bool]]) -> list[AnyRoute]:
    """`/livez` and `/readyz`. `is_ready` asks whether calls would get through now."""

    async def live(_: RouteRequest[None, None]) -> Response:
        return json_answer(HealthAnswer())

    async def ready(_: RouteRequest[None, None]) -> Response:
        try:
            async with asyncio.timeout(_READY_SECONDS):
                if await is_ready():
                    return json_answer(HealthAnswer())
        except TimeoutError:
            pass
        raise unavailable("The gateway is not ready: it is ending, or Redis or the broker does not answer.")

    answers = {200: Answer("It is well.", HealthAnswer)}
    return [
        Route(
            method="GET",
            path=LIVE,
            name="live",
            summary="Whether the process lives",
            handle=live,
            answers=answers,
            tag="health",
            is_public=True,
        ),
        Route(
            method="GET",
            path=READY,
            name="ready",
            summary="Whether calls would get through",
            handle=ready,
            answers=answers,
            problems=(503,),
            tag="health",
            is_public=True,
        ),
    ]
