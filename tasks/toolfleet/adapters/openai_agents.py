"""Offers the fleet's tools to the OpenAI Agents SDK: `from toolfleet.adapters.openai_agents import FleetAgent, FleetTools`. Needs `toolfleet[openai-agents]`."""

from typing import TYPE_CHECKING

from toolfleet_registry.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from toolfleet_tasks.adapters.calling import WaitsForApproval
    from toolfleet_tasks.adapters.openai_agents import FleetAgent, FleetTools
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "toolfleet_tasks.adapters.calling": "WaitsForApproval",
            "toolfleet_tasks.adapters.openai_agents": "FleetAgent FleetTools",
        },
        install="toolfleet[openai-agents]",
    )

__all__ = ["FleetAgent", "FleetTools", "WaitsForApproval"]
