"""Defines the messages that cross a process: frozen, and strict about fields of our own making."""

from toolfleet_registry.contracts.call_context import Conversation
from toolfleet_registry.contracts.calls import (
    NEVER_PROBED,
    Audit,
    Caller,
    EffectState,
    ErrorCode,
    Level,
    ModuleStatus,
    PublishedCall,
    ResultFile,
    RetryTerms,
    SealedCall,
    ToolCall,
    ToolResult,
    Turn,
)
from toolfleet_registry.contracts.limits import Terms
from toolfleet_registry.contracts.message import Message, ModuleMessage, Since
from toolfleet_registry.contracts.tool_definition import (
    CostClass,
    Effect,
    ModuleManifest,
    ToolAnnotations,
    ToolDefinition,
    ToolParameter,
)

__all__ = [
    "NEVER_PROBED",
    "Audit",
    "Caller",
    "Conversation",
    "CostClass",
    "Effect",
    "EffectState",
    "ErrorCode",
    "Level",
    "Message",
    "ModuleManifest",
    "ModuleMessage",
    "ModuleStatus",
    "PublishedCall",
    "ResultFile",
    "RetryTerms",
    "SealedCall",
    "Since",
    "Terms",
    "ToolAnnotations",
    "ToolCall",
    "ToolDefinition",
    "ToolParameter",
    "ToolResult",
    "Turn",
]
