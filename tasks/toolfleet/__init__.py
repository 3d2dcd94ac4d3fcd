"""The public face: `from toolfleet import ToolFleet, ToolCall, ToolResult, Caller, Conversation`.

PYTEST_DONT_REWRITE: what a pytest plugin's package has imported, pytest would else warn of.
"""

from toolfleet_registry.contracts import (
    Caller,
    Conversation,
    ModuleStatus,
    ResultFile,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from toolfleet_registry.contracts.dead_letters import DeadLetter
from toolfleet_registry.contracts.jobs import Job, JobRefused, Poll, Schedule, WakeUp
from toolfleet_registry.contracts.progress import Progress
from toolfleet_registry.contracts.progress import report as report_progress
from toolfleet_registry.errors import FleetError, FleetUnavailable, NoSuchDeadLetter, NotReplayable, SettingsError
from toolfleet_registry.local.url_polls import url_poll
from toolfleet_registry.policy.limits import LimitUse, Remaining
from toolfleet_registry.settings import Settings
from toolfleet_tasks.calls.eval_gate import EvalGate, GateDecision
from toolfleet_tasks.calls.handle import CallHandle
from toolfleet_tasks.calls.status import CallStatus
from toolfleet_tasks.client.fleet import SyncToolFleet, ToolFleet
from toolfleet_tasks.client.namespaces.canvas import CallRefused
from toolfleet_tasks.client.sync_handle import SyncCallHandle
from toolfleet_tasks.dead_letters.call_letters import UnreadableLetter
from toolfleet_tasks.dead_letters.kept_wakes import KeptWake

__all__ = [
    "CallHandle",
    "CallRefused",
    "CallStatus",
    "Caller",
    "Conversation",
    "DeadLetter",
    "EvalGate",
    "FleetError",
    "FleetUnavailable",
    "GateDecision",
    "Job",
    "JobRefused",
    "KeptWake",
    "LimitUse",
    "ModuleStatus",
    "NoSuchDeadLetter",
    "NotReplayable",
    "Poll",
    "Progress",
    "Remaining",
    "ResultFile",
    "Schedule",
    "Settings",
    "SettingsError",
    "SyncCallHandle",
    "SyncToolFleet",
    "ToolCall",
    "ToolDefinition",
    "ToolFleet",
    "ToolResult",
    "UnreadableLetter",
    "WakeUp",
    "report_progress",
    "url_poll",
]
