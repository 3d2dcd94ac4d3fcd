"""Keeps a process's clock in step with Redis's.

A step of Redis's clock is known by monotonic time, and bridged: the process that sees it first writes into Redis by how much the fleet's
time differs from now on, and processes that start later go by that as well. One that starts in between finds that workers have
shown another time, and waits for one that lives to say which is right. Fails open: while Redis does not answer, the clock goes
on by itself.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from toolfleet_registry.redis.script import Parameters
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.fleet_clock import STEP_SECONDS, Reading, SlewedClock, Verdict
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_tasks.redis_connection import PipelinedConnection
from toolfleet_tasks.scripts import script

READ = script("clock/read")
"""Returns the server's time, the fleet's, the latest that any worker's clock had shown before, `since`, and all notes."""

BRIDGE = script("clock/bridge")
"""Returns 1, or 0 if others have done it meanwhile."""

log = get_logger(__name__)

MOST_OFFSET_SECONDS = 300.0
"""A worker whose own clock is further off takes no calls: certificates, tokens and logs are wrong there."""

_POLL_SECONDS = 10.0  # for an agent, and only while it makes calls
_YOUNG_POLL_SECONDS = 1.0  # while others may know better
_SILENCE_SECONDS = 60.0  # between two log lines about the same thing
_CONTRADICTED_SECONDS = 3.0  # within which a worker that lives looks, if its machine is busy, too
_AGAIN_SECONDS = 0.05
# By which the fleet's time may move where a step is bridged: with a reading that took longer the next look does it.
_MOST_DOUBT_SECONDS = STEP_SECONDS / 2
_FRESH_SECONDS = 60.0  # the process follows a Redis that has told the time within them, and no other one

_SILENCES: WeakKeyDictionary[SlewedClock, dict[str, float]] = WeakKeyDictionary()  # the processes that read the clock

_STEP_SECONDS = 1.0  # within which others may take a step of Redis's clock for the time


