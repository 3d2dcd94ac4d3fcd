"""Keeps the audit's calls searchable in memory: reads new lines at each query, and old ones once, the latest first.

A process that shows calls has one. It costs a call nothing: there is no stored index, and processes without queries
read nothing.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.agents.data_guards import DataGuards
from toolfleet_registry.contracts.decisions import CONVERSATION, USER
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.servers import answering, async_client
from toolfleet_registry.redis.urls import fleet_url
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.offload import aside
from toolfleet_tasks.aio.cancellation import end
from toolfleet_tasks.ledger.audit import FIELD, AuditLine
from toolfleet_tasks.ledger.contents import contents_for
from toolfleet_tasks.operations.calls.call_charts import CallCharts, charts_of
from toolfleet_tasks.operations.calls.call_filter import CallField, CallFilter
from toolfleet_tasks.operations.calls.call_segment import MOST_CALLS, CallSegment, EntryId
from toolfleet_tasks.operations.calls.call_story import RECORD_FIELDS, CallStory, story_of

_SECONDS = 5.0  # for one answer of Redis
_FRESH_SECONDS = 0.5  # questions that come together read once
_FIRST_CALLS = 1_000  # the first query waits for these only
_MOST_INDEXED = 1_000_000  # calls: 56 MB
_AS_BYTES = {NEVER_DECODE: True}

_Entry = tuple[bytes, Mapping[bytes, bytes]]  # as redis-py reads it


@dataclass(frozen=True, slots=True)
class ListedCall:
    """A call's audit line, and its entry in the stream: the `before` of what comes after it in the list."""

    entry: str
    line: AuditLine


@dataclass(frozen=True, slots=True)
class FoundCalls:
    """Calls, the latest first. `found` are all that fit, and `indexed` those that were searched.

    `is_whole`: the index has all of the audit; else older calls are still being read.
    """

    calls: list[ListedCall]
    found: int
    indexed: int
    is_whole: bool
    next: str | None = None


