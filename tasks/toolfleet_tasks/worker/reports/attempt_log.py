"""Takes the log messages of one attempt, and has them published before its end is."""

import asyncio
import contextlib
import json
import threading

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.logs.log_message import LogLevel, LogMessage
from toolfleet_registry.contracts.logs.log_sink import MOST_BYTES, MOST_MESSAGES, LogBudget, LogSink, log_to
from toolfleet_registry.settings import Settings
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.worker.reports.log_writer import LogWriter

_END_SECONDS = 1.0  # for Redis to take what was said last: the call's end waits for it
# A module may say as much, and then that it has left something out; what is around a message has some bytes, too.
_MOST, _BYTES = MOST_MESSAGES + 1, 2 * MOST_BYTES


class AttemptLog:
    """The log of one attempt at a `call` whose caller wants messages that are `least` or graver.

    From the moment that it is made whatever is said in this task goes there, until `end`.
    """

    def __init__(self, call: PublishedCall, least: LogLevel, settings: Settings) -> None:
        self._call_id, self._settings = call.call_id, settings
        self._budget = LogBudget(_MOST, _BYTES)
        self._unwritten = 0
        self._is_written = asyncio.Event()
        self._is_over = False
        log_to(LogSink(least, self._take))

    async def end(self) -> None:
        """Take no more, once all that was said is published; Redis has a second for that."""
        log_to(None)
        await asyncio.sleep(0)  # what threads have said comes first
        self._is_over = True
        if (notice := self._budget.notice()) is not None:
            self._publish(json.dumps(notice.fields()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                while self._unwritten:
                    self._is_written.clear()
                    await self._is_written.wait()

    def _take(self, message: LogMessage) -> None:
        here = worker_runtime.current()
        if self._is_over or here is None:  # under a pool without a loop there is no writer
            return
        text = json.dumps(message.fields())  # escaped: it may hold half a character
        if not self._budget.takes(len(text)):
            return
        if threading.get_ident() == here.thread_id:
            self._publish(text)
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                here.loop.call_soon_threadsafe(self._publish, text)

    def _publish(self, text: str) -> None:
        here = worker_runtime.current()
        if here is None:
            return
        if here.part(LogWriter, self._settings).add(self._call_id, text, self._written):
            self._unwritten += 1
        else:
            self._budget.left_out += 1

    def _written(self) -> None:
        self._unwritten -= 1
        self._is_written.set()
