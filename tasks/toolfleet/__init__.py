"""The public face: `from toolfleet import ToolFleet, ToolCall, ToolResult, Caller, Conversation`."""

from toolfleet_registry.contracts import Caller, Conversation, ModuleStatus, ToolCall, ToolDefinition, ToolResult
from toolfleet_registry.errors import FleetError, FleetUnavailable, SettingsError
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client import ToolFleet
from toolfleet_tasks.handle import CallHandle

__all__ = [
    "CallHandle",
    "Caller",
    "Conversation",
    "FleetError",
    "FleetUnavailable",
    "ModuleStatus",
    "Settings",
    "SettingsError",
    "ToolCall",
    "ToolDefinition",
    "ToolFleet",
    "ToolResult",
]
