"""Offers the fleet's tools to Pydantic AI: `from toolfleet.adapters.pydantic_ai import FleetToolset`. Needs `toolfleet[pydantic-ai]`."""

from typing import TYPE_CHECKING

from toolfleet_registry.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from toolfleet_tasks.adapters.pydantic_ai import FleetToolset, ToolProgress
else:
    __getattr__ = lazy_names(
        __name__,
        {"toolfleet_tasks.adapters.pydantic_ai": "FleetToolset ToolProgress"},
        install="toolfleet[pydantic-ai]",
    )

__all__ = ["FleetToolset", "ToolProgress"]
