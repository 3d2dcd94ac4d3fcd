"""Sends progress and log messages before a reply, as lines of JSON: begun with the first, so that a quick call has none."""

import asyncio
import json
import math

from starlette.requests import ClientDisconnect
from starlette.types import Send

from toolfleet_modules.once.shared_work import Work
from toolfleet_modules.once.work_log import WorkLog
from toolfleet_modules.requests.reply import Reply
from toolfleet_registry.contracts.progress import Progress

_SEND_SECONDS = 30.0  # for a client to take a line


class ProgressLines:
    """`{"progress": 0.4, "message": "…"}`, no more often than every `seconds`, and whatever comes into `log`; then the reply."""

    def __init__(self, send: Send, seconds: float, log: WorkLog | None = None) -> None:
        self.are_begun = False
        self._send = send
        self._seconds = seconds
        self._log = log
        self._logged = 0  # lines of it that were sent
        self._sent: Progress | None = None
        self._next_at = 0.0

    def due_at(self, work: Work) -> float:
        """When there is something to tell, by the loop's clock; `inf` while there is nothing."""
        if self._log is not None and self._logged < len(self._log.lines):
            return -math.inf
        return math.inf if work.progress is self._sent else self._next_at

    async def tell(self, work: Work) -> None:
        """Send what was logged, or the latest progress. Raises `ClientDisconnect`."""
        if self._log is not None and self._logged < len(self._log.lines):
            await self._tell_logged(self._log)
            return
        self._sent = work.progress
        if self._sent is None:
            return
        fields = {"progress": self._sent.fraction, "message": self._sent.message}
        line = json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")  # there are half characters
        await self._tell(line + b"\n")
        self._next_at = asyncio.get_running_loop().time() + self._seconds

    async def tell_rest(self) -> None:
        """Send what was logged until the call's end. Raises `ClientDisconnect`."""
        if self._log is not None:
            await self._tell_logged(self._log)
            if notice := self._log.notice:
                await self._tell(notice)

    async def end(self, reply: Reply) -> None:
        """The last line. Raises `ClientDisconnect`."""
        await self._out({"type": "http.response.body", "body": reply.body.encode() + b"\n", "more_body": False})

    async def _tell_logged(self, log: WorkLog) -> None:
        lines = log.lines[self._logged :]
        self._logged += len(lines)
        if lines:
            await self._tell(b"".join(lines))

    async def _tell(self, lines: bytes) -> None:
        if not self.are_begun:
            self.are_begun = True
            headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
            await self._out({"type": "http.response.start", "status": 200, "headers": headers})
        await self._out({"type": "http.response.body", "body": lines, "more_body": True})

    async def _out(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._send(message)
        except OSError as exc:  # also when the time is over
            raise ClientDisconnect from exc
