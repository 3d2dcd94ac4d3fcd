"""Imports what `ToolFleet` is made of when the first fleet is made: Redis and all that stands on it are most of an agent's import."""

from typing import TYPE_CHECKING

from toolfleet_registry.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from toolfleet_registry.formats import as_spoken, tools_to_openai_format
    from toolfleet_tasks.approvals.waiting import decided
    from toolfleet_tasks.calls.eval_gate import NOTHING_MORE, Circumstances
    from toolfleet_tasks.calls.idempotency import end_of, handle_of
    from toolfleet_tasks.client.call_listeners import listening
    from toolfleet_tasks.client.namespaces.approvals import FleetApprovals, SyncFleetApprovals
    from toolfleet_tasks.client.namespaces.begun_calls import FleetBegunCalls
    from toolfleet_tasks.client.namespaces.canvas import CanvasApp, FleetCanvas, SyncFleetCanvas
    from toolfleet_tasks.client.namespaces.dead_letters import FleetDeadLetters, SyncFleetDeadLetters
    from toolfleet_tasks.client.namespaces.jobs import FleetHooks, FleetJobs, SyncFleetJobs
    from toolfleet_tasks.client.namespaces.modules import FleetModules, SyncFleetModules
    from toolfleet_tasks.client.namespaces.queues import FleetQueues, SyncFleetQueues
    from toolfleet_tasks.client.namespaces.wakeups import FleetWakeups, SyncFleetWakeups
    from toolfleet_tasks.client.session import Sessions
    from toolfleet_tasks.client.sync_handle import SyncCallHandle
    from toolfleet_tasks.operations.process_metrics import AgentMetrics
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "NOTHING_MORE": "toolfleet_tasks.calls.eval_gate",
            "AgentMetrics": "toolfleet_tasks.operations.process_metrics",
            "CanvasApp": "toolfleet_tasks.client.namespaces.canvas",
            "Circumstances": "toolfleet_tasks.calls.eval_gate",
            "FleetApprovals": "toolfleet_tasks.client.namespaces.approvals",
            "FleetBegunCalls": "toolfleet_tasks.client.namespaces.begun_calls",
            "FleetCanvas": "toolfleet_tasks.client.namespaces.canvas",
            "FleetDeadLetters": "toolfleet_tasks.client.namespaces.dead_letters",
            "FleetHooks": "toolfleet_tasks.client.namespaces.jobs",
            "FleetJobs": "toolfleet_tasks.client.namespaces.jobs",
            "FleetModules": "toolfleet_tasks.client.namespaces.modules",
            "FleetQueues": "toolfleet_tasks.client.namespaces.queues",
            "FleetWakeups": "toolfleet_tasks.client.namespaces.wakeups",
            "Sessions": "toolfleet_tasks.client.session",
            "SyncCallHandle": "toolfleet_tasks.client.sync_handle",
            "SyncFleetApprovals": "toolfleet_tasks.client.namespaces.approvals",
            "SyncFleetCanvas": "toolfleet_tasks.client.namespaces.canvas",
            "SyncFleetDeadLetters": "toolfleet_tasks.client.namespaces.dead_letters",
            "SyncFleetJobs": "toolfleet_tasks.client.namespaces.jobs",
            "SyncFleetModules": "toolfleet_tasks.client.namespaces.modules",
            "SyncFleetQueues": "toolfleet_tasks.client.namespaces.queues",
            "SyncFleetWakeups": "toolfleet_tasks.client.namespaces.wakeups",
            "as_spoken": "toolfleet_registry.formats",
            "decided": "toolfleet_tasks.approvals.waiting",
            "end_of": "toolfleet_tasks.calls.idempotency",
            "handle_of": "toolfleet_tasks.calls.idempotency",
            "listening": "toolfleet_tasks.client.call_listeners",
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