class Timekeeper:
    """Reads the clock of one Redis. `worker` is the name of a worker, '' for other processes.

    Its readings are for the process's clock, or for `clock`.
    """

    def __init__(self, settings: Settings, *, worker: str = "", clock: SlewedClock | None = None) -> None:
        self.clock = clock or fleet_clock.clock
        self._keys = (settings.keys.clock, settings.keys.clock_notes)
        self._source = str(settings.redis_url)
        self._worker = worker
        self.due_at = 0.0
        """When (monotonic) `read_over` asks again."""
        self._contradicted_by = 0.0  # how many seconds workers' clocks are ahead of a time that is not confirmed
        # Who holds messages listens at the broker; others do not announce that they live.
        self._holders = settings.keys.holder("*") if settings.broker == settings.redis_url else ""
        self.others = list[float]()
        """How many seconds the machines of other workers are ahead of the fleet's time, as they said last."""

    async def read(self, redis: Redis) -> None:
        """Ask for the time. Raises redis-py's errors."""
        clock = self.clock
        mine = "" if not self._worker or clock.is_young else f"{clock.now() * 1e6:.0f}"
        note = f"{self._worker} {clock.wall_lead:.0f}" if self._worker and clock.is_set else ""
        asked_at = self.clock.monotonic()
        clock_key, notes_key = self._keys
        read = READ.parameters(clock_key=clock_key, notes_key=notes_key, shown=mine, note=note)
        run: Any = redis.eval(READ.text, *read)
        if bridge := self._take(await run, asked_at):
            run = redis.eval(BRIDGE.text, *bridge)
            await run

    async def begin(self, redis: Redis, *, runs_calls: bool = False) -> None:
        """Ask for the time before anything else is done.

        Raises nothing: without an answer this machine's clock counts.

        Waits, for 3 s at most, while workers live that have shown another time: Redis's clock was set just now, and they
        are about to find out. Nothing that an agent publishes ends too early by a clock that is ahead, so it waits only
        where that may be behind.
        """
        is_first = not self.clock.is_set
        give_up_at = self.clock.monotonic() + _CONTRADICTED_SECONDS
        try:
            await self.read(redis)
            while is_first and (self._contradicted_by > 0 or (self._contradicted_by < 0 and runs_calls)):
                if self.clock.monotonic() > give_up_at or not await self._has_workers(redis):
                    break
                await asyncio.sleep(_AGAIN_SECONDS)
                await self.read(redis)
        except (RedisError, OSError) as exc:
            log.warning("clock_not_read", error=str(exc))

    async def _has_workers(self, redis: Redis) -> bool:
        """Return whether a live worker may be reading the clock.

        Connections tell: an expiry depends on the clock that is in doubt.
        """
        return not self._holders or bool(await redis.pubsub_channels(self._holders))

    def read_over(self, connection: PipelinedConnection) -> None:
        """Ask for the time together with the other commands of this tick, if that is due.

        The answer is not waited for.
        """
        asked_at = self.clock.monotonic()
        if asked_at < self.due_at or not connection.is_connected:
            return
        self.due_at = asked_at + (_YOUNG_POLL_SECONDS if self.clock.is_young else _POLL_SECONDS)

        def heard(reply: "asyncio.Future[Any]") -> None:
            if _is_answered(reply) and (bridge := self._take(reply.result(), asked_at)):
                connection.send("EVAL", BRIDGE.text, *bridge).add_done_callback(_is_answered)

        clock_key, notes_key = self._keys
        read = READ.command(clock_key=clock_key, notes_key=notes_key, shown="", note="")
        connection.send(*read).add_done_callback(heard)

    def _take(self, answer: Sequence[Any], asked_at: float) -> Parameters | None:
        """Set the fleet clock by the reading. Returns what to write if Redis's clock was set."""
        server, fleet, reached = (int(each) for each in answer[:3])
        heard_at = self.clock.monotonic()
        reading = Reading(server / 1e6, fleet / 1e6, asked_at, heard_at)
        self.others = _leads(answer[4], but=self._worker)
        if not self._may_set(heard_at):
            self._compare(reading)
            return None
        verdict = self.clock.hear(reading, reached / 1e6)
        self._contradicted_by = reached / 1e6 - reading.fleet if reached and self.clock.is_young else 0.0
        self._tell(verdict, reading)
        if verdict != "stepped" or reading.doubt > _MOST_DOUBT_SECONDS:
            return None
        shown = self.clock.at(reading.at) * 1e6
        return BRIDGE.parameters(
            clock_key=self._keys[0],
            since=answer[3].decode(),
            offset=f"{shown - server:.0f}",
            server_time=str(server),
            fleet_time=f"{shown:.0f}",
        )

    def _may_set(self, moment: float) -> bool:
        source, heard_at = self.clock.source
        if source not in {"", self._source} and moment < heard_at + _FRESH_SECONDS:
            return False
        self.clock.source = (self._source, moment)
        return True

    def _tell(self, verdict: Verdict, reading: Reading) -> None:
        if verdict == "stepped":
            seconds = round(reading.fleet - self.clock.at(reading.at), 1)
            log.error(
                "redis_clock_stepped",
                seconds=seconds,
                doubt=round(reading.doubt, 3),
                hint="deadlines and leases go on as before",
            )
        elif verdict == "lost":
            log.error("fleet_clock_set", now=self.clock.now(), hint="Redis's clock was set by hours")
        elif verdict == "paused":
            log.warning("fleet_clock_set", now=self.clock.now(), hint="this machine stood still")
        lead = self.clock.wall_lead
        if abs(lead) > STEP_SECONDS:
            self._warn("own_clock_off", seconds=round(lead, 1), hint="calls are not harmed; set this machine's clock")

    def _compare(self, reading: Reading) -> None:
        """Warn if two fleets in one process have different clocks: they share that of the first one's Redis."""
        seconds = round(reading.fleet - self.clock.at(reading.at), 1)
        if abs(seconds) > STEP_SECONDS + reading.doubt:
            self._warn("redis_clocks_differ", seconds=seconds, hint="this process goes by another fleet's Redis")

    def _warn(self, event: str, **fields: object) -> None:
        """Warn now and then: the condition lasts until an operator sets a clock."""
        moment, silent_until = self.clock.monotonic(), _SILENCES.setdefault(self.clock, {})
        if moment >= silent_until.get(event, 0):
            silent_until[event] = moment + _SILENCE_SECONDS
            log.warning(event, **fields)


def _leads(notes: Sequence[bytes], *, but: str) -> list[float]:
    """Return the latest lead of each worker, as notes come in the order in which they were written."""
    split = (note.decode(errors="replace").rpartition(" ") for note in notes)
    latest = {worker: float(seconds) for worker, _, seconds in split if worker != but}
    return list(latest.values())


def _is_answered(reply: "asyncio.Future[Any]") -> bool:
    error = None if reply.cancelled() else reply.exception()
    if isinstance(error, ResponseError):
        log.warning("clock_not_read", error=str(error))
    return not reply.cancelled() and error is None


class ClockWatch:
    """The clock of one worker. `on_reading` is told after each reading whether the machine's clock is too far off."""

    def __init__(self, settings: Settings, *, on_reading: Callable[[bool], object]) -> None:
        self._settings = settings
        self._on_reading = on_reading
        self._timekeeper = Timekeeper(settings, worker=this_process().name)

    async def keep(self) -> None:
        """Read the clock at once, and again and again until cancelled.

        Raises nothing while Redis is away: the clock goes on.
        """
        if self._settings.redis_url is None:
            return
        async with self._settings.redis_client() as redis:
            while True:
                try:
                    await self._timekeeper.read(redis)
                except (RedisError, OSError):  # others say so
                    pass
                else:
                    lead, others = self._timekeeper.clock.wall_lead, self._timekeeper.others
                    self._on_reading(is_too_far(lead, others, limit=MOST_OFFSET_SECONDS))
                await asyncio.sleep(_STEP_SECONDS)


def is_too_far(lead: float, others: Sequence[float], *, limit: float) -> bool:
    """Return whether a machine that is `lead` seconds ahead of the fleet's time is wrong.

    If most others are as far off, Redis is.
    """
    alike = sum(abs(other - lead) <= limit / 2 for other in others)
    return abs(lead) > limit and 2 * alike <= len(others)