class CallIndex:
    """Answers questions about calls that have ended. Each raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, redis: Redis, settings: Settings, guards: DataGuards) -> None:
        self._redis, self._keys, self._guards = redis, settings.keys, guards
        self._key = self._keys.audit
        self._segments: list[CallSegment] = []  # the oldest first
        self._newest: EntryId | None = None  # that was read; `None`: nothing was
        self._oldest: EntryId | None = None
        self._kept_since = 0  # ms: what ended before is no longer in the audit
        self._is_whole = False
        self._fresh_until = 0.0
        self._reading = asyncio.Lock()
        self._older: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings) -> AsyncGenerator[Self]:
        """The index of a fleet, empty until it is asked. Raises `SettingsError` where no Redis is set."""
        client = async_client(fleet_url(settings.redis_url), master=settings.sentinel_master, timeout_seconds=_SECONDS)
        async with client as redis:
            index = cls(redis, settings, DataGuards(settings))
            try:
                yield index
            finally:
                await index.aclose()

    async def aclose(self) -> None:
        """Read nothing more."""
        if self._older is not None:
            await end([self._older])

    async def read_all(self) -> None:
        """Read all of the audit, for one who asks once, for an old call perhaps."""
        await self._refresh()
        if self._older is not None:
            await asyncio.wait([self._older])

    async def find(self, wanted: CallFilter, *, before: str | None = None, count: int = 50) -> FoundCalls:
        """Return at most `count` matching calls, of those whose entry is before `before`.

        Raises `ValueError` if `before` is no entry.
        """
        limit = None if before is None else entry_of(before)
        await self._refresh()
        entries, found = list[EntryId](), 0
        for segment in reversed(self._segments):
            rows = segment.rows(self._kept(wanted), before=limit)
            entries += [segment.entry(row) for row in rows[: count - len(entries)]]
            found += len(rows)
        lines = await self._lines(entries)
        following = text_of(entries[-1]) if found > len(entries) > 0 else None
        return FoundCalls(lines, found, sum(map(len, self._segments)), self._is_whole, following)

    async def of_call(self, call_id: str) -> list[ListedCall]:
        """The lines of one call, oldest first; empty: the index has none (yet)."""
        await self._refresh()
        entries = [segment.entry(row) for segment in self._segments for row in segment.rows_of(call_id)]
        return [listed for listed in await self._lines(entries) if listed.line.get("call_id") == call_id]

    async def story(
        self,
        call_id: str,
        *,
        user_id: str | None = None,
        sees_all: bool = False,
        sees_tool: Callable[[str], bool] = lambda _: True,
    ) -> CallStory | None:
        """Return what happened to a call, also to one that has not ended; `None` if it is not known (any more).

        With its contents for a reader who `sees_all`, and for one who acts for its own user, `user_id`, and sees calls of its tool.
        """
        found = await self.of_call(call_id)
        lines, stored_at = [listed.line for listed in found], float(entry_of(found[-1].entry)[0]) if found else None
        async with answering(self._redis, seconds=_SECONDS), self._redis.pipeline(transaction=False) as pipe:
            pipe.hmget(self._keys.call(call_id), RECORD_FIELDS)
            pipe.get(self._keys.contents(call_id))
            record, kept = await pipe.execute()
        story = story_of(call_id, lines, record, stored_at=stored_at)
        contents = contents_for(self._keys, kept, user_id=user_id, sees_all=sees_all, sees_tool=sees_tool)
        return None if story is None else replace(story, contents=contents)

    async def values(self, field: CallField, prefix: str = "", *, count: int = 20) -> list[tuple[str, int]]:
        """Return the values of a field with this prefix, ignoring case, with their numbers of calls; the most frequent first."""
        await self._refresh()
        counted = Counter[str]()
        for segment in self._segments:
            counted.update(segment.counts(field))
        begins = prefix.casefold()
        fitting = [(name, calls) for name, calls in counted.items() if name.casefold().startswith(begins)]
        return sorted(fitting, key=lambda one: (-one[1], one[0]))[:count]

    async def charts(self, wanted: CallFilter, *, since: int, until: int, steps: int) -> CallCharts:
        """Return charts of the calls between two moments (ms since the epoch), in so many steps of the same length."""
        await self._refresh()
        chosen = self._kept(wanted)
        work = partial(charts_of, list(self._segments), chosen, since=since, until=until, steps=steps)
        return await aside(work, is_large=len(self._segments) > 1)

    def _kept(self, wanted: CallFilter) -> CallFilter:
        since, digest = max(self._kept_since, wanted.since or 0), self._guards.digest
        user, conversation = digest(USER, wanted.user), digest(CONVERSATION, wanted.conversation)
        return replace(wanted, since=since, hidden_user=user, hidden_conversation=conversation)

    async def _refresh(self) -> None:
        """Read new lines; at the first time the latest calls, and then the older ones in the background."""
        async with self._reading:
            now = asyncio.get_running_loop().time()
            if now < self._fresh_until:
                return
            if self._newest is not None and await self._has_begun_anew():
                await self._forget()
            if self._newest is None:
                await self._begin()
            else:
                await self._read_new()
            await self._trim()
            self._fresh_until = now + _FRESH_SECONDS

    async def _begin(self) -> None:
        entries = await self._ask("XREVRANGE", self._key, "+", "-", "COUNT", _FIRST_CALLS)
        self._newest = _id_of(entries[0]) if entries else (0, 0)
        self._oldest = _id_of(entries[-1]) if entries else (0, 0)
        self._segments = [await asyncio.to_thread(_segment, entries[::-1])]
        self._is_whole = len(entries) < _FIRST_CALLS
        if not self._is_whole:
            self._older = asyncio.get_running_loop().create_task(self._read_older(), name="toolfleet-older-calls")

    async def _read_older(self) -> None:
        """Read back to the audit's first line. An outage of Redis ends it: the next query starts it again."""
        try:
            while self._oldest is not None and sum(map(len, self._segments)) < _MOST_INDEXED:
                end_before = f"({text_of(self._oldest)}"
                entries = await self._ask("XREVRANGE", self._key, end_before, "-", "COUNT", MOST_CALLS)
                if entries:
                    self._segments.insert(0, await asyncio.to_thread(_segment, entries[::-1]))
                    self._oldest = _id_of(entries[-1])
                if len(entries) < MOST_CALLS:
                    break
            self._is_whole = True
        except FleetUnavailable:
            self._newest, self._fresh_until = None, 0.0

    async def _read_new(self) -> None:
        while True:
            entries = await self._ask(
                "XRANGE", self._key, f"({text_of(self._newest or (0, 0))}", "+", "COUNT", MOST_CALLS
            )
            lines = await asyncio.to_thread(_lines_of, entries)
            for entry_id, line in lines:
                if self._segments[-1].is_full:
                    self._segments.append(CallSegment())
                self._segments[-1].add(entry_id, line)
            if entries:
                self._newest = _id_of(entries[-1])
            if len(entries) < MOST_CALLS:
                return

    async def _trim(self) -> None:
        """Drop segments of which the audit has nothing more."""
        first = await self._ask("XRANGE", self._key, "-", "+", "COUNT", 1)
        oldest = _id_of(first[0]) if first else (2**63, 0)
        self._kept_since = oldest[0]
        while len(self._segments) > 1 and (
            self._segments[1].starts_before(oldest) or sum(map(len, self._segments)) > _MOST_INDEXED
        ):
            del self._segments[0]

    async def _has_begun_anew(self) -> bool:
        """Return whether Redis has come back without the last lines that were read, or the stream was removed."""
        latest = await self._ask("XREVRANGE", self._key, "+", "-", "COUNT", 1)
        return (_id_of(latest[0]) if latest else (0, 0)) < (self._newest or (0, 0))

    async def _forget(self) -> None:
        await self.aclose()
        self._segments, self._newest, self._oldest, self._is_whole = [], None, None, False

    async def _lines(self, entries: list[EntryId]) -> list[ListedCall]:
        """Return the lines of these entries; one that the audit has dropped meanwhile is left out."""
        if not entries:
            return []
        async with answering(self._redis, seconds=_SECONDS), self._redis.pipeline(transaction=False) as pipe:
            for entry in map(text_of, entries):
                pipe.execute_command("XRANGE", self._key, entry, entry, **_AS_BYTES)
            answers = await pipe.execute()
        lines = ((entry, _lines_of(answer)) for entry, answer in zip(entries, answers, strict=True))
        return [ListedCall(text_of(entry), found[0][1]) for entry, found in lines if found]

    async def _ask(self, *command: Any) -> list[_Entry]:
        async with answering(self._redis, seconds=_SECONDS):
            answer: Any = await self._redis.execute_command(*command, **_AS_BYTES)
            found: list[_Entry] = answer
            return found


def entry_of(text: str) -> EntryId:
    """The entry that a text names. Raises `ValueError`."""
    moment, dash, number = text.partition("-")
    if not (dash and moment.isascii() and moment.isdecimal() and number.isascii() and number.isdecimal()):
        raise ValueError("it is not the id of an entry")
    entry = int(moment), int(number)
    if max(entry) >= 2**63:
        raise ValueError("it is not the id of an entry")
    return entry


def text_of(entry: EntryId) -> str:
    """An entry, as Redis writes it."""
    return f"{entry[0]}-{entry[1]}"


def _segment(entries: list[_Entry]) -> CallSegment:
    return CallSegment(_lines_of(entries))


def _lines_of(entries: list[_Entry]) -> list[tuple[EntryId, AuditLine]]:
    """Parse entries, without those that are no lines: another version's, or foreign."""
    lines = list[tuple[EntryId, AuditLine]]()
    for entry in entries:
        try:
            line = json.loads(entry[1][FIELD.encode()])
        except (KeyError, ValueError, RecursionError):
            continue
        if isinstance(line, dict):
            lines.append((_id_of(entry), line))
    return lines


def _id_of(entry: _Entry) -> EntryId:
    moment, _, number = entry[0].partition(b"-")
    return int(moment), int(number)
