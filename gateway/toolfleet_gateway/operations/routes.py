"""Lists the routes for viewers, operators and admins."""

from toolfleet_gateway.http.routes import AnyRoute
from toolfleet_gateway.operations.resource_routes import resource_routes
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.operations.calls.call_index import CallIndex


def operation_routes(fleet: ToolFleet, settings: Settings, calls: CallIndex) -> list[AnyRoute]:
    """Return the routes below `/operations`: reading needs the role `viewer`, changing `operator`, and keys and agents `admin`."""
    return [
        *resource_routes(fleet, settings, calls),
    ]
