"""Keeps dead letters of all kinds in Redis: lists, finds, counts and drops them, regardless of their content."""

import itertools
import math
import re
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import answering
from toolfleet_tasks.scripts import script

DROP = script("dead_letters/drop")
"""Returns the ids of those that were there."""

TAKE = script("dead_letters/take")
"""Returns the letter, and for how many seconds another replay may still run: 0 if ours may. Nothing if there is no letter."""

SETTLE = script("dead_letters/settle")
"""Returns 1 if the letter was dropped."""

DeadKind = Literal["call", "wakeup", "webhook"]
"""The kind of a letter: a call whose end nobody can know, the wake-up of a job, or an event of the registry that was not accepted."""

KINDS: Final[tuple[DeadKind, ...]] = get_args(DeadKind)

MOST_SEARCHED: Final = 5_000
"""Letters that one question looks at: a caller that wants those behind them asks again, with the `next` of the answer."""

_AT_ONCE = 100  # letters in memory: each may have a megabyte of arguments

_LONGEST_ID = 1_024  # characters

LetterMark: TypeAlias = tuple[float, str]
"""When a letter died (seconds since the epoch), and its id: the letters behind it in a list are those with less."""

MOST_LISTED: Final = 1_000
"""Letters that one look may bring."""

_PATIENCE_SECONDS = 5  # a command takes a millisecond, or Redis is away

_CHUNK = 1_000  # letters read or dropped at once, so that Redis is not held up

_AS_BYTES: Final[dict[str, Any]] = {NEVER_DECODE: True}  # however the client was built: a letter may be no text

_ANY_BYTES = "surrogateescape"  # an id that is no text can be shown, and dropped

_OF_WEBHOOK = re.compile(r"@[0-9a-f]{16}$")  # ids of jobs, with which those of wake-ups begin, have no `@`


@dataclass(frozen=True, slots=True)
class DeadEntry:
    """A dead letter. Calls and what they make may share an id: it is one's own among those of its kind."""

    kind: DeadKind
    """What has died."""
    id: str
    """The call's id, or that of the news."""
    died_at: float
    """When it was given up, in seconds since the epoch."""
    attempts: int
    """How many were begun."""
    error: str
    """What the last one came to."""
    subject: str
    """What it was about, in a few words: a tool and a user, a conversation, an event."""
    body: dict[str, Any] | None = field(default=None, kw_only=True)
    """All that is kept of it, without sensitive arguments; `None` if it cannot be read, or is not the fleet's."""
    replayable: bool
    """Whether it can be tried again: what cannot be read, and a wake-up's call with sensitive arguments, can be dropped only."""


@dataclass(frozen=True, slots=True)
class WantedLetters:
    """A search: letters of these `kinds`, with `about` in their id or subject and `error` in their error, ignoring case, and which died before `until` (s)."""

    kinds: Collection[DeadKind] = KINDS
    about: str = ""
    error: str = ""
    until: float = math.inf

    def fits(self, entry: DeadEntry) -> bool:
        """Return whether a letter of these kinds and that age matches."""
        return self.about.lower() in f"{entry.id} {entry.subject}".lower() and self.error.lower() in entry.error.lower()


@dataclass(frozen=True, slots=True)
class FoundLetters:
    """Letters, the latest first. `next`: behind which there may be more; with fewer letters than were asked for, not all were searched."""

    entries: list[DeadEntry]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """The place of some kinds of letters: a hash, id -> letter; a sorted set, id -> when it died (ms); a counter of bytes, if there is one."""

    kinds: frozenset[DeadKind]
    letters: str
    order: str
    size: str = ""

    def names(self) -> tuple[str, ...]:
        """All its keys."""
        return tuple(filter(None, (self.letters, self.order, self.size)))


@dataclass(frozen=True, slots=True, order=True)
class Letter:
    """One as it is kept. Those that died earlier are less."""

    died_at: float
    id: str
    kind: DeadKind
    place: Place = field(compare=False)
    value: bytes | None = field(default=None, compare=False)


