"""What a module is written with: `from toolfleet.sdk import Module, Context, ToolError, ModuleBusy`."""

from toolfleet_modules.sdk.client import ModuleClient, ModuleResult
from toolfleet_modules.sdk.module import Module
from toolfleet_registry.functions.call_context import Context
from toolfleet_registry.functions.encoded_bytes import Media
from toolfleet_registry.functions.failures import ModuleBusy, ToolError
from toolfleet_registry.functions.files import Audio, File, Image
from toolfleet_registry.once.memory import MemoryReplies
from toolfleet_registry.once.port import OnceStore as Replies
from toolfleet_registry.once.port import Record
from toolfleet_registry.once.redis import RedisReplies
from toolfleet_registry.once.sqlite import SQLiteReplies
from toolfleet_registry.system.private_process import hide_process

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
