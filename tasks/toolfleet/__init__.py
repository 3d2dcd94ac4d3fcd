"""The public face: `from toolfleet import ToolFleet, ToolCall, ToolResult, Caller, Conversation`."""

from toolfleet_registry.contracts import (
    Caller,
    Conversation,
    DeadLetter,
    ModuleStatus,
    ToolCall,
    ToolDefinition,
    ToolResult,
)
from toolfleet_registry.errors import FleetError, FleetUnavailable, NoSuchDeadLetter, SettingsError
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client import ToolFleet
from toolfleet_tasks.dead import UnreadableLetter
from toolfleet_tasks.handle import CallHandle

__all__ = [
    "CallHandle",
    "Caller",
    "Conversation",
    "DeadLetter",
    "FleetError",
    "FleetUnavailable",
    "ModuleStatus",
    "NoSuchDeadLetter",
    "Settings",
    "SettingsError",
    "ToolCall",
    "ToolDefinition",
    "ToolFleet",
    "ToolResult",
    "UnreadableLetter",
]
