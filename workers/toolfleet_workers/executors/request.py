"""The request that carries a call to its module."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolfleet_registry.contracts import PublishedCall
from toolfleet_workers.executors.target import Target

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
    """A `POST`, with its headers beside those of its target."""

    target: Target
    body: bytes
    headers: dict[str, str]

    def head(self) -> bytes:
        """All that goes before the body. Raises `ValueError` if a header would make another one, or end them."""
        fields = "".join([f"{name}: {value}\r\n" for name, value in self.headers.items()])
        if len(_BREAK.findall(fields)) != 2 * len(self.headers):
            raise ValueError("a header must not have a line break or a null byte in it")
        return b"%b%bContent-Length: %d\r\n\r\n" % (self.target.head, fields.encode(), len(self.body))


def build_request(
    call: PublishedCall, target: Target, *, seconds: float, caller_token: CallerToken | None = None
) -> ModuleRequest:
    """`{tool_name, arguments, user_id}` as JSON; no `user_id` for a call that has none.

    The same call id goes with every attempt, so that a module can tell a repeat; the time left lets it give up
    when we do; a caller's token lets it trust the user id. Raises `ValueError` if the arguments are not JSON.
    """
    return ModuleRequest(target, _dump(call), headers_of(call, seconds=seconds, caller_token=caller_token))


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


_JSON = json.JSONEncoder(allow_nan=False)
_BREAK = re.compile("[\r\n\0]")
