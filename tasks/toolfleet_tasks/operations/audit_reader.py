"""Reads the audit in Redis for an operator: its latest lines, and those that come."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.redis_errors import answering
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import fleet_url
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio.cancellation import is_wanted
from toolfleet_tasks.ledger.audit import FIELD, AuditLine
from toolfleet_tasks.operations.change_trail import BEGUN

_PATIENCE_SECONDS = 5.0  # for one answer of Redis, beyond what it was told to wait
_BLOCK_SECONDS = 2.0  # Redis holds a follower's question for so long
_PAUSE_SECONDS = 0.5  # before Redis is asked again that did not answer
_PAGE = 500  # lines at once
_MOST_PAGES = 20  # that one query may read: a caller that wants more asks again
_ENTRY_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}", re.ASCII)
_PLAIN_NAME = re.compile(r"[\w.@:-]+", re.ASCII)  # JSON has it letter for letter
_FIRST = "0-0"  # before every entry
_AS_BYTES = {NEVER_DECODE: True}
_FIELD = FIELD.encode()

_Entry = tuple[bytes, Mapping[bytes, bytes]]  # as redis-py reads it
_RawEntry = tuple[bytes, Sequence[bytes]]  # as Redis says it: names and values by turns
_RAW_XREVRANGE = (
    b"XREVRANGE"  # by its name as bytes redis-py leaves the answer as it is, which saves a third of the time
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter of audit lines: of a `tool` or a whole module, of a `user`, with an `outcome` or an error code.

    `None`: all.

    `only_changes`: operators' changes only, no calls.
    """

    tool: str | None = None
    user: str | None = None
    outcome: str | None = None
    only_changes: bool = False

    def fits(self, line: AuditLine) -> bool:
        """Return whether a line matches."""
        name = str(line.get("tool", ""))
        return (
            (self.tool is None or self.tool in {name, name.partition(".")[0]})
            and (self.user is None or line.get("user_id") == self.user)
            and (self.outcome is None or self.outcome in {line.get("outcome"), line.get("error_code")})
            and (not self.only_changes or "change" in line)
        )

    @property
    def signs(self) -> tuple[bytes, ...]:
        """The byte strings that the JSON of each matching line contains. With these most lines need no parsing."""
        names = (self.tool, self.user, self.outcome, "change" if self.only_changes else None)
        return tuple(name.encode() for name in names if name is not None and _PLAIN_NAME.fullmatch(name))


