"""The request that carries a call to its module."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx

from toolfleet_registry.contracts import PublishedCall


def build_request(call: PublishedCall, url: httpx.URL, *, seconds: float) -> httpx.Request:
    """`POST` with `{tool_name, arguments, user_id}`; no `user_id` for a call that has none.

    The same call id goes with every attempt, so that a module can tell a repeat; the time left lets it give up
    when we do. Raises `ValueError` if the arguments are not JSON.
    """
    body: dict[str, Any] = {"tool_name": call.tool_name, "arguments": call.arguments}
    if call.user_id is not None:
        body["user_id"] = call.user_id
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",  # unpacking costs the loop more than the bytes cost a local network
        "Content-Type": "application/json",
        "User-Agent": "toolfleet",
        "Idempotency-Key": call.call_id,
        "Toolfleet-Time-Left-Ms": str(max(0, int(seconds * 1000))),
    }
    content = _dump(body)
    if len(content) <= _PART_BYTES:
        return httpx.Request("POST", url, headers=headers, content=content)
    headers["Content-Length"] = str(len(content))
    return httpx.Request("POST", url, headers=headers, content=_parts(content))


def _dump(body: dict[str, Any]) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (TypeError, RecursionError) as exc:
        raise ValueError(str(exc)) from exc


async def _parts(content: bytes) -> AsyncGenerator[bytes]:
    """Large arguments a piece at a time, so that other calls get their turn between two."""
    for start in range(0, len(content), _PART_BYTES):
        yield content[start : start + _PART_BYTES]


_PART_BYTES = 2**18
