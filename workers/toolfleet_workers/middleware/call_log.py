"""Binds log lines to the call that they belong to. How it ended, its audit line says."""

import structlog

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.outcomes import Attempt
from toolfleet_registry.system.busy_log import BusyLog
from toolfleet_workers.runner.runner import Proceed

log = BusyLog(__name__)


class CallLog:
    """Gives `call_id` and `tool` to every line that is logged while the call runs, and logs its start at DEBUG.

    No arguments and no results: they are people's data.
    """

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Bind around `proceed`; what it raises passes."""
        # Not bound_contextvars, which looks through the whole context for values to restore: nobody else binds these.
        structlog.contextvars.bind_contextvars(call_id=call.call_id, tool=call.tool_name)
        log.now().debug("tool_call_started")
        try:
            return await proceed(call)
        finally:
            structlog.contextvars.unbind_contextvars("call_id", "tool")
