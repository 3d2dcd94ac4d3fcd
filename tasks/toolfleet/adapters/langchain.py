"""Offers the fleet's tools to LangChain and LangGraph: `from toolfleet.adapters.langchain import FleetMiddleware`. Needs `toolfleet[langchain]`."""

from typing import TYPE_CHECKING

from toolfleet_registry.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from toolfleet_tasks.adapters.langchain import FleetMiddleware
else:
    __getattr__ = lazy_names(
        __name__, {"toolfleet_tasks.adapters.langchain": "FleetMiddleware"}, install="toolfleet[langchain]"
    )

__all__ = ["FleetMiddleware"]
