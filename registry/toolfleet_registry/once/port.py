"""Defines the records of work that must be done only once, the port of their stores, and the store in memory."""

import math
import sys
from collections import OrderedDict
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from toolfleet_registry.errors import FleetError, StoreAway
from toolfleet_registry.system import machine_clock, randomness

_OF_ATTEMPT = "#"  # not a field of its own: then stores that know of none keep it, too

State = Literal["running", "done", "failed", "stopped", "refused", "open", "accepted", "asked"]
"""At work; answered with a success or a failure; ended in the middle; given up before it started, for ever; not started, and no longer for
attempts that are older than one that was seen; answered with a handle, while the work goes on; answered with a question."""

_EMPTY = sys.getsizeof("")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Record:
    """The record of one call, or of another piece of work."""

    state: State
    """Where the call is."""
    token: str
    """Names this writing of the record, and no other; in it stands for which attempt it was written."""
    fingerprint: str = ""
    """That of the request."""
    until: float = 0
    """When a running call counts as dead unless it was renewed, in seconds since the epoch."""
    reply: str = ""
    """The JSON that was answered."""
    is_repeatable: bool = field(default=False, compare=False)
    """Whether a second run does nothing more: a store that is short of room forgets such calls first. It need not keep this."""

    @property
    def attempt(self) -> int:
        """The number of the attempt for which it was written; 0 if that was not said."""
        number = self.token.rpartition(_OF_ATTEMPT)[2] if _OF_ATTEMPT in self.token else ""
        return int(number) if number.isascii() and number.isdigit() else 0


def new_token(attempt: int) -> str:
    """Return a token for a writing on behalf of the call's `attempt`th attempt; 0 if it does not say which it is."""
    return TokenSeries().next(attempt)


class TokenSeries:
    """Makes the tokens of one writer: an id of its own and a number, since an id for each writing costs more than all else of it."""

    __slots__ = ("_count", "_name")

    def __init__(self) -> None:
        self._name, self._count = randomness.uuid4_text(), 0

    def next(self, attempt: int) -> str:
        """Return a token as `new_token` makes it."""
        self._count += 1
        return f"{self._name}.{self._count}{_OF_ATTEMPT}{attempt}"


class OnceStore(Protocol):
    """A store of records by name: a write replaces a record only if that is the one that was read (compare and swap).

    A method may raise any exception; none waits for long. Of processes that share a store, only one starts the work of
    a name. `until` is by the clock of the process that asks: a store that machines share may use its own.
    """

    async def get(self, name: str) -> Record | None:
        """Return the record of this name; `None` if there is none, or none any more."""
        ...

    async def swap(self, name: str, seen: str | None, record: Record | None) -> bool:
        """Store `record` (`None`: delete) if the stored record has the token `seen` (`None`: if there is none)."""
        ...

    async def complete_since(self) -> float:
        """Return the time (epoch) since when no record can have been lost: newer work without a record was never started.

        `inf` if that is unknown.
        """
        ...

    async def aclose(self) -> None:
        """Let go of connections and files. It may be used again afterwards."""
        ...


class MemoryReplies:
    """Keeps the outcome of calls in this process's memory.

    For a module that runs as one process, with tools that can be repeated after a restart. If there is not enough room,
    calls that can be repeated are forgotten first, before any that must happen only once. Running calls are always kept.

    Args:
        most: How many ended calls are kept, the latest ones.
        most_bytes: The size of their replies together.
        seconds: How long each is kept.

    Raises:
        ValueError: A bound is not positive.

    """

    def __init__(self, *, most: int = 10_000, most_bytes: int = 64 * 2**20, seconds: float = 86_400) -> None:
        if min(most, most_bytes, seconds) <= 0:
            raise ValueError("most, most_bytes and seconds must be positive.")
        self._most, self._most_bytes, self._seconds = most, most_bytes, seconds
        self._bytes = 0
        self._running: dict[str, Record] = {}
        # When each is forgotten, the next first; those that may be repeated, and those that may not.
        self._ended = OrderedDict[str, tuple[float, Record]](), OrderedDict[str, tuple[float, Record]]()

    async def get(self, name: str) -> Record | None:
        """Implements `OnceStore.get`."""
        return self._get(name)

    async def swap(self, name: str, seen: str | None, record: Record | None) -> bool:
        """Implements `OnceStore.swap`."""
        found = self._get(name)
        if (found.token if found else None) != seen:
            return False
        self._running.pop(name, None)
        self._forget(name)
        if record is not None and record.state == "running":
            self._running[name] = record
        elif record is not None:
            self._ended[not record.is_repeatable][name] = (machine_clock.monotonic() + self._seconds, record)
            self._bytes += _size(record)
            self._forget_most()
        return True

    async def complete_since(self) -> float:
        """Return `inf`: calls of an earlier process of this module are forgotten."""
        return math.inf

    async def aclose(self) -> None:
        """Do nothing; the records stay."""

    def _get(self, name: str) -> Record | None:
        if name in self._running:
            return self._running[name]
        for ended in self._ended:
            until, record = ended.get(name, (0.0, None))
            if until > machine_clock.monotonic():
                return record
        return None

    def _forget_most(self) -> None:
        now = machine_clock.monotonic()
        for ended in self._ended:
            while ended:
                name, (until, _) = next(iter(ended.items()))
                if until > now and sum(map(len, self._ended)) <= self._most and self._bytes <= self._most_bytes:
                    break
                self._forget(name)

    def _forget(self, name: str) -> None:
        for ended in self._ended:
            _, record = ended.pop(name, (0.0, None))
            self._bytes -= _size(record) if record else 0


def _size(record: Record) -> int:
    """Return the memory of the reply's text, which is up to four bytes a character."""
    return sys.getsizeof(record.reply) - _EMPTY


class PatientStore:
    """`store`, as far as it answers within `seconds`. Each method raises `StoreAway`."""

    def __init__(self, store: OnceStore, *, seconds: float) -> None:
        self._store, self._seconds = store, seconds
        self._is_immediate = type(store) is MemoryReplies  # a timer for each of its answers costs more than the answer

    async def get(self, name: str) -> Record | None:
        """Implements `OnceStore.get`."""
        return await self._in_time(self._store.get(name))

    async def swap(self, name: str, seen: str | None, record: Record | None) -> bool:
        """Implements `OnceStore.swap`. A write without an answer may have happened all the same."""
        return await self._in_time(self._store.swap(name, seen, record))

    async def complete_since(self) -> float:
        """Implements `OnceStore.complete_since`."""
        return await self._in_time(self._store.complete_since())

    async def _in_time(self, answer: Awaitable[T]) -> T:
        if self._is_immediate:
            return await answer
        import asyncio  # what has a store of its own runs on a loop; the SDK's first line needs none

        try:
            async with asyncio.timeout(self._seconds):
                return await answer
        except FleetError as exc:
            raise StoreAway(str(exc)) from exc
        except Exception as exc:
            raise StoreAway(f"{type(exc).__name__}: {exc}") from exc
