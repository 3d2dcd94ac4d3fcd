"""Shows how the fleet is doing: workers, queues, modules in trouble, and what waits or has died."""

from pydantic import RootModel
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_text, text_answer
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.roles import needing
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.fleet_status import FleetStatus, read_status


class ShownFleetStatus(RootModel[FleetStatus]):
    """How the fleet is doing at one moment."""


def status_routes(settings: Settings) -> list[AnyRoute]:
    """Return the routes of the whole fleet."""

    async def status(request: RouteRequest[None, None]) -> Response:
        del request
        return text_answer(json_text(ShownFleetStatus(await read_status(settings)), with_none=True))

    return [
        Route(
            method="GET",
            path="/operations/status",
            name="getFleetStatus",
            summary="How the fleet is doing; for viewers",
            handle=needing("viewer", status),
            answers={200: Answer("Workers, queues, modules in trouble.", ShownFleetStatus)},
            tag="operations",
        )
    ]
