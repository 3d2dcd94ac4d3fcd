"""Calls tools over MCP as its clients do that may lose any answer: each request anew, under a new id, with the same key in `_meta`."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from support.gateways.mcp_requests import TASKS, messages_of, request_of
from toolfleet_registry.contracts import ToolResult

Json = dict[str, Any]
Send = Callable[[str, dict[str, str], Any], Awaitable[str | None]]
"""Posts to the endpoint of some gateway; the answer's text, or `None`: come again."""

KEY = "toolfleet/idempotencyKey"

_ERROR, _RUNNING = "toolfleet/error", "toolfleet/running"
_PAUSE_SECONDS = 0.5
_WORKING = "working"
_AWAY = "Redis does not answer"


async def call_over_mcp(send: Send, ref: str, tool: str, arguments: Json) -> str | None:
    """One request; the result, as REST has it, or `None` if the client is to come again."""
    result = await _asked(send, "tools/call", {"name": tool, "arguments": arguments}, None, ref)
    return None if result is None else result_of(tool, result)


async def call_as_task(send: Send, ref: str, tool: str, arguments: Json) -> str:
    """A request that may become a task, which is asked for at any gateway until it has ended."""
    while True:
        created = await _asked(send, "tools/call", {"name": tool, "arguments": arguments}, TASKS, ref)
        if created is not None and created["resultType"] == "task":
            return await _ended(send, tool, created["taskId"])
        if created is not None and (told := result_of(tool, created)) is not None:
            return told
        await asyncio.sleep(_PAUSE_SECONDS)


async def _ended(send: Send, tool: str, task_id: str) -> str:
    while True:
        state = await _asked(send, "tasks/get", {"taskId": task_id}, TASKS, None)
        if state is not None and state["status"] != _WORKING:
            told = result_of(tool, state["result"])
            if told is None:
                raise ValueError(f"a task has ended without a result: {state}")
            return told
        await asyncio.sleep(_PAUSE_SECONDS)


async def _asked(send: Send, method: str, params: Json, capabilities: Json | None, ref: str | None) -> Json | None:
    meta = {} if ref is None else {KEY: f"key of {ref}"}
    body, headers = request_of(method, params, capabilities, meta)
    text = await send("/mcp", headers, body)
    if text is None:
        return None
    message = json.loads(text) if text.startswith("{") else messages_of(text)[-1]
    if "error" in message:
        if _AWAY in message["error"]["message"]:
            return None
        raise ValueError(f"{method}: {message['error']}")
    found: Json = message["result"]
    return found


def result_of(tool: str, result: Json) -> str | None:
    """The result in one form, whatever it came as; `None`: it is none yet."""
    meta, text = result["_meta"], result["content"][0]["text"]
    if _RUNNING in meta:
        return None
    if not result["isError"]:
        return ToolResult.ok(tool, result["structuredContent"]).model_dump_json()
    facts = meta[_ERROR]
    if facts["error_code"] == "fleet_unavailable":
        return None
    said: Json = {"tool_name": tool, "success": False, "error": text, **facts}
    return ToolResult.model_validate(said).model_dump_json()
