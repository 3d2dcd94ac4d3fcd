"""Reports workers that have died, by the parent that has waited for them, and for no other reason: their leases end at once.

A worker that has a parent with an interest in it writes down who it is before it holds anything. Its parent believes that only of
the very process that it has started and waited for, and Redis does nothing while that worker is connected. What becomes of its calls
is decided as after any lease that has run out.
"""

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from redis.exceptions import RedisError

from toolfleet_registry.redis.servers import sync_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time import machine_clock
from toolfleet_tasks.lua import queues
from toolfleet_tasks.transport.leases import MOST_RESTORED, LeaseStore, restore_command

NOTE_VARIABLE = "TOOLFLEET_WORKER_NOTE"
"""Names the file in which a worker notes who it is."""

_ANSWER_SECONDS = 1.0  # for Redis: the parent has other children
_AGAIN_SECONDS = 0.5
_SECOND_SECONDS = 3.0  # by then Redis has run what the worker had sent, and may have reserved more for it
_TRIES_SECONDS = 60.0  # by then the leases have run out by themselves
_CHUNK = 100  # messages a script, each of which is read as JSON
_EXPIRED = 1.0  # since when an expired lease runs: no other one began so long ago
_NOTE = re.compile(r"([0-9a-f]+) (\S+) (\d+) (\d+)\n")

log = get_logger(__name__)


class WorkerNote(NamedTuple):
    """A worker process: the name under which it holds messages, its host, its process id there, and its `start_of`."""

    holder: str
    host: str
    pid: int
    began: int


def start_of(pid: int) -> int:
    """Return when a process began, in the kernel's ticks since the machine did; 0 where there is no `/proc`, or no such process."""
    try:
        return int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
        )
    except (OSError, ValueError, IndexError):
        return 0


def write_note(holder: str) -> None:
    """Note for our parent, where it wants that, who we are. Without the note our leases run out by themselves, should we die."""
    path, pid = os.environ.get(NOTE_VARIABLE), os.getpid()
    if not path:
        return
    try:
        Path(path).write_text(f"{holder} {socket.gethostname()} {pid} {start_of(pid)}\n", encoding="utf-8")
    except OSError as exc:
        log.warning("worker_note_not_written", error=str(exc))


def read_note(path: Path, *, pid: int, began: int) -> WorkerNote | None:
    """Return what the process with this id and start has noted; None if it has noted nothing, or another process has."""
    try:
        found = _NOTE.fullmatch(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    note = found and WorkerNote(found[1], found[2], int(found[3]), int(found[4]))
    return note if note and note[1:] == (socket.gethostname(), pid, began) else None


@dataclass(slots=True)
class _Report:
    note: WorkerNote
    due_at: float
    ends_at: float
    was_taken: bool = False


class DeathReports:
    """Reports processes to the Redis that these settings name. Belongs to one thread; raises nothing."""

    def __init__(self, settings: Settings) -> None:
        self._settings, names = settings, {"unacked": "unacked", "unacked_index": "unacked_index"}
        self._store = LeaseStore.of(settings.keys, **names, seconds=settings.lease_seconds)
        self._reports: list[_Report] = []

    def add(self, note: WorkerNote) -> None:
        """Take in that a worker has died. Its parent must have waited for it."""
        if self._settings.has_redis_broker:  # RabbitMQ sees it by itself
            now = machine_clock.monotonic()
            self._reports.append(_Report(note, now, now + _TRIES_SECONDS))

    def tend(self) -> None:
        """Report due ones. Takes milliseconds, and up to seconds only if Redis does not answer."""
        for report in tuple(self._reports):
            if machine_clock.monotonic() < report.due_at:
                continue
            is_taken = self._is_taken(report.note)
            if (is_taken and report.was_taken) or machine_clock.monotonic() > report.ends_at:
                self._reports.remove(report)
            report.was_taken |= is_taken
            report.due_at = machine_clock.monotonic() + (_SECOND_SECONDS if is_taken else _AGAIN_SECONDS)

    def _is_taken(self, note: WorkerNote) -> bool:
        url, master = str(self._settings.broker), self._settings.sentinel_master
        try:
            with sync_client(url, master=master, timeout_seconds=_ANSWER_SECONDS) as redis:
                return self._expire(redis, note)
        except (RedisError, OSError) as exc:
            log.warning("worker_death_not_reported", worker=note.holder, error=str(exc))
            return False

    def _expire(self, redis: Any, note: WorkerNote) -> bool:
        store, match = self._store, f"w{note.holder}-*"
        tags = list({tag for tag, _ in redis.zscan_iter(store.unacked_index, match=match, count=1000)})
        names = {"unacked": store.unacked, "unacked_index": store.unacked_index, "record_prefix": store.record_prefix}
        for start in range(0, len(tags), _CHUNK):
            chunk, names["channel_prefix"] = tags[start : start + _CHUNK], store.holder_prefix
            if redis.execute_command(*queues.EXPIRE.command(**names, holder=note.holder, tags=chunk)) < 0:
                return False
        if tags:
            log.warning("worker_death_reported", worker=note.holder, host=note.host, pid=note.pid, messages=len(tags))
            command = restore_command(store, began_by=_EXPIRED, now=float(redis.time()[0]))
            while redis.execute_command(*command)[0] == MOST_RESTORED:
                pass
        return True
