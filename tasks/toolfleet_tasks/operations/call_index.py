"""Keeps the audit's calls searchable in memory: reads new lines at each query, and old ones once.

A process that shows calls has one. It costs a call nothing: there is no stored index, and processes without queries
read nothing.
"""

import asyncio
import json
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from math import isnan, nan
from typing import Any, Literal, Self

from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.agents.data_guards import DataGuards
from toolfleet_registry.contracts.calls import CONVERSATION, USER
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.offload import aside
from toolfleet_tasks.aio import end
from toolfleet_tasks.ledger.audit import FIELD, AuditLine
from toolfleet_tasks.ledger.contents import contents_for
from toolfleet_tasks.operations.call_story import RECORD_FIELDS, CallStory, story_of, waited_for_people

CallField = Literal["module", "tool", "user", "outcome", "error"]
"""A field by which calls can be chosen, and whose values are completed while a user types."""

_PARTS = (0.5, 0.95, 0.99)

EntryId = tuple[int, int]
"""Where a line stands in the audit's stream: milliseconds since the epoch, and a number."""

MOST_CALLS = 5_000
"""Of one segment: also how many lines are read from Redis at once."""

_ID_BYTES = 16

_NO_NAME = ""

_NO_CONVERSATION, _CONVERSATION_BYTES = 0, 8

_SECONDS = 5.0  # for one answer of Redis

_FRESH_SECONDS = 0.5  # questions that come together read once

_FIRST_CALLS = 1_000  # the first query waits for these only

_MOST_INDEXED = 1_000_000  # calls: 56 MB

_AS_BYTES = {NEVER_DECODE: True}

_Entry = tuple[bytes, Mapping[bytes, bytes]]  # as redis-py reads it


@dataclass(frozen=True, slots=True)
class CallFilter:
    """A filter of calls: of a module, of a tool by its full name, of a user, in a conversation, with an outcome, with an error code. `None`: all.

    They ended at `since` or later, and before `until`: milliseconds since the epoch, by Redis' clock. `hidden_user` and
    `hidden_conversation` are the names of the same ones where a profile hides personal data.
    """

    module: str | None = None
    tool: str | None = None
    user: str | None = None
    outcome: str | None = None
    error: str | None = None
    since: int | None = None
    until: int | None = None
    conversation: str | None = None
    hidden_user: str | None = None
    hidden_conversation: str | None = None

    def fits_tool(self, name: str) -> bool:
        """Return whether calls of this tool match."""
        return (self.tool is None or name == self.tool) and (self.module is None or module_of(name) == self.module)

    @property
    def chooses_tools(self) -> bool:
        """Whether the filter depends on the tool."""
        return self.tool is not None or self.module is not None


