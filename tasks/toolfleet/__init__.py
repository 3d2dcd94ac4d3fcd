"""Exports the public face: `from toolfleet import ToolFleet, ToolCall, ToolResult, Caller, Conversation`.

Each name is imported when it is asked for: a module, which imports `toolfleet.sdk` from here, needs none of them.

PYTEST_DONT_REWRITE: what a pytest plugin's package has imported, pytest would else warn of.
"""

from typing import TYPE_CHECKING

from toolfleet_registry.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from toolfleet_registry.agents.explanation import ToolExplanation
    from toolfleet_registry.agents.own_classes import AttemptMiddleware, CallMiddleware
    from toolfleet_registry.contracts import (
        Caller,
        Conversation,
        ModuleStatus,
        ResultFile,
        ToolCall,
        ToolDefinition,
        ToolResult,
    )
    from toolfleet_registry.contracts.call_context import LogMessage, Progress
    from toolfleet_registry.contracts.call_context import report as report_progress
    from toolfleet_registry.contracts.calls import DeadLetter
    from toolfleet_registry.contracts.inputs import InputRequest, PendingInput
    from toolfleet_registry.contracts.jobs import HookSpec, Job, JobRefused, Poll, Schedule, WakeUp
    from toolfleet_registry.errors import (
        ApprovalNotTaken,
        FleetError,
        FleetUnavailable,
        InputNotTaken,
        NoSuchDeadLetter,
        NoSuchQueue,
        NotReplayable,
        SettingsError,
    )
    from toolfleet_registry.local.scheduler_tools import url_poll
    from toolfleet_registry.policy.limits import LimitUse, Remaining
    from toolfleet_registry.settings import Settings
    from toolfleet_tasks.approvals.approvers import Approver
    from toolfleet_tasks.approvals.records import ListedApproval, StoredApproval
    from toolfleet_tasks.calls.eval_gate import EvalGate, GateDecision
    from toolfleet_tasks.calls.handle import CallHandle
    from toolfleet_tasks.calls.pending_call import CallStatus
    from toolfleet_tasks.client.canvas import CallRefused
    from toolfleet_tasks.client.fleet import SyncToolFleet, ToolFleet
    from toolfleet_tasks.client.namespaces import SyncCallHandle
    from toolfleet_tasks.dead_letters.kept_wakes import KeptWake
    from toolfleet_tasks.dead_letters.letters import UnreadableLetter
    from toolfleet_tasks.operations.queue_overview import QueueOverview
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "toolfleet_registry.agents.explanation": "ToolExplanation",
            "toolfleet_registry.agents.own_classes": "AttemptMiddleware CallMiddleware",
            "toolfleet_registry.contracts": "Caller Conversation ModuleStatus ResultFile ToolCall ToolDefinition ToolResult",
            "toolfleet_registry.contracts.call_context": "LogMessage Progress report_progress=report",
            "toolfleet_registry.contracts.calls": "DeadLetter",
            "toolfleet_registry.contracts.inputs": "InputRequest PendingInput",
            "toolfleet_registry.contracts.jobs": "HookSpec Job JobRefused Poll Schedule WakeUp",
            "toolfleet_registry.errors": (
                "ApprovalNotTaken FleetError FleetUnavailable InputNotTaken "
                "NoSuchDeadLetter NoSuchQueue NotReplayable SettingsError"
            ),
            "toolfleet_registry.local.scheduler_tools": "url_poll",
            "toolfleet_registry.policy.limits": "LimitUse Remaining",
            "toolfleet_registry.settings": "Settings",
            "toolfleet_tasks.approvals.approvers": "Approver",
            "toolfleet_tasks.approvals.records": "ListedApproval StoredApproval",
            "toolfleet_tasks.calls.eval_gate": "EvalGate GateDecision",
            "toolfleet_tasks.calls.handle": "CallHandle",
            "toolfleet_tasks.calls.pending_call": "CallStatus",
            "toolfleet_tasks.client.canvas": "CallRefused",
            "toolfleet_tasks.client.fleet": "SyncToolFleet ToolFleet",
            "toolfleet_tasks.client.namespaces": "SyncCallHandle",
            "toolfleet_tasks.dead_letters.kept_wakes": "KeptWake",
            "toolfleet_tasks.dead_letters.letters": "UnreadableLetter",
            "toolfleet_tasks.operations.queue_overview": "QueueOverview",
        },
        install="toolfleet",
    )

__all__ = [
    "ApprovalNotTaken",
    "Approver",
    "AttemptMiddleware",
    "CallHandle",
    "CallMiddleware",
    "CallRefused",
    "CallStatus",
    "Caller",
    "Conversation",
    "DeadLetter",
    "EvalGate",
    "FleetError",
    "FleetUnavailable",
    "GateDecision",
    "HookSpec",
    "InputNotTaken",
    "InputRequest",
    "Job",
    "JobRefused",
    "KeptWake",
    "LimitUse",
    "ListedApproval",
    "LogMessage",
    "ModuleStatus",
    "NoSuchDeadLetter",
    "NoSuchQueue",
    "NotReplayable",
    "PendingInput",
    "Poll",
    "Progress",
    "QueueOverview",
    "Remaining",
    "ResultFile",
    "Schedule",
    "Settings",
    "SettingsError",
    "StoredApproval",
    "SyncCallHandle",
    "SyncToolFleet",
    "ToolCall",
    "ToolDefinition",
    "ToolExplanation",
    "ToolFleet",
    "ToolResult",
    "UnreadableLetter",
    "WakeUp",
    "report_progress",
    "url_poll",
]
