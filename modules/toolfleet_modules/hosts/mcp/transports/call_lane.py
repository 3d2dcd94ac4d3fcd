"""Sends calls to a server's program past the SDK, whose models and streams would cost more than all else of a call."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED
from opentelemetry.propagate import inject
from pydantic_core import to_json

FIRST_ID = 2**30
"""Of a call's request. The SDK counts from 1 in the same session; some servers take no more than 32 bits."""

_DIGITS = re.compile(r"[0-9]{1,18}")

_NOTHING: Mapping[str, Any] = MappingProxyType({})

OnProgress = Callable[[float, float | None, str | None], None]
"""Is told how far a call is, of how much if that is known, and in words."""


@dataclass(frozen=True, slots=True)
class _Pending:
    answer: asyncio.Future[dict[str, Any]]
    on_progress: OnProgress


class CallLane:
    """The calls of one session. `write` takes a message's bytes. `meta` goes with each call: what the protocol's version asks for."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.meta: Mapping[str, Any] = {}
        self._write = write
        self._pending: dict[int, _Pending] = {}
        self._next_id = FIRST_ID
        self._is_ended = False

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        on_progress: OnProgress,
        *,
        more: Mapping[str, Any] = _NOTHING,
        meta: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The server's answer as it is; `more` parameters go beside the arguments, and another `meta` than usual.

        Cancelled, the server is told. Raises `MCPError`.
        """
        if self._is_ended:
            raise _closed()
        number, self._next_id = self._next_id, self._next_id + 1
        sent = {**(self.meta if meta is None else meta), "progressToken": number}
        inject(sent)  # the trace, where the host is traced
        params = {"name": tool, "arguments": arguments, **more, "_meta": sent}
        written = to_json({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[number] = _Pending(answer, on_progress)
        self._write(written)
        try:
            return await answer
        finally:
            del self._pending[number]
            if answer.cancelled() and not self._is_ended:
                over = {"requestId": number, "reason": "caller cancelled"}
                self._write(to_json({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": over}))

    def take(self, message: Mapping[str, Any]) -> bool:
        """Whether a message is a call's: its answer, or its progress. One of a call that is over is taken, and ignored."""
        if message.get("jsonrpc") != "2.0":
            return False
        if "method" in message:
            return message["method"] == "notifications/progress" and self._take_progress(message.get("params"))
        number = _number_in(message.get("id"))
        if number < FIRST_ID:
            return False
        result, error = message.get("result"), message.get("error")
        if isinstance(result, dict):
            self._answer(number, result)
        elif (
            isinstance(error, dict) and type(code := error.get("code")) is int and isinstance(error.get("message"), str)
        ):
            self._answer(number, MCPError(code=code, message=error["message"], data=error.get("data")))
        else:
            return False
        return True

    def end(self) -> None:
        """Have no more calls: the server is lost to those that there are."""
        self._is_ended = True
        for number in self._pending:
            self._answer(number, _closed())

    def _answer(self, number: int, answer: dict[str, Any] | MCPError) -> None:
        pending = self._pending.get(number)
        if pending is None or pending.answer.done():  # it came twice, or too late
            return
        if isinstance(answer, MCPError):
            pending.answer.set_exception(answer)
        else:
            pending.answer.set_result(answer)

    def _take_progress(self, params: object) -> bool:
        if not isinstance(params, dict) or (number := _number_in(params.get("progressToken"))) < FIRST_ID:
            return False
        pending, progress = self._pending.get(number), _float_of(params.get("progress"))
        if pending is not None and progress is not None:
            words = params.get("message")
            report = progress, _float_of(params.get("total")), words if isinstance(words, str) else None
            # Not from here: whatever it raises, other messages are read on.
            asyncio.get_running_loop().call_soon(pending.on_progress, *report)
        return True


def _number_in(identifier: object) -> int:
    """A request's number, which some servers return as text; -1 for what is none."""
    if isinstance(identifier, str) and _DIGITS.fullmatch(identifier):
        return int(identifier)
    return identifier if type(identifier) is int else -1


def _float_of(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with contextlib.suppress(OverflowError):
        return float(value)
    return None


def _closed() -> MCPError:
    return MCPError(code=CONNECTION_CLOSED, message="Connection closed")
