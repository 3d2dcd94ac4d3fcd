"""A tool that says how far it is, step by step, as a test wants it."""

import functools
import json
from collections.abc import AsyncIterator, Callable, Sequence

from aiohttp import web

from support.module_server import Request
from support.waiting import PATIENCE_SECONDS, wait_until

Step = tuple[float | None, str]
_LONG_SECONDS = 30 * PATIENCE_SECONDS  # a worker that has died is missed after a minute


class Talker:
    """Says each of `steps`; before the next one, and before the reply, it waits for `go_on`. `end` makes the last line.

    `said` counts the steps of all calls, `calls` those that came.
    """

    def __init__(self, steps: Sequence[Step], end: Callable[[Request], bytes] | None = None) -> None:
        self._steps = steps
        self._end = end or _done
        self._allowed = 0
        self.said = 0
        self.calls = 0

    def forget(self) -> None:
        """Begin anew."""
        self._allowed = self.said = self.calls = 0

    def go_on(self, steps: int = 1) -> None:
        """Let it say so much more."""
        self._allowed += steps

    def _may_say(self, steps: int) -> bool:
        return self._allowed >= steps

    async def __call__(self, request: Request) -> web.Response:
        self.calls += 1
        return web.Response(body=self._lines(request), headers={"Content-Type": "application/x-ndjson"})

    async def _lines(self, request: Request) -> AsyncIterator[bytes]:
        for number, (fraction, message) in enumerate(self._steps):
            yield json.dumps({"progress": fraction, "message": message}).encode() + b"\n"
            self.said += 1
            may_go_on = functools.partial(self._may_say, number + 1)
            await wait_until(may_go_on, "the test wants the next step", seconds=_LONG_SECONDS)
        yield self._end(request)


def _done(request: Request) -> bytes:
    return json.dumps({"tool_name": request["tool_name"], "success": True, "result": "done", "error": None}).encode()
