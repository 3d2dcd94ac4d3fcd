"""Exports the names that a module is written with: `from toolfleet.sdk import Module, Context, ToolError, ModuleBusy`, and `tool`.

`RedisReplies` needs `toolfleet-sdk[redis]`, `HttpClientPort` and `ModuleResult` need `toolfleet-sdk[client]`; they are
imported on first use.
"""

from typing import TYPE_CHECKING

from toolfleet_modules.calls.reply import StatusAnswer
from toolfleet_modules.sdk.module import Module
from toolfleet_modules.sdk.tool import tool
from toolfleet_registry.contracts.call_context import Context
from toolfleet_registry.functions.failures import Accepted, InputRequired, ModuleBusy, ToolError
from toolfleet_registry.functions.files import Audio, File, Image, Media
from toolfleet_registry.once.port import MemoryReplies, Record
from toolfleet_registry.once.port import OnceStore as Replies
from toolfleet_registry.system.lazy_names import lazy_names
from toolfleet_registry.system.process import hide_process

if TYPE_CHECKING:
    from toolfleet_modules.sdk.client import ModuleClient, ModuleResult
    from toolfleet_registry.once.redis import RedisReplies
    from toolfleet_registry.once.sqlite import SQLiteReplies
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "toolfleet_modules.sdk.client": "ModuleClient ModuleResult",
            "toolfleet_registry.once.redis": "RedisReplies",
            "toolfleet_registry.once.sqlite": "SQLiteReplies",
        },
        install="toolfleet-sdk[client,redis]",
    )

__all__ = [
    "Accepted",
    "Audio",
    "Context",
    "File",
    "Image",
    "InputRequired",
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
    "StatusAnswer",
    "ToolError",
    "hide_process",
    "tool",
]
