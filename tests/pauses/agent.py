"""Callers who do as they are told: who was told of a success goes on, and who was told "unknown" looks before they repeat."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from toolfleet import Caller, ToolCall, ToolFleet, ToolResult

_USERS = 50
_TIMEOUT = 40.0  # seconds for a call: a pause, a lease, and a busy machine


@dataclass
class Told:
    """What callers were told. `confirmed`: keys whose two writes both succeeded; `repeated`: what was sent again after a look.

    `ended`: how many calls did, by their codes.
    """

    confirmed: set[str] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)
    ended: Counter[str] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        return self.ended.total()


class Agent:
    """Makes a burst of calls, each user's own."""

    def __init__(self, fleet: ToolFleet, journal: Path) -> None:
        self.told = Told()
        self._fleet = fleet
        self._journal = journal

    async def burst(self, name: str, *, pairs: int, once: int) -> None:
        """So many pairs of writes, of which the second follows the first one's success, and so many things to do once."""
        async with asyncio.TaskGroup() as group:
            for number in range(max(pairs, once)):
                if number < pairs:
                    group.create_task(self._write_twice(f"{name}-{number}", number))
                if number < once:
                    group.create_task(self._do_once(f"{name}-{number}", number))

    async def _write_twice(self, key: str, user: int) -> None:
        results = [await self._call("set", user, key=key, value=1)]
        if results[0].success:
            results.append(await self._call("set", user, key=key, value=2))
        if len(results) > 1 and results[1].success:
            self.told.confirmed.add(key)

    async def _do_once(self, key: str, user: int) -> None:
        result = await self._call("send", user, key=key)
        if result.effect_state == "unknown" and not self._has_happened(key):
            self.told.repeated.add(key)
            await self._call("send", user, key=key)

    async def _call(self, tool: str, user: int, **arguments: object) -> ToolResult:
        caller = Caller(user_id=f"user-{user % _USERS}", permission="owner", allowed_modules="*")
        call = ToolCall(tool_name=f"owls.{tool}", arguments=arguments)
        result = await self._fleet.call(call, caller, timeout=_TIMEOUT)
        self.told.ended["success" if result.success else f"{result.error_code}, {result.effect_state}"] += 1
        return result

    def _has_happened(self, key: str) -> bool:
        return any(tool == "send" and key == done for tool, done, *_ in effects(self._journal))


def effects(journal: Path) -> list[tuple[str, str, int, str]]:
    """What the module has done, in order: tool, key, value, call id."""
    return [tuple(json.loads(line)) for line in journal.read_text().splitlines()]
