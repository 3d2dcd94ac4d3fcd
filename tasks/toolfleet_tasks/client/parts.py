"""Imports the parts of `ToolFleet` when the first fleet is made: Redis and all that needs it are most of an agent's import."""

# mypy: implicit-reexport
# ruff: noqa: F401 - what is imported here is what the fleet takes from here

from typing import TYPE_CHECKING

from toolfleet_registry.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from toolfleet_registry.formats import as_spoken, tools_to_openai_format
    from toolfleet_tasks.approvals.waiting import decided
    from toolfleet_tasks.calls.eval_gate import NOTHING_MORE, Circumstances
    from toolfleet_tasks.calls.idempotency import end_of, handle_of
    from toolfleet_tasks.client.canvas import CanvasApp, FleetCanvas, SyncFleetCanvas
    from toolfleet_tasks.client.dead_letters import FleetDeadLetters, SyncFleetDeadLetters
    from toolfleet_tasks.client.jobs import (
        FleetHooks,
        FleetJobs,
        FleetPrograms,
        FleetWakeups,
        SyncFleetJobs,
        SyncFleetPrograms,
        SyncFleetWakeups,
    )
    from toolfleet_tasks.client.listeners import listening
    from toolfleet_tasks.client.namespaces import (
        FleetApprovals,
        FleetArtifacts,
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
            "toolfleet_registry.formats": "as_spoken tools_to_openai_format",
            "toolfleet_tasks.approvals.waiting": "decided",
            "toolfleet_tasks.calls.eval_gate": "Circumstances NOTHING_MORE",
            "toolfleet_tasks.calls.idempotency": "end_of handle_of",
            "toolfleet_tasks.client.canvas": "CanvasApp FleetCanvas SyncFleetCanvas",
            "toolfleet_tasks.client.dead_letters": "FleetDeadLetters SyncFleetDeadLetters",
            "toolfleet_tasks.client.jobs": (
                "FleetHooks FleetJobs FleetPrograms FleetWakeups SyncFleetJobs SyncFleetPrograms SyncFleetWakeups"
            ),
            "toolfleet_tasks.client.listeners": "listening",
            "toolfleet_tasks.client.namespaces": (
                "FleetApprovals FleetArtifacts FleetBegunCalls FleetModules FleetQueues "
                "SyncCallHandle SyncFleetApprovals SyncFleetModules SyncFleetQueues"
            ),
            "toolfleet_tasks.client.session": "Sessions",
            "toolfleet_tasks.operations.process_metrics": "AgentMetrics",
        },
        install="toolfleet",
    )
