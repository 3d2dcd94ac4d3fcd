"""The log of calls: when each started and how it ended."""

import asyncio
import time

import structlog

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.outcomes import Attempt
from toolfleet_workers.runner import Proceed

log = structlog.get_logger(__name__)


class CallLog:
    """Logs a call's start and end, and gives `call_id` and `tool` to every line that is logged in between.

    No arguments and no results: they are people's data.
    """

    async def __call__(self, call: PublishedCall, proceed: Proceed) -> Attempt:
        """Log around `proceed`; what it raises passes."""
        lines = log.bind()  # once for both: a logger is made anew each time that `log` is used
        # Not bound_contextvars, which looks through the whole context for values to restore: nobody else binds these.
        structlog.contextvars.bind_contextvars(call_id=call.call_id, tool=call.tool_name)
        lines.info("tool_call_started")
        started_at, outcome = time.monotonic(), "crashed"
        try:
            attempt = await proceed(call)
            outcome = attempt.outcome.value
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except TimeoutError:
            outcome = "timed_out"
            raise
        else:
            return attempt
        finally:
            duration_ms = round((time.monotonic() - started_at) * 1000, 1)
            lines.info("tool_call_finished", outcome=outcome, duration_ms=duration_ms)
            structlog.contextvars.unbind_contextvars("call_id", "tool")
