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
from toolfleet_registry.errors import FleetError, FleetUnavailable, NoSuchDeadLetter, NotReplayable, SettingsError
from toolfleet_registry.jobs import Job, JobRefused, Poll, Schedule, WakeUp
from toolfleet_registry.letters import DeadLetter
from toolfleet_registry.progress import Progress
from toolfleet_registry.progress import report as report_progress
from toolfleet_registry.settings import Settings
from toolfleet_registry.terms import LimitUse, Remaining
from toolfleet_tasks.call_status import CallStatus
from toolfleet_tasks.client import ToolFleet
from toolfleet_tasks.client_canvas import CallRefused
from toolfleet_tasks.dead import UnreadableLetter
from toolfleet_tasks.dead_wakes import KeptWake
from toolfleet_tasks.evaluation import EvalGate, GateDecision
from toolfleet_tasks.handle import CallHandle
from toolfleet_tasks.sync import SyncToolFleet
from toolfleet_tasks.sync_handle import SyncCallHandle

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
]
