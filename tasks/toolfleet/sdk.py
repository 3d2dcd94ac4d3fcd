"""What a module is written with: `from toolfleet.sdk import Module, Context, ToolError, ModuleBusy`."""

from toolfleet_registry.functions.encoded_bytes import Media
from toolfleet_registry.private_process import hide_process
from toolfleet_registry.sdk.client import ModuleClient, ModuleResult
from toolfleet_registry.sdk.context import Context
from toolfleet_registry.sdk.failures import ModuleBusy, ToolError
from toolfleet_registry.sdk.files import Audio, File, Image
from toolfleet_registry.sdk.memory_replies import MemoryReplies
from toolfleet_registry.sdk.module import Module
from toolfleet_registry.sdk.redis_replies import RedisReplies
from toolfleet_registry.sdk.replies import Record, Replies
from toolfleet_registry.sdk.sqlite_replies import SQLiteReplies

__all__ = [
    "Audio",
    "Context",
    "File",
    "Image",
    "Media",
    "MemoryReplies",
    "Module",
    "ModuleBusy",
    "ModuleClient",
    "ModuleResult",
    "Record",
    "RedisReplies",
    "Replies",
    "SQLiteReplies",
    "ToolError",
    "hide_process",
]