def module_of(tool_name: str) -> str:
    """Return the module's part of a tool's name."""
    return tool_name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class TimePercentiles:
    """The median, the 95th and the 99th percentile of some times, in milliseconds; `None`: no call has such a time."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class CallCharts:
    """`starts` of the steps (ms since the epoch); for each outcome that occurs, how many calls ended in each step.

    `queued` is the time from being published to the last attempt's begin, `ran` from there to the end.
    """

    starts: list[int]
    outcomes: dict[str, list[int]]
    queued: TimePercentiles
    ran: TimePercentiles
    calls: int


class CallSegment:
    """At most `MOST_CALLS` calls, oldest first. Lines of operators' changes are skipped."""

    def __init__(self, entries: Iterable[tuple[EntryId, AuditLine]] = ()) -> None:
        self._ended, self._numbers = array("Q"), array("Q")
        self._tools, self._users, self._outcomes, self._errors = (_NameColumn() for _ in range(4))
        self._queued, self._ran = array("f"), array("f")
        self._ids = bytearray()
        # Nearly each has few calls: their names would be most of the index.
        self._conversations = array("Q")
        for entry_id, line in entries:
            self.add(entry_id, line)

    def __len__(self) -> int:
        return len(self._ended)

    @property
    def is_full(self) -> bool:
        """Whether the next call goes into another segment."""
        return len(self) >= MOST_CALLS

    def add(self, entry_id: EntryId, line: AuditLine) -> None:
        """Take a call that ended after all the others."""
        if "change" in line or not isinstance(line.get("call_id"), str):
            return
        self._ended.append(entry_id[0])
        self._numbers.append(entry_id[1])
        self._tools.add(line.get("tool"))
        self._users.add(line.get("user_id"))
        self._outcomes.add(line.get("outcome"))
        self._errors.add(line.get("error_code"))
        self._queued.append(_milliseconds(line.get("queued_ms")))
        self._ran.append(_milliseconds(line.get("duration_ms")))
        self._ids += _digest(line["call_id"])
        self._conversations.append(_conversation_of(line))

    def starts_before(self, entry_id: EntryId) -> bool:
        """Return whether its first call's line is at or before an entry."""
        return len(self) > 0 and self.entry(0) <= entry_id

    def entry(self, row: int) -> EntryId:
        """Return the entry id of a call's line."""
        return self._ended[row], self._numbers[row]

    def rows(self, wanted: CallFilter, *, before: EntryId | None = None) -> list[int]:
        """Return the matching calls, the newest first; `before`: of those with lines before it."""
        first = 0 if wanted.since is None else self.first_at(wanted.since)
        last = len(self) if wanted.until is None else self.first_at(wanted.until)
        if before is not None:
            last = min(last, self._row_of(before))
        fitting = self._fitting(wanted)
        if fitting is None or first >= last:
            return []
        rows: Iterable[int] = range(first, last)
        for codes, column in fitting:
            rows = [row for row in rows if column[row] in codes]
        return list(rows)[::-1]

    def rows_of(self, call_id: str) -> list[int]:
        """The rows of one call: it has several where its line was written twice."""
        digest, found, at = _digest(call_id), list[int](), -1
        while (at := self._ids.find(digest, at + 1)) >= 0:
            if at % _ID_BYTES == 0:
                found.append(at // _ID_BYTES)
        return found

    def outcomes(self, rows: Sequence[int]) -> Counter[str]:
        """Return how many of some calls had each outcome."""
        names, codes = self._outcomes.names(), self._outcomes.codes
        return Counter({names[code]: count for code, count in Counter([codes[row] for row in rows]).items()})

    def times(self, rows: Sequence[int]) -> tuple[list[float], list[float]]:
        """Return how many ms each call waited, and how many it ran; NaN: unknown."""
        return [self._queued[row] for row in rows], [self._ran[row] for row in rows]

    def first_at(self, moment: int) -> int:
        """The first row that ended at a moment (ms since the epoch) or later."""
        return bisect_left(self._ended, moment)

    def counts(self, field: CallField) -> Counter[str]:
        """Return how many calls each value of a field has."""
        if field == "module":
            modules = Counter[str]()
            for name, count in self._tools.counts():
                modules[module_of(name)] += count
            return modules
        columns = {"tool": self._tools, "user": self._users, "outcome": self._outcomes, "error": self._errors}
        return Counter(dict(columns[field].counts()))

    def _row_of(self, entry_id: EntryId) -> int:
        """Return the row of the first call with a line that is not before the entry."""
        row = bisect_left(self._ended, entry_id[0])
        while row < len(self) and self.entry(row) < entry_id:
            row += 1
        return row

    def _fitting(self, wanted: CallFilter) -> list[tuple[frozenset[int], Sequence[int]]] | None:
        """The codes that fit, for each column that matters; `None`: no call of this segment does."""
        fitting = list[tuple[frozenset[int], Sequence[int]]]()
        if wanted.chooses_tools:
            codes = frozenset(code for code, name in enumerate(self._tools.names()) if wanted.fits_tool(name))
            fitting.append((codes, self._tools.codes))
        users = (wanted.user, wanted.hidden_user)
        named = ((users, self._users), ((wanted.outcome,), self._outcomes), ((wanted.error,), self._errors))
        for names, column in named:
            if names[0] is not None:
                found = (column.code_of(name) for name in names if name is not None)
                fitting.append((frozenset(code for code in found if code is not None), column.codes))
        if wanted.conversation is not None:
            codes = frozenset(map(_code_of, {wanted.conversation, wanted.hidden_conversation or wanted.conversation}))
            fitting.insert(0, (codes, self._conversations))
        return None if any(not codes for codes, _ in fitting) else fitting


def charts_of(segments: Sequence[CallSegment], wanted: CallFilter, *, since: int, until: int, steps: int) -> CallCharts:
    """Return the charts of matching calls that ended at `since` or later and before `until`.

    Raises `ValueError` for an empty period.
    """
    if until <= since or steps < 1:
        raise ValueError("`until` is after `since`, and there is at least one step")
    starts = [since + (until - since) * step // steps for step in range(steps)]
    within = replace(wanted, since=max(since, wanted.since or 0), until=min(until, wanted.until or until))
    outcomes, queued, ran, calls = dict[str, list[int]](), list[float](), list[float](), 0
    for segment in segments:
        rows = segment.rows(within)[::-1]
        calls += len(rows)
        for step, in_step in enumerate(_by_step(segment, rows, starts)):
            for outcome, count in segment.outcomes(in_step).items():
                outcomes.setdefault(outcome, [0] * steps)[step] += count
        more_queued, more_ran = segment.times(rows)
        queued += more_queued
        ran += more_ran
    return CallCharts(starts, outcomes, percentiles_of(queued), percentiles_of(ran), calls)


def _by_step(segment: CallSegment, rows: Sequence[int], starts: Sequence[int]) -> list[Sequence[int]]:
    """The rows of each step, of rows that are in the order of time."""
    firsts = [bisect_left(rows, segment.first_at(start)) for start in starts]
    return [rows[first:following] for first, following in pairwise([*firsts, len(rows)])]


def percentiles_of(times: Sequence[float]) -> TimePercentiles:
    """Return percentiles by the nearest rank: the smallest time that is at least as long as that part of all.

    NaN is left out.
    """
    known = sorted(time for time in times if not isnan(time))
    if not known:
        return TimePercentiles()
    return TimePercentiles(*(known[max(-(-round(part * 100) * len(known) // 100), 1) - 1] for part in _PARTS))


class _NameColumn:
    """A column of names, each of which is stored once."""

    def __init__(self) -> None:
        self.codes = array("H")
        self._code_of = dict[str, int]()
        self._calls = array("I")  # by code

    def add(self, name: Any) -> None:
        text = name if isinstance(name, str) else _NO_NAME
        code = self._code_of.setdefault(text, len(self._code_of))
        self.codes.append(code)
        if code == len(self._calls):
            self._calls.append(0)
        self._calls[code] += 1

    def names(self) -> list[str]:
        return list(self._code_of)

    def code_of(self, name: str) -> int | None:
        return self._code_of.get(name)

    def counts(self) -> Iterator[tuple[str, int]]:
        """Yield each non-empty name, and the number of its calls."""
        return ((name, calls) for name, calls in zip(self._code_of, self._calls, strict=True) if name)


def _conversation_of(line: AuditLine) -> int:
    """Return a line's conversation; a worker of an earlier version has it in another field."""
    name = line.get(CONVERSATION)
    if name is None and isinstance(decisions := line.get("decisions"), dict):
        name = decisions.get(CONVERSATION)
    return _code_of(name) if isinstance(name, str) and name else _NO_CONVERSATION


def _code_of(conversation: str) -> int:
    digest = blake2b(conversation.encode("utf-8", "replace"), digest_size=_CONVERSATION_BYTES).digest()
    return int.from_bytes(digest, "big")


def _digest(call_id: str) -> bytes:
    return blake2b(call_id.encode("utf-8", "replace"), digest_size=_ID_BYTES).digest()


def _milliseconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12 else nan  # noqa: PLR2004 - thirty years


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
        async with settings.redis_client(timeout_seconds=_SECONDS) as redis:
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
        """Return at most `count` matching calls, of those with an entry before `before`.

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
        requested_at: Callable[[], Awaitable[float | None]] | None = None,
    ) -> CallStory | None:
        """Return what happened to a call, also to one that has not ended; `None` if it is not known (any more).

        `requested_at` tells when (ms) people were asked about it; only for a call that waits, or has waited, for them.
        With its contents for a reader who `sees_all`, and for one who acts for its own user, `user_id`, and sees calls of its tool.
        """
        found = await self.of_call(call_id)
        lines, stored_at = [listed.line for listed in found], float(entry_of(found[-1].entry)[0]) if found else None
        async with answering(self._redis, seconds=_SECONDS), self._redis.pipeline(transaction=False) as pipe:
            pipe.hmget(self._keys.call(call_id), RECORD_FIELDS)
            pipe.get(self._keys.contents(call_id))
            pipe.get(self._keys.turn_of(call_id))
            record, kept, line = await pipe.execute()
            turn = await self._turn_in(line, call_id)
        asked_at = await requested_at() if requested_at and waited_for_people(lines, record) else None
        story = story_of(call_id, lines, record, stored_at=stored_at, requested_at=asked_at)
        if story is None and turn is not None:  # it has no record before a worker has it
            story = CallStory(call_id, [], [], [], "queued")
        contents = contents_for(self._keys, kept, user_id=user_id, sees_all=sees_all, sees_tool=sees_tool)
        return None if story is None else replace(story, contents=contents, turn=turn)

    async def _turn_in(self, noted: bytes | str | None, call_id: str) -> str | None:
        """Return what a call waits for in its line, which is `noted`, in words; `None` if it waits in none."""
        if noted is None:
            return None
        _, _, line = (noted.decode() if isinstance(noted, bytes) else noted).partition(" ")
        place: Any = await self._redis.zrank(self._keys.line(line), call_id)
        running: int = await self._redis.zcard(self._keys.turns(line))
        return None if place is None else f"waits for its turn: {place + running} before it"

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
