"""Offers the fleet's tools to Claude's agent SDK: `from toolfleet.adapters.claude import fleet_server`. Needs `toolfleet[claude]`."""

from typing import TYPE_CHECKING

from toolfleet_registry.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from toolfleet_tasks.adapters.claude import FleetServer, FleetSession, fleet_server
else:
    __getattr__ = lazy_names(
        __name__,
        {"toolfleet_tasks.adapters.claude": "FleetServer FleetSession fleet_server"},
        install="toolfleet[claude]",
    )

__all__ = ["FleetServer", "FleetSession", "fleet_server"]
