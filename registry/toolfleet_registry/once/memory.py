"""Keeps records in this process's memory: gone when it ends, and not shared with others."""

import math
import sys
from collections import OrderedDict

from toolfleet_registry.once.port import Record
from toolfleet_registry.system import machine_clock


class MemoryReplies:
    """Keeps the `most` latest calls for `seconds`, at most `most_bytes` of their replies; running calls always.

    If that is too little, calls that may be repeated are forgotten first, before any that must happen only once. For a
    module that runs as one process, and whose tools may be repeated after a restart.
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
        """As the protocol says."""
        return self._get(name)

    async def swap(self, name: str, seen: str | None, record: Record | None) -> bool:
        """As the protocol says."""
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


_EMPTY = sys.getsizeof("")
