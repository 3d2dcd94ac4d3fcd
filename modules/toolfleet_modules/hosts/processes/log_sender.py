"""Sends the log messages of one call to the host, no more than a call may have, before its reply."""

import asyncio
import contextlib
import json
from collections.abc import Callable

from toolfleet_modules.hosts.processes.frames import Head
from toolfleet_registry.contracts.logs.log_message import LogLevel, LogMessage
from toolfleet_registry.contracts.logs.log_sink import MOST_MESSAGES, LogBudget, LogSink


class LogSender:
    """In the running loop; what its `sink` takes may come from any thread."""

    def __init__(self, send: Callable[[Head, bytes], None], number: int, least: LogLevel) -> None:
        self.sink = LogSink(least, self._take)
        """What takes them."""
        self._send, self._number = send, number
        self._loop = asyncio.get_running_loop()
        self._budget = LogBudget(MOST_MESSAGES - 1)  # the last one may be the word on those that were left out

    async def end(self) -> None:
        """Return when all that was said so far is on its way."""
        await asyncio.sleep(0)
        if (notice := self._budget.notice()) is not None:
            self._send_body(json.dumps(notice.fields()).encode())

    def _take(self, message: LogMessage) -> None:
        body = json.dumps(message.fields()).encode()
        if self._budget.takes(len(body)):
            with contextlib.suppress(RuntimeError):  # the loop has ended, and a thread has not noticed
                self._loop.call_soon_threadsafe(self._send_body, body)

    def _send_body(self, body: bytes) -> None:
        self._send({"kind": "log", "id": self._number}, body)
