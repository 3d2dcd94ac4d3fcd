"""What MCP clients of both eras do at gateways in a soak: calls, tasks, listings, sessions, and streams that they leave; and how it ended."""

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import httpx

from soak.rest_load import FEED_SECONDS, RestLoad, heard
from support.gateways.mcp_requests import TASKS, asked, request_of
from support.gateways.old_sessions import OldSession

_KINDS = {
    "call": 40,
    "keyed": 10,
    "with progress": 10,
    "left": 10,
    "task": 10,
    "listed": 8,
    "session": 8,
    "listener": 4,
}
"""What is done, and how often of a hundred."""

_ECHO = {"name": "owls.echo", "arguments": {"text": "hu"}}
_KEY = "toolfleet/idempotencyKey"
_TOKENS = itertools.count(1)


class McpLoad(RestLoad):
    """MCP clients of gateways."""

    name: ClassVar[str] = "MCP"
    kinds: ClassVar[Mapping[str, int]] = _KINDS

    async def done(self, kind: str, client: httpx.AsyncClient, number: int) -> str:
        """Do one thing. Returns how it ended."""
        if kind == "listener":
            stream = _stream(client, "subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            return await heard(stream, self.dice.uniform(0.1, FEED_SECONDS))
        return await _DOES[kind](client, number)


async def _called(client: httpx.AsyncClient, _: int) -> str:
    return _end_of(await asked(client, "tools/call", _ECHO))


async def _keyed(client: httpx.AsyncClient, number: int) -> str:
    """A call that another client's may be a repeat of."""
    return _end_of(await asked(client, "tools/call", _ECHO, {}, {_KEY: f"soak-{number // 2}"}))


async def _watched(client: httpx.AsyncClient, _: int) -> str:
    return _end_of(await asked(client, "tools/call", _nap(0.3), {}, {"progressToken": next(_TOKENS)}))


async def _listed(client: httpx.AsyncClient, _: int) -> str:
    answer = await asked(client, "tools/list", {})
    return _end_of(answer) if "error" in answer or answer["result"]["tools"] else "none"


async def _left(client: httpx.AsyncClient, number: int) -> str:
    """A call whose client goes, every second one with a key."""
    meta = {"progressToken": next(_TOKENS), **({_KEY: f"left-{number}"} if number % 2 else {})}
    return await heard(_stream(client, "tools/call", _nap(5), meta), 0.1)


async def _followed(client: httpx.AsyncClient, _: int) -> str:
    """A call that becomes a task, which is asked for until it has ended."""
    answer = await asked(client, "tools/call", _nap(1.5), TASKS)
    if "error" in answer or answer["result"]["resultType"] != "task":
        return f"no task: {_end_of(answer)}"
    while "result" in answer and answer["result"]["status"] == "working":
        answer = await asked(client, "tasks/get", {"taskId": answer["result"]["taskId"]}, TASKS)
    return str(answer["result"]["status"]) if "result" in answer else _end_of(answer)


async def _session(client: httpx.AsyncClient, _: int) -> str:
    """A session of an older client, with its stream, until it ends it."""
    session = await OldSession.open(client, "/mcp")
    await heard(client.stream("GET", session.path, headers=session.headers), 0.1)
    end = _end_of(await session.ask(client, "tools/call", **_ECHO))
    ended = await client.delete(session.path, headers=session.headers)
    return end if ended.is_success else str(ended.status_code)


def _nap(seconds: float) -> dict[str, Any]:
    return {"name": "owls.nap", "arguments": {"seconds": seconds}}


def _stream(
    client: httpx.AsyncClient, method: str, params: Mapping[str, Any], meta: Mapping[str, Any] | None = None
) -> Any:
    body, headers = request_of(method, params, None, meta)
    return client.stream("POST", "/mcp", json=body, headers=headers)


def _end_of(answer: Mapping[str, Any]) -> str:
    if "error" in answer:
        return str(answer["error"])[:100]
    result = answer["result"]
    return str(result["_meta"]["toolfleet/error"]["error_code"]) if result.get("isError") else "ok"


_DOES = {
    "call": _called,
    "keyed": _keyed,
    "with progress": _watched,
    "left": _left,
    "task": _followed,
    "listed": _listed,
    "session": _session,
}
