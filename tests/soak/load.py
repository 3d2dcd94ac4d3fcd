"""The calls of a soak: of each kind some, at a steady rate, and how they ended."""

import asyncio
import random
from collections import Counter

from soak.pace import steadily
from toolfleet import Caller, ToolCall, ToolFleet

_KINDS = {
    "echo": 70,
    "large": 2,
    "keyed": 6,
    "fail": 4,
    "once fails": 2,
    "late": 4,
    "cancelled": 4,
    "given up": 2,
    "unknown tool": 2,
    "turned away": 2,
    "garbled": 2,
}
"""What is called, and how often of a hundred."""

_TOOLS = {
    "fail": "owls.fail",
    "once fails": "owls.fail_once",
    "unknown tool": "owls.purr",
    "turned away": "owls.turn_away",
    "garbled": "owls.garble_read",
}
_LARGE = "x" * 300_000


class Load:
    """Makes the calls of one agent. `ends` counts how often which kind ended how."""

    def __init__(self, fleet: ToolFleet, seed: int) -> None:
        self._fleet = fleet
        self._dice = random.Random(seed)
        self.ends = Counter[tuple[str, str]]()

    async def run(self, rate: float, seconds: float) -> None:
        """Make calls for so long, and return when the last one has ended."""
        await steadily(rate, seconds, self._count)

    async def _count(self, number: int) -> None:
        kind = self._dice.choices(list(_KINDS), list(_KINDS.values()))[0]
        self.ends[kind, await self._call(kind, Caller(user_id=f"user-{number % 50}", permission="owner"), number)] += 1

    async def _call(self, kind: str, caller: Caller, number: int) -> str:
        if kind == "cancelled":
            handle = await self._fleet.submit(_nap(5), caller)
            await handle.cancel()
            result = await handle.result()
        elif kind == "given up":
            return await self._given_up(caller)
        else:
            timeout = 0.1 if kind == "late" else 30.0
            result = await self._fleet.call(_call_of(kind, number), caller, timeout=timeout)
        return result.error_code or "ok"

    async def _given_up(self, caller: Caller) -> str:
        call = asyncio.create_task(self._fleet.call(_nap(5), caller))
        await asyncio.sleep(0.05)
        call.cancel()
        await asyncio.wait([call])
        return "given up" if call.cancelled() else call.result().error_code or "ok"


def _nap(seconds: float) -> ToolCall:
    return ToolCall(tool_name="owls.nap", arguments={"seconds": seconds})


def _call_of(kind: str, number: int) -> ToolCall:
    if kind == "large":
        return ToolCall(tool_name="owls.echo", arguments={"text": _LARGE})
    if kind == "keyed":  # each key twice
        return ToolCall(tool_name="owls.echo", arguments={"key": number // 2}, idempotency_key=f"key-{number // 2}")
    if kind == "late":
        return _nap(0.3)
    return ToolCall(tool_name=_TOOLS.get(kind, "owls.echo"), arguments={"text": "hu"} if kind == "echo" else {})
