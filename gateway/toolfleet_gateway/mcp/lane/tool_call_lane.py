"""Runs `tools/call` on the short lane, as the SDK's way does: a client that goes has left its call, and one that waits is told so."""

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError
from starlette.types import Receive, Send

from toolfleet_gateway.mcp.lane.lane_answer import LaneAnswer
from toolfleet_gateway.mcp.lane.lane_request import LaneRequest
from toolfleet_gateway.mcp.tool_methods import ToolMethods
from toolfleet_gateway.mcp.view import McpView
from toolfleet_gateway.tracing.mcp_spans import traced_call
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.tracing.port import Tracing

log = get_logger(__name__)

KEEP_ALIVE_SECONDS: Final = 15.0
"""After so long without a word a client is told that its answer is still to come: proxies cut silent connections."""


class ToolCallLane:
    """The lane of one gateway, whose `server_info` is what each result says of its server."""

    def __init__(self, tools: ToolMethods, server_info: Mapping[str, Any], tracing: Tracing | None = None) -> None:
        self._tools, self._tracing = tools, tracing
        self._stamp = {types.SERVER_INFO_META_KEY: dict(server_info)}

    async def serve(self, view: McpView, asked: LaneRequest, receive: Receive, send: Send) -> None:
        """Answer one request."""
        answer = LaneAnswer(asked.id, send)
        running = asyncio.create_task(self._run(view, asked, answer))
        gone = asyncio.create_task(_disconnected(receive))
        both: set[asyncio.Task[Any]] = {running, gone}
        try:
            while not running.done() and not gone.done():
                done, _ = await asyncio.wait(both, timeout=KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    await answer.ping()
            if running.done():
                await _tell(running, answer)
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)

    async def _run(self, view: McpView, asked: LaneRequest, answer: LaneAnswer) -> dict[str, Any]:
        run, call = partial(self._tools.run, view, asked.call, answer.notify), asked.call
        if self._tracing is None:
            result = await run()
        else:
            result = await traced_call(self._tracing, call.name, asked.id, call.meta, run)
        return {**result, "_meta": {**result.get("_meta", {}), **self._stamp}}


async def _tell(running: "asyncio.Task[dict[str, Any]]", answer: LaneAnswer) -> None:
    try:
        await answer.result(running.result())
    except MCPError as exc:
        await answer.error(exc.code, exc.message, exc.data)
    except Exception:
        log.exception("mcp_call_failed")
        await answer.error(types.INTERNAL_ERROR, "The gateway failed; its log says why.")


async def _disconnected(receive: Receive) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
