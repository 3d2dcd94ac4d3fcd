"""A request to a module, read with bounds: nothing that comes in is believed before it was looked at."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, ValidationError
from starlette.requests import ClientDisconnect, Request

from toolfleet_registry.contracts import Conversation, ModuleMessage

_CONVERSATION = frozenset(Conversation.model_fields)
_LONGEST_ID = 256
_LONGEST_SECONDS = 7 * 86_400.0


class TooLarge(Exception):
    """The request's body passed the limit."""


class ExecuteRequest(ModuleMessage):
    """What `POST /execute` takes."""

    tool_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    user_id: str | None = None


class ReconcileRequest(ModuleMessage):
    """What `POST /reconcile` takes."""

    call_id: str = Field(max_length=_LONGEST_ID)


class HeaderRefused(Exception):
    """A header that cannot be meant. The message says which."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to run a tool. `seconds`: the time left, if the caller says so; `streams`: it takes progress."""

    tool_name: str
    arguments: Mapping[str, Any]
    user_id: str | None
    call_id: str | None
    seconds: float | None
    streams: bool
    fingerprint: str

    @classmethod
    async def of(cls, request: Request, *, most_bytes: int) -> Self:
        """Read it. Raises `ValidationError`, `HeaderRefused`, `TooLarge` and `ClientDisconnect`."""
        body = await read_body(request, most_bytes)
        wish = ExecuteRequest.model_validate_json(body)
        call_id = request.headers.get("idempotency-key") or None
        if call_id is not None and len(call_id) > _LONGEST_ID:
            raise HeaderRefused(f"An Idempotency-Key has at most {_LONGEST_ID} characters.")
        return cls(
            wish.tool_name,
            wish.arguments,
            wish.user_id,
            call_id,
            _seconds(request.headers.get("toolfleet-time-left-ms")),
            "application/x-ndjson" in request.headers.get("accept", "").lower(),
            _fingerprint(wish),
        )

    def split(self, own: frozenset[str]) -> tuple[dict[str, Any], Conversation]:
        """The arguments, and what the agent's core has put beside them about the conversation.

        A tool's `own` parameters with such a name get theirs, too.
        """
        told = {name: self.arguments[name] for name in _CONVERSATION & self.arguments.keys()}
        arguments = {name: value for name, value in self.arguments.items() if name not in told or name in own}
        texts = {name: value for name, value in told.items() if isinstance(value, str)}
        return arguments, Conversation(**texts)


async def read_body(request: Request, most_bytes: int) -> bytes:
    """The body. Raises `TooLarge` as soon as it is."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most_bytes:
            raise TooLarge
    return bytes(body)


def _fingerprint(wish: ExecuteRequest) -> str:
    """Two requests that ask for the same have the same one, however their JSON is written."""
    text = json.dumps([wish.tool_name, wish.arguments, wish.user_id], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _seconds(header: str | None) -> float | None:
    try:
        seconds = float(header or "") / 1000
    except ValueError:
        return None
    return min(max(seconds, 0.0), _LONGEST_SECONDS) if math.isfinite(seconds) else None


__all__ = [
    "Call",
    "ClientDisconnect",
    "ExecuteRequest",
    "HeaderRefused",
    "ReconcileRequest",
    "TooLarge",
    "ValidationError",
    "read_body",
]
