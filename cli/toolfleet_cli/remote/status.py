"""Asks a gateway how the fleet is doing."""

from typing import TYPE_CHECKING

from toolfleet_cli.remote.gateway import Gateway

if TYPE_CHECKING:
    from toolfleet_tasks.operations.fleet_status import FleetStatus


def status_of(gateway: Gateway) -> "FleetStatus":
    """As Redis tells it."""
    from pydantic import TypeAdapter

    from toolfleet_tasks.operations.fleet_status import FleetStatus

    return TypeAdapter(FleetStatus).validate_python(gateway.get("/operations/status"))
