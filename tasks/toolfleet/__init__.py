"""The public face: `from toolfleet import ToolFleet, ToolCall, ToolResult, Caller, Conversation`."""

from toolfleet_registry.contracts import Caller, Conversation, ModuleStatus, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.errors import FleetError, FleetUnavailable, NoSuchDeadLetter, SettingsError
from toolfleet_registry.letters import DeadLetter
from toolfleet_registry.settings import Settings
from toolfleet_registry.terms import LimitUse, Remaining
from toolfleet_tasks.client import ToolFleet
from toolfleet_tasks.dead import UnreadableLetter
from toolfleet_tasks.evaluation import EvalGate, GateDecision
from toolfleet_tasks.handle import CallHandle

__all__ = [
    "CallHandle",
    "Caller",
    "Conversation",
    "DeadLetter",
    "EvalGate",
    "FleetError",
    "FleetUnavailable",
    "GateDecision",
    "LimitUse",
    "ModuleStatus",
    "NoSuchDeadLetter",
    "Remaining",
    "Settings",
    "SettingsError",
    "ToolCall",
    "ToolDefinition",
    "ToolFleet",
    "ToolResult",
    "UnreadableLetter",
]
