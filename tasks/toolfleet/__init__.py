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
            "ApprovalNotTaken": "toolfleet_registry.errors",
            "Approver": "toolfleet_tasks.approvals.approvers",
            "AttemptMiddleware": "toolfleet_registry.agents.own_classes",
            "CallHandle": "toolfleet_tasks.calls.handle",
            "CallMiddleware": "toolfleet_registry.agents.own_classes",
            "CallRefused": "toolfleet_tasks.client.canvas",
            "CallStatus": "toolfleet_tasks.calls.pending_call",
            "Caller": "toolfleet_registry.contracts",
            "Conversation": "toolfleet_registry.contracts",
            "DeadLetter": "toolfleet_registry.contracts.calls",
            "EvalGate": "toolfleet_tasks.calls.eval_gate",
            "FleetError": "toolfleet_registry.errors",
            "FleetUnavailable": "toolfleet_registry.errors",
            "GateDecision": "toolfleet_tasks.calls.eval_gate",
            "HookSpec": "toolfleet_registry.contracts.jobs",
            "InputNotTaken": "toolfleet_registry.errors",
            "InputRequest": "toolfleet_registry.contracts.inputs",
            "Job": "toolfleet_registry.contracts.jobs",
            "JobRefused": "toolfleet_registry.contracts.jobs",
            "KeptWake": "toolfleet_tasks.dead_letters.kept_wakes",
            "LimitUse": "toolfleet_registry.policy.limits",
            "ListedApproval": "toolfleet_tasks.approvals.records",
            "LogMessage": "toolfleet_registry.contracts.call_context",
            "ModuleStatus": "toolfleet_registry.contracts",
            "NoSuchDeadLetter": "toolfleet_registry.errors",
            "NoSuchQueue": "toolfleet_registry.errors",
            "NotReplayable": "toolfleet_registry.errors",
            "PendingInput": "toolfleet_registry.contracts.inputs",
            "Poll": "toolfleet_registry.contracts.jobs",
            "Progress": "toolfleet_registry.contracts.call_context",
            "QueueOverview": "toolfleet_tasks.operations.queue_overview",
            "Remaining": "toolfleet_registry.policy.limits",
            "ResultFile": "toolfleet_registry.contracts",
            "Schedule": "toolfleet_registry.contracts.jobs",
            "Settings": "toolfleet_registry.settings",
            "SettingsError": "toolfleet_registry.errors",
            "StoredApproval": "toolfleet_tasks.approvals.records",
            "SyncCallHandle": "toolfleet_tasks.client.namespaces",
            "SyncToolFleet": "toolfleet_tasks.client.fleet",
            "ToolCall": "toolfleet_registry.contracts",
            "ToolDefinition": "toolfleet_registry.contracts",
            "ToolExplanation": "toolfleet_registry.agents.explanation",
            "ToolFleet": "toolfleet_tasks.client.fleet",
            "ToolResult": "toolfleet_registry.contracts",
            "UnreadableLetter": "toolfleet_tasks.dead_letters.letters",
            "WakeUp": "toolfleet_registry.contracts.jobs",
            "report_progress": "toolfleet_registry.contracts.call_context:report",
            "url_poll": "toolfleet_registry.local.scheduler_tools",
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
