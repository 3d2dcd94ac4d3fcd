"""Binds log lines to the call that they belong to. How it ended, its audit line says."""

from contextvars import ContextVar

from structlog.contextvars import STRUCTLOG_KEY_PREFIX

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.attempts import Attempt
from toolfleet_registry.system.loggers import BusyLog
from toolfleet_workers.runner import Proceed

log = BusyLog(__name__)

# Variables of structlog's kind, which it finds by their names. It would look its own up for each call, and keep them in a new dictionary.
_CALL_ID: ContextVar[object] = ContextVar(f"{STRUCTLOG_KEY_PREFIX}call_id")
_TOOL: ContextVar[object] = ContextVar(f"{STRUCTLOG_KEY_PREFIX}tool")


class CallLog:
    """Gives `call_id` and `tool` to every line that is logged while the call runs, and logs its start at DEBUG.

    No arguments and no results: they are people's data.
    """

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Bind around `proceed`; what it raises passes."""
        _CALL_ID.set(call.call_id)
        _TOOL.set(call.tool_name)
        log.now().debug("tool_call_started")
        try:
            return await proceed(call)
        finally:
            _CALL_ID.set(...)  # which is how structlog unbinds
            _TOOL.set(...)