_ALL = Wanted()


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Lines, the latest first; before the entry `until` there may be more, if it is one. `last`: the entry that was read first."""

    lines: list[AuditLine]
    until: str | None
    last: str


@dataclass(frozen=True, slots=True)
class ComingLines:
    """Lines, oldest first, and the id of the last entry that was read for them."""

    lines: list[AuditLine]
    last: str


class AuditReader:
    """Reads the stream. Everything but `follow` raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._key = keys.audit
        self._seen = b"0"  # the last line's id

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings) -> AsyncGenerator[Self]:
        """The reader of a fleet. Raises `SettingsError` where no Redis is set."""
        timeout = _BLOCK_SECONDS + _PATIENCE_SECONDS
        client = async_client(fleet_url(settings.redis_url), master=settings.sentinel_master, timeout_seconds=timeout)
        async with client as redis:
            yield cls(redis, settings.keys)

    async def last(self, count: int, wanted: Wanted = Wanted()) -> list[AuditLine]:
        """Return at most `count` matching lines, the latest ones, oldest first.

        `follow` continues after the latest line of all.
        """
        found, end, is_first = list[AuditLine](), "+", True
        while True:
            entries = await self._ask("XREVRANGE", self._key, end, "-", "COUNT", _PAGE)
            if is_first:
                self._seen, is_first = entries[0][0] if entries else b"0", False
            found += [line for line in map(_line, entries) if line is not None and wanted.fits(line)]
            if len(entries) < _PAGE or len(found) >= count:
                return found[:count][::-1]
            end = f"({entries[-1][0].decode()}"

    async def page(self, count: int, wanted: Wanted = Wanted(), *, before: str | None = None) -> "AuditPage":
        """Return at most `count` matching lines, the latest first, of those before the entry `before`; reads 10,000 at most.

        Raises `ValueError` if `before` is no entry's id, and `FleetUnavailable`.
        """
        if before is not None and not _ENTRY_ID.fullmatch(before):
            raise ValueError("it is not the id of an entry")
        if before is not None and not any(_order(before.encode())):  # Redis takes nothing that would be before all
            return AuditPage([], None, _FIRST)
        found, end, last, signs = list[AuditLine](), "+" if before is None else f"({before}", "", wanted.signs
        size = min(count, _PAGE) if wanted == _ALL else _PAGE
        for _ in range(_MOST_PAGES):
            entries: Sequence[_RawEntry] = await self._ask(_RAW_XREVRANGE, self._key, end, "-", "COUNT", size)
            last = last or (entries[0][0].decode() if entries else _FIRST)
            for entry in entries:
                line = _raw_line(entry, signs)
                if line is not None and wanted.fits(line):
                    found.append(line)
                    if len(found) == count:
                        return AuditPage(found, entry[0].decode(), last)
            if len(entries) < size:
                return AuditPage(found, None, last)
            end = f"({entries[-1][0].decode()}"
        return AuditPage(found, end.lstrip("("), last)

    async def behind(self, after: str, count: int, wanted: Wanted = Wanted()) -> ComingLines:
        """Return the matching lines after the entry `after`, of at most `count` entries; as `follow` yields them.

        Raises `ValueError` if `after` is no entry's id, and `FleetUnavailable`.
        """
        if not _ENTRY_ID.fullmatch(after):
            raise ValueError("it is not the id of an entry")
        entries = await self._ask("XRANGE", self._key, f"({after}", "+", "COUNT", count)
        if not entries and await self._has_begun_anew(after.encode()):
            return ComingLines([], _FIRST)
        lines = [line for line in map(_line, entries) if line is not None and _comes(line) and wanted.fits(line)]
        return ComingLines(lines, entries[-1][0].decode() if entries else after)

    async def follow(
        self,
        wanted: Wanted = Wanted(),
        *,
        on_away: Callable[[FleetUnavailable | None], object] = lambda _: None,
    ) -> AsyncGenerator[AuditLine]:
        """Yield lines as they come, for ever, also through outages of Redis; `on_away` is called when it goes, and with `None` when it returns.

        A change comes once it has ended.
        """
        is_away = False
        while True:
            if not is_wanted():  # a cancellation that redis-py has dropped
                raise asyncio.CancelledError
            try:
                entries = await self._next(was_away=is_away)
            except FleetUnavailable as exc:
                if not is_away:
                    on_away(exc)
                is_away = True
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if is_away:
                on_away(None)
            is_away = False
            for entry in entries:
                self._seen = entry[0]
                line = _line(entry)
                if line is not None and _comes(line) and wanted.fits(line):
                    yield line

    async def _next(self, *, was_away: bool) -> Sequence[_Entry]:
        if was_away and await self._has_begun_anew(self._seen):
            self._seen = b"0"
        command = ("XREAD", "COUNT", _PAGE, "BLOCK", round(_BLOCK_SECONDS * 1000), "STREAMS", self._key, self._seen)
        answer = await self._ask(*command, seconds=_BLOCK_SECONDS + _PATIENCE_SECONDS)
        if not answer:
            return ()
        entries: Sequence[_Entry] = (answer[self._key.encode()] if isinstance(answer, dict) else answer[0][1]) or ()
        return entries

    async def _has_begun_anew(self, seen: bytes) -> bool:
        """Return whether Redis has come back with lines, and lost the last ones that were read."""
        latest = await self._ask("XREVRANGE", self._key, "+", "-", "COUNT", 1)
        return bool(latest) and _order(latest[0][0]) < _order(seen)

    async def _ask(self, *command: Any, seconds: float = _PATIENCE_SECONDS) -> Any:
        async with answering(self._redis, seconds=seconds):
            return await self._redis.execute_command(*command, **_AS_BYTES)


def _raw_line(entry: _RawEntry, signs: Sequence[bytes]) -> AuditLine | None:
    """Parse an entry; `None` also if it lacks one of these `signs`: most of ten thousand lines are not parsed."""
    _, fields = entry
    text = fields[1] if fields[0] == _FIELD else dict(zip(fields[::2], fields[1::2], strict=False)).get(_FIELD, b"")
    for sign in signs:
        if sign not in text:
            return None
    return _line_of(text)


def _line(entry: _Entry) -> AuditLine | None:
    """Parse an entry; `None` if it is no line: another version's, or foreign."""
    return _line_of(entry[1].get(_FIELD, b""))


def _line_of(text: bytes) -> AuditLine | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def _comes(line: AuditLine) -> bool:
    """Return whether to show a line: that of a started change is replaced in a moment."""
    return BEGUN not in line


def _order(entry_id: bytes) -> tuple[int, ...]:
    return tuple(int(part) for part in entry_id.split(b"-"))
