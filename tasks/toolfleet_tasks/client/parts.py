"""Imports the parts of `ToolFleet` when the first fleet is made: Redis and all that needs it are most of an agent's import."""

from typing import TYPE_CHECKING

from toolfleet_registry.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from toolfleet_registry.formats import as_spoken, tools_to_openai_format
    from toolfleet_tasks.approvals.waiting import decided
    from toolfleet_tasks.calls.eval_gate import NOTHING_MORE, Circumstances
    from toolfleet_tasks.calls.idempotency import end_of, handle_of
    from toolfleet_tasks.client.canvas import CanvasApp, FleetCanvas, SyncFleetCanvas
    from toolfleet_tasks.client.dead_letters import FleetDeadLetters, SyncFleetDeadLetters
    from toolfleet_tasks.client.jobs import FleetHooks, FleetJobs, FleetWakeups, SyncFleetJobs, SyncFleetWakeups
    from toolfleet_tasks.client.listeners import listening
    from toolfleet_tasks.client.namespaces import (
        FleetApprovals,
        FleetBegunCalls,
        FleetModules,
        FleetQueues,
        SyncCallHandle,
        SyncFleetApprovals,
        SyncFleetModules,
        SyncFleetQueues,
    )
    from toolfleet_tasks.client.session import Sessions
    from toolfleet_tasks.operations.process_metrics import AgentMetrics
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "NOTHING_MORE": "toolfleet_tasks.calls.eval_gate",
            "AgentMetrics": "toolfleet_tasks.operations.process_metrics",
            "CanvasApp": "toolfleet_tasks.client.canvas",
            "Circumstances": "toolfleet_tasks.calls.eval_gate",
            "FleetApprovals": "toolfleet_tasks.client.namespaces",
            "FleetBegunCalls": "toolfleet_tasks.client.namespaces",
            "FleetCanvas": "toolfleet_tasks.client.canvas",
            "FleetDeadLetters": "toolfleet_tasks.client.dead_letters",
            "FleetHooks": "toolfleet_tasks.client.jobs",
            "FleetJobs": "toolfleet_tasks.client.jobs",
            "FleetModules": "toolfleet_tasks.client.namespaces",
            "FleetQueues": "toolfleet_tasks.client.namespaces",
            "FleetWakeups": "toolfleet_tasks.client.jobs",
            "Sessions": "toolfleet_tasks.client.session",
            "SyncCallHandle": "toolfleet_tasks.client.namespaces",
            "SyncFleetApprovals": "toolfleet_tasks.client.namespaces",
            "SyncFleetCanvas": "toolfleet_tasks.client.canvas",
            "SyncFleetDeadLetters": "toolfleet_tasks.client.dead_letters",
            "SyncFleetJobs": "toolfleet_tasks.client.jobs",
            "SyncFleetModules": "toolfleet_tasks.client.namespaces",
            "SyncFleetQueues": "toolfleet_tasks.client.namespaces",
            "SyncFleetWakeups": "toolfleet_tasks.client.jobs",
            "as_spoken": "toolfleet_registry.formats",
            "decided": "toolfleet_tasks.approvals.waiting",
            "end_of": "toolfleet_tasks.calls.idempotency",
            "handle_of": "toolfleet_tasks.calls.idempotency",
            "listening": "toolfleet_tasks.client.listeners",
            "tools_to_openai_format": "toolfleet_registry.formats",
        },
        install="toolfleet",
    )

__all__ = [
    "NOTHING_MORE",
    "AgentMetrics",
    "CanvasApp",
    "Circumstances",
    "FleetApprovals",
    "FleetBegunCalls",
    "FleetCanvas",
    "FleetDeadLetters",
    "FleetHooks",
    "FleetJobs",
    "FleetModules",
    "FleetQueues",
    "FleetWakeups",
    "Sessions",
    "SyncCallHandle",
    "SyncFleetApprovals",
    "SyncFleetCanvas",
    "SyncFleetDeadLetters",
    "SyncFleetJobs",
    "SyncFleetModules",
    "SyncFleetQueues",
    "SyncFleetWakeups",
    "as_spoken",
    "decided",
    "end_of",
    "handle_of",
    "listening",
    "tools_to_openai_format",
]