class DeadStore:
    """The letters in Redis. Each method raises `FleetUnavailable` when Redis does not answer within 5 s."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._places = places_of(keys)

    def places(self, kinds: Collection[DeadKind]) -> list[Place]:
        """Return the places where letters of these kinds may be."""
        return [place for place in self._places if not place.kinds.isdisjoint(kinds)]

    async def count(self, kinds: Collection[DeadKind]) -> int:
        """Return how many letters are at the places of these kinds."""
        return sum([int(await self.ask("ZCARD", place.order)) for place in self.places(kinds)])

    async def list(self, kinds: Collection[DeadKind], limit: int = 50, offset: int = 0) -> Sequence[Letter]:
        """Return at most `limit` letters, of 1,000 at most, after the first `offset`; the latest first."""
        check_limits(limit, offset)
        most = offset + limit
        found = [one for place in self.places(kinds) for one in await self._latest(place, kinds, most)]
        read = await self._read(sorted(found, reverse=True)[offset:most])
        return [letter for letter in read if letter.value is not None]  # None: dropped just now

    async def behind(self, kinds: Collection[DeadKind], mark: LetterMark, count: int) -> Sequence[Letter]:
        """Return at most `count` letters behind a mark, the latest first.

        Just dropped ones are among them, without a value.
        """
        found = [one for place in self.places(kinds) for one in await self._latest(place, kinds, count, mark)]
        return await self._read(sorted(found, reverse=True)[:count])

    async def find(self, kinds: Collection[DeadKind], letter_id: str) -> Sequence[Letter]:
        """Return the letters with this id: one at most of a kind."""
        found = dict[DeadKind, Letter]()
        for place in self.places(kinds):
            if (kind := _kind_of(letter_id, place)) in kinds and kind not in found and "/" not in letter_id:
                value = await self.ask("HGET", place.letters, _raw(letter_id))
                died_ms = None if value is None else await self.ask("ZSCORE", place.order, _raw(letter_id))
                if value is not None:
                    found[kind] = Letter(float(died_ms or 0) / 1000, letter_id, kind, place, value)
        return [*found.values()]

    async def drop(self, kinds: Collection[DeadKind], letter_ids: Iterable[str]) -> tuple[str, ...]:
        """Forget these letters. Returns the ids of those that were there."""
        wanted, dropped = list(dict.fromkeys(letter_ids)), set[str]()
        for place in self.places(kinds):
            here = [one for one in wanted if _kind_of(one, place) in kinds]
            for start in range(0, len(here), _CHUNK):
                dropped |= await self._drop(place, here[start : start + _CHUNK])
        return tuple(one for one in wanted if one in dropped)

    async def drop_all(self, kinds: Collection[DeadKind]) -> int:
        """Forget all letters of these kinds. Returns how many there were."""
        count = 0
        for place in self.places(kinds):
            if place.kinds.issubset(kinds):
                async with self.asking() as redis, redis.pipeline(transaction=True) as pipe:
                    pipe.zcard(place.order)
                    pipe.unlink(*place.names())
                    count += int((await pipe.execute())[0])
                continue
            while found := await self._latest(place, kinds, _CHUNK):
                count += len(await self._drop(place, [one.id for one in found]))
        return count

    async def ask(self, *command: Any, **options: Any) -> Any:
        """Have one command answered, in bytes."""
        async with self.asking() as redis:
            return await redis.execute_command(*command, **_AS_BYTES, **options)

    @asynccontextmanager
    async def asking(self) -> AsyncGenerator[Redis]:
        """The client, for as long as one answer may take."""
        async with answering(self._redis, seconds=_PATIENCE_SECONDS):
            yield self._redis

    async def _latest(
        self, place: Place, kinds: Collection[DeadKind], most: int, behind: LetterMark = (math.inf, "")
    ) -> Sequence[Letter]:
        found, size = list[Letter](), max(min(most, _CHUNK), 1)
        highest = "+inf" if math.isinf(behind[0]) else behind[0] * 1000 + 1  # in spite of rounding in a division
        command = ("ZREVRANGEBYSCORE", place.order, highest, "-inf", "WITHSCORES", "LIMIT")
        for first in itertools.count(0, size):
            page = await self.ask(*command, first, size, withscores=True)
            for raw_id, died_ms in page:
                letter_id, died_at = raw_id.decode(errors=_ANY_BYTES), died_ms / 1000
                if (kind := _kind_of(letter_id, place)) in kinds and (died_at, letter_id) < behind:
                    found.append(Letter(died_at, letter_id, kind, place))
            if len(page) < size or len(found) >= most:
                break
        return found[:most]

    async def _read(self, letters: Sequence[Letter]) -> Sequence[Letter]:
        values = dict[tuple[Place, str], bytes | None]()
        for place in dict.fromkeys(letter.place for letter in letters):
            ids = [letter.id for letter in letters if letter.place is place]
            answer = await self.ask("HMGET", place.letters, *map(_raw, ids))
            values |= {(place, one): value for one, value in zip(ids, answer, strict=True)}
        return [replace(letter, value=values[letter.place, letter.id]) for letter in letters]

    async def _drop(self, place: Place, letter_ids: Sequence[str]) -> set[str]:
        names = {"letters": place.letters, "order": place.order, "size": place.size or None}
        dropped = await self.ask(*DROP.command(**names, ids=[*map(_raw, letter_ids)]))
        return {one.decode(errors=_ANY_BYTES) for one in dropped}


async def search_letters(
    store: DeadStore,
    read: Callable[[Letter], DeadEntry],
    wanted: WantedLetters,
    *,
    behind: str | None = None,
    limit: int = 50,
) -> FoundLetters:
    """Return at most `limit` matching letters behind the mark `behind`; `read` parses one.

    Raises `ValueError` for an invalid mark, and `FleetUnavailable`.
    """
    mark = (math.inf, "") if behind is None else _mark_of(behind)
    mark, found, searched = min(mark, (wanted.until, "")), list[DeadEntry](), 0
    while searched < MOST_SEARCHED:
        letters = await store.behind(wanted.kinds, mark, _AT_ONCE)
        for letter in letters:
            entry = read(letter) if letter.value is not None else None  # `None`: it was dropped just now
            if entry is not None and wanted.fits(entry):
                if len(found) == limit:
                    return FoundLetters(found, _text_of(mark))
                found.append(entry)
            mark = letter.died_at, letter.id
        searched += len(letters)
        if len(letters) < _AT_ONCE:
            return FoundLetters(found)
    return FoundLetters(found, _text_of(mark))


def mark_before(moment: float) -> str:
    """The mark behind which all letters are that died before a moment (seconds since the epoch)."""
    return _text_of((moment, ""))


def _text_of(mark: LetterMark) -> str:
    return f"{mark[0]!r}~{mark[1]}"


def _mark_of(text: str) -> LetterMark:
    moment, sign, letter_id = text.partition("~")
    if not sign or len(letter_id) > _LONGEST_ID or not math.isfinite(died_at := float(moment)):
        raise ValueError("it is no mark of a letter")
    return died_at, letter_id


def places_of(keys: Keys) -> tuple[Place, ...]:
    """Return the places of a fleet's letters."""
    return (
        Place(frozenset({"call"}), keys.dead, keys.dead_order),
        # Events for webhooks lay there, too, until they had a place of their own.
        Place(frozenset({"wakeup", "webhook"}), keys.dead_wakes, keys.dead_wakes_order, keys.dead_wakes_bytes),
        Place(frozenset({"webhook"}), keys.dead_webhooks(), keys.dead_webhooks("-order"), keys.dead_webhooks("-bytes")),
    )


def kind_of_event(letter_id: str) -> DeadKind:
    """Return the kind of the event with this id."""
    return "webhook" if _OF_WEBHOOK.search(letter_id) else "wakeup"


def check_limits(limit: int, offset: int) -> None:
    """Raise `ValueError` for an invalid part of a list."""
    if not 1 <= limit <= MOST_LISTED or offset < 0:
        raise ValueError(f"limit must be from 1 to {MOST_LISTED}, and offset at least 0")


def _raw(letter_id: str) -> bytes:
    return letter_id.encode(errors=_ANY_BYTES)


def _kind_of(letter_id: str, place: Place) -> DeadKind:
    return "call" if "call" in place.kinds else kind_of_event(letter_id)
