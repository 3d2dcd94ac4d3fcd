"""Tells how the fleet is doing: workers, queues, modules in trouble, and what waits or has died."""

from pydantic import RootModel

from toolfleet_tasks.operations.fleet_status import FleetStatus, read_status
from toolfleet_tasks.resources.operation import OperationRequest, operation


class ShownFleetStatus(RootModel[FleetStatus]):
    """How the fleet is doing at one moment."""


@operation("GET", "/operations/status", role="viewer", answers="Workers, queues, modules in trouble.", keeps_none=True)
async def get_fleet_status(asked: OperationRequest[None, None]) -> ShownFleetStatus:
    """Return how the fleet is doing."""
    return ShownFleetStatus(await read_status(asked.settings))
