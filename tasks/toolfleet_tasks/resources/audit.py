"""Lists who called or changed what, and how it ended: the lines of the audit, page by page, and those that come."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field
from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.errors import InvalidQuestion
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import answering
from toolfleet_registry.settings import Settings
from toolfleet_tasks.aio import is_wanted
from toolfleet_tasks.ledger.audit import FIELD, AuditLine
from toolfleet_tasks.operations.change_trail import BEGUN
from toolfleet_tasks.resources.operation import AnswerModel, OperationRequest, QueryModel, operation

_SECONDS = 5.0  # for one answer of Redis
_PAGE = 500  # lines at once
_MOST_PAGES = 20  # that one query may read: a caller that wants more asks again
_CURSOR = "^[0-9]{1,19}-[0-9]{1,19}$"
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


class AuditQuery(QueryModel):
    """A query for audit lines."""

    tool: str | None = Field(None, max_length=256, description="Only this tool's, or this module's.")
    user: str | None = Field(None, max_length=256, description="Only this user's.")
    outcome: str | None = Field(None, max_length=64, description="Only those with this outcome or error code.")
    limit: int = Field(50, ge=1, le=1_000, description="How many a page has.")
    changes: bool = Field(False, description="Only what operators have changed, and no calls.")
    cursor: str | None = Field(None, max_length=64, pattern=_CURSOR, description="The `next` of the page before.")
    after: str | None = Field(
        None,
        max_length=64,
        pattern=_CURSOR,
        description="What has come behind this `last`, oldest first. No `cursor` then.",
    )

    @property
    def wanted(self) -> "Wanted":
        """As the reader takes it."""
        return Wanted(self.tool, self.user, self.outcome, only_changes=self.changes)


class AuditLines(AnswerModel):
    """Some of the audit."""

    lines: list[dict[str, Any]]
    """The latest first; with `after` the oldest first."""
    count: int
    """How many these are; there may be none on a page that is followed by others."""
    next: str | None = None
    """The `cursor` of the next page, if there may be one."""
    last: str | None = None
    """Without a `cursor`: the `after` of what comes next."""

    @classmethod
    def of(cls, lines: list[AuditLine], *, next: str | None = None, last: str | None = None) -> Self:  # noqa: A002 - the field's name
        """Return these lines, and where others are."""
        return cls(lines=lines, count=len(lines), next=next, last=last)


@operation("GET", "/operations/audit", role="viewer", answers="The latest first.")
async def list_audit(asked: OperationRequest[None, AuditQuery]) -> AuditLines:
    """List who called or changed what, and how it ended."""
    query = asked.query
    if query.after is not None and query.cursor is not None:
        raise InvalidQuestion("Send either `after` or `cursor`.")
    async with AuditReader.of(asked.settings) as reader:
        try:
            if query.after is not None:
                return await reader.behind(query.after, query.limit, query.wanted)
            return await reader.page(query.limit, query.wanted, before=query.cursor)
        except ValueError:
            raise InvalidQuestion(
                "The cursor is none: send the `next`, or the `last`, of an answer as it is."
            ) from None


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


class AuditReader:
    """Reads the stream. Raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._key = keys.audit

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings) -> AsyncGenerator[Self]:
        """The reader of a fleet. Raises `SettingsError` where no Redis is set."""
        async with settings.redis_client(timeout_seconds=_SECONDS) as redis:
            yield cls(redis, settings.keys)

    async def page(self, count: int, wanted: Wanted = Wanted(), *, before: str | None = None) -> AuditLines:
        """Return at most `count` matching lines, the latest first, of those before the entry `before`; reads 10,000 at most.

        Raises `ValueError` if `before` is no entry's id, and `FleetUnavailable`.
        """
        if before is not None and not _ENTRY_ID.fullmatch(before):
            raise ValueError("it is not the id of an entry")
        if before is not None and not any(_order(before.encode())):  # Redis takes nothing that would be before all
            return AuditLines.of([])
        found, end, last, signs = list[AuditLine](), "+" if before is None else f"({before}", None, wanted.signs
        size = min(count, _PAGE) if wanted == _ALL else _PAGE
        for _ in range(_MOST_PAGES):
            entries: Sequence[_RawEntry] = await self._ask(_RAW_XREVRANGE, self._key, end, "-", "COUNT", size)
            if before is None and last is None:
                last = entries[0][0].decode() if entries else _FIRST
            for entry in entries:
                line = _raw_line(entry, signs)
                if line is not None and wanted.fits(line):
                    found.append(line)
                    if len(found) == count:
                        return AuditLines.of(found, next=entry[0].decode(), last=last)
            if len(entries) < size:
                return AuditLines.of(found, last=last)
            end = f"({entries[-1][0].decode()}"
        return AuditLines.of(found, next=end.lstrip("("), last=last)

    async def behind(self, after: str, count: int, wanted: Wanted = Wanted()) -> AuditLines:
        """Return the matching lines after the entry `after`, oldest first, of at most `count` entries. A change comes once it has ended.

        Raises `ValueError` if `after` is no entry's id, and `FleetUnavailable`.
        """
        if not _ENTRY_ID.fullmatch(after):
            raise ValueError("it is not the id of an entry")
        entries = await self._ask("XRANGE", self._key, f"({after}", "+", "COUNT", count)
        if not entries and await self._has_begun_anew(after.encode()):
            return AuditLines.of([], last=_FIRST)
        lines = [line for line in map(_line, entries) if line is not None and _comes(line) and wanted.fits(line)]
        return AuditLines.of(lines, last=entries[-1][0].decode() if entries else after)

    async def _has_begun_anew(self, seen: bytes) -> bool:
        """Return whether Redis has come back with lines, and lost the last ones that were read."""
        latest = await self._ask("XREVRANGE", self._key, "+", "-", "COUNT", 1)
        return bool(latest) and _order(latest[0][0]) < _order(seen)

    async def _ask(self, *command: Any) -> Any:
        async with answering(self._redis, seconds=_SECONDS):
            answer = await self._redis.execute_command(*command, **_AS_BYTES)
        if not is_wanted():  # a cancellation that redis-py has dropped: who follows the audit asks again and again
            raise asyncio.CancelledError
        return answer


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
