"""The request that carries a call to its module."""

import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from yarl import URL

from toolfleet_registry.contracts import PublishedCall

# What is the same for every call.
COMMON_HEADERS = {
    "Accept": "application/json, application/x-ndjson",  # the second with progress in it
    "Accept-Encoding": "identity",  # unpacking costs the loop more than the bytes cost a local network
    "Content-Type": "application/json",
    "User-Agent": "toolfleet",
}

CallerToken = Callable[[PublishedCall], str]
"""Says who makes a call, in words that its module can verify."""


@dataclass(slots=True)
class ModuleRequest:
    """A `POST`, with its headers beside `COMMON_HEADERS`. Can be sent once."""

    url: URL
    body: bytes | AsyncGenerator[bytes]
    headers: dict[str, str]


def build_request(
    call: PublishedCall, url: URL, *, seconds: float, caller_token: CallerToken | None = None
) -> ModuleRequest:
    """`{tool_name, arguments, user_id}` as JSON; no `user_id` for a call that has none.

    The same call id goes with every attempt, so that a module can tell a repeat; the time left lets it give up
    when we do; a caller's token lets it trust the user id. Raises `ValueError` if the arguments are not JSON.
    """
    content = _dump(call)
    headers = headers_of(call, seconds=seconds, caller_token=caller_token)
    if len(content) <= _PART_BYTES:
        return ModuleRequest(url, content, headers)
    headers["Content-Length"] = str(len(content))
    return ModuleRequest(url, _parts(content), headers)


def headers_of(call: PublishedCall, *, seconds: float, caller_token: CallerToken | None) -> dict[str, str]:
    """What every request about a call carries."""
    headers = {"Idempotency-Key": call.call_id, "Toolfleet-Time-Left-Ms": str(max(0, int(seconds * 1000)))}
    if caller_token is not None:
        headers["Toolfleet-Caller"] = caller_token(call)
    return headers


def _dump(call: PublishedCall) -> bytes:
    body: dict[str, Any] = {"tool_name": call.tool_name, "arguments": call.arguments}
    if call.user_id is not None:
        body["user_id"] = call.user_id
    try:
        return _JSON.encode(body).encode()
    except (TypeError, RecursionError) as exc:
        raise ValueError(str(exc)) from exc


async def _parts(content: bytes) -> AsyncGenerator[bytes]:
    """Large arguments a piece at a time, so that other calls get their turn between two."""
    for start in range(0, len(content), _PART_BYTES):
        yield content[start : start + _PART_BYTES]


_JSON = json.JSONEncoder(allow_nan=False)
_PART_BYTES = 2**18
