"""News of jobs' ends and of the registry that wait, or that nobody accepted: how they are shown, delivered after all, and dropped."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.errors import FleetUnavailable, MessageRefused, NotReplayable
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.messages.signing import Seal
from toolfleet_tasks.redis.connection import Line, LineLost, Part
from toolfleet_tasks.wakeups.events import opened_wake
from toolfleet_tasks.wakeups.scripts import DROP, REPLAY
from toolfleet_tasks.wakeups.sender import PATHS
from toolfleet_tasks.wakeups.webhook_events import REGISTRY, parts_of

MOST_LISTED = 1_000
"""News that one look may bring."""

_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class KeptWake:
    """News of a job's end, or an event of the registry for one receiver, that wait or were given up."""

    wake_id: str
    """The id of the news."""
    kind: str
    """`continue`, `notify`, `call`, or `registry`: an event for a webhook."""
    tries: int
    """How many tries were begun."""
    first_at: float
    """When the first one was, in seconds since the epoch."""
    due_at: float | None
    """When the next one is, in seconds since the epoch, of news that wait."""
    died_at: float | None
    """When they were given up, in seconds since the epoch."""
    error: str
    """Why the last try failed."""
    body: dict[str, Any] | None
    """What is sent, or of a call what is to be called, without sensitive arguments; `None` if it cannot be read, or is not the fleet's."""

    def told(self, name: str) -> str | None:
        """A field of the body, if it is a text."""
        value = (self.body or {}).get(name)
        return value if isinstance(value, str) else None


class KeptWakes:
    """The news in Redis. Everything raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, line: Line, keys: Keys, seal: Seal) -> None:
        self._line = line
        self._keys = keys
        self._seal = seal
        self._dead = (keys.dead_wakes, keys.dead_wakes_order, keys.dead_wakes_bytes)

    async def waiting(self, limit: int = 50, offset: int = 0) -> list[KeptWake]:
        """At most `limit` of those that wait for a try, those due next first."""
        first, last = _range(limit, offset)
        receivers = [name.decode(errors="replace") for name in await self._ask("HKEYS", self._keys.webhook_positions)]
        sets = [self._keys.calls_due, self._keys.wakes_due, *map(self._keys.webhooks_due, receivers)]
        due = [pair for name in sets for pair in await self._ask("ZRANGE", name, 0, last, "WITHSCORES")]
        ids = [wake_id.decode(errors="replace") for wake_id, _ in sorted(due, key=lambda one: float(one[1]))]
        found = [await self._waiting_one(wake_id) for wake_id in ids[first : last + 1]]
        return [wake for wake in found if wake is not None]  # None: delivered just now

    async def dead(self, limit: int = 50, offset: int = 0) -> list[KeptWake]:
        """At most `limit` of those that nobody accepted, the latest first."""
        first, last = _range(limit, offset)
        ids: Sequence[bytes] = await self._ask("ZREVRANGE", self._keys.dead_wakes_order, first, last)
        values = await self._ask("HMGET", self._keys.dead_wakes, *ids) if ids else ()
        pairs = zip(ids, values, strict=True)
        return [
            self._dead_one(wake_id.decode(errors="replace"), value) for wake_id, value in pairs if value is not None
        ]

    async def show(self, wake_id: str) -> KeptWake | None:
        """One that waits or is dead; `None`: there is none, so it was accepted, dropped, or never was."""
        value = await self._ask("HGET", self._keys.dead_wakes, wake_id)
        return await self._waiting_one(wake_id) if value is None else self._dead_one(wake_id, value)

    async def replay(self, wake_id: str) -> bool:
        """Have dead news tried anew, under the same id, as long as new ones; and waiting ones now. Returns whether they were there.

        Raises `NotReplayable` as well.
        """
        names = (*self._dead, self._keys.wake(wake_id), self._keys.wakes_due, self._keys.clock)
        became: int = await self._ask("EVAL", REPLAY.text, *REPLAY.parameters_of(names, id=wake_id))
        if became < 0:
            why = "cannot be read" if became == -1 else "are a call with sensitive arguments, which are not kept"
            raise NotReplayable(f"The news {wake_id!r} {why}: they can be dropped only.")
        return became == 1

    async def drop(self, wake_ids: Sequence[str]) -> tuple[str, ...]:
        """Forget these dead ones. Returns the ids of those that were there."""
        dropped = list[str]()
        for wake_id in dict.fromkeys(wake_ids):
            if await self._ask("EVAL", DROP.text, *DROP.parameters_of(self._dead, id=wake_id)):
                dropped.append(wake_id)
        return tuple(dropped)

    async def drop_all(self) -> int:
        """Forget all dead ones. Returns how many there were."""
        count: int = await self._ask("HLEN", self._keys.dead_wakes)
        await self._ask("UNLINK", *self._dead)
        return count

    async def _waiting_one(self, wake_id: str) -> KeptWake | None:
        names = ("kind", "body", "tries", "first_at", "error")
        kind, body, tries, first_at, error = await self._ask("HMGET", self._keys.wake(wake_id), *names)
        if kind is None:
            return None
        due = await self._ask("ZSCORE", self._due_set(wake_id, kind), wake_id)
        return KeptWake(
            wake_id=wake_id,
            kind=kind.decode(errors="replace"),
            tries=int(tries or 0),
            first_at=float(first_at or 0) / 1000,
            due_at=None if due is None else float(due) / 1000,
            died_at=None,
            error=(error or b"").decode(errors="replace"),
            body=self._body(wake_id, kind.decode(errors="replace"), (body or b"").decode(errors="replace")),
        )

    def _due_set(self, wake_id: str, kind: bytes) -> str:
        if kind == REGISTRY.encode():
            return self._keys.webhooks_due(parts_of(wake_id)[1])
        return self._keys.calls_due if kind == b"call" else self._keys.wakes_due

    def _dead_one(self, wake_id: str, value: bytes) -> KeptWake:
        """Whatever is kept under this id."""
        kept = _object(value) or {}
        kind = str(kept.get("kind", "?"))
        return KeptWake(
            wake_id=wake_id,
            kind=kind,
            tries=int(_number(kept.get("tries"))),
            first_at=_number(kept.get("first_at")) / 1000,
            due_at=None,
            died_at=_number(kept.get("died_at")) / 1000,
            error=str(kept.get("error", "It cannot be read.")),
            body=self._body(wake_id, kind, str(kept.get("body", ""))),
        )

    def _body(self, wake_id: str, kind: str, text: str) -> dict[str, Any] | None:
        if kind not in {*PATHS, REGISTRY}:
            found = _object(text)
            is_secret = found is not None and found.get("is_secret")
            # The call is sealed and not encrypted.
            return {name: value for name, value in found.items() if name != "call"} if found and is_secret else found
        try:
            return _object(opened_wake(text, self._seal, wake_id=wake_id, kind=kind))
        except MessageRefused:
            return None

    async def _ask(self, *command: Part) -> Any:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await self._line.execute(*command)
        except (TimeoutError, LineLost, ResponseError) as exc:
            reason = str(exc) or f"no answer within {_PATIENCE_SECONDS:g} s"
            raise FleetUnavailable(f"Redis does not answer: {reason}") from exc


def _range(limit: int, offset: int) -> tuple[int, int]:
    if not 1 <= limit <= MOST_LISTED or offset < 0:
        raise ValueError(f"limit must be from 1 to {MOST_LISTED}, and offset at least 0")
    return offset, offset + limit - 1


def _object(text: str | bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return 0.0
