"""Starts and ends the workers of a lane on one machine, as its calls need them."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from redis.asyncio import Redis

from toolfleet_cli.local.child import Program
from toolfleet_cli.local.programs import worker_program
from toolfleet_cli.local.stop_signals import StopRequested, StopSignals, stop_signals
from toolfleet_cli.local.supervisor import Supervisor
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import is_redis_url
from toolfleet_registry.settings import Settings
from toolfleet_tasks.metrics.awaited_lane import AwaitedLane
from toolfleet_tasks.metrics.fleet_facts import FleetReader, Lane
from toolfleet_tasks.metrics.fleet_metrics import FleetMetrics
from toolfleet_tasks.metrics.lane_load import LaneLoad, lane_load

_POLL_SECONDS = 0.1
_CHECK_SECONDS = 1.0
_REDIS_SECONDS = 2.0  # for one answer


@dataclass(frozen=True, slots=True)
class ScaleBounds:
    """The bounds of a lane: at least `least` workers, at most `most`; one is ended when fewer have been enough for `calm_seconds`.

    `fill`: the part of each worker's slots to be used; the rest is for calls that come while a further worker starts.
    """

    least: int
    most: int
    calm_seconds: float
    fill: float = 1.0


class ScaleRule:
    """The scaling of one lane, by its needs within the last `calm_seconds`."""

    def __init__(self, bounds: ScaleBounds) -> None:
        self._bounds = bounds
        self._wanted = deque[
            tuple[float, int]
        ]()  # when, and how many; from the most on, later ones only if they are fewer

    def target(self, wanted: int, *, now: float) -> int:
        """Return how many workers it should have, if so many are wanted `now`, in seconds of a monotonic clock."""
        while self._wanted and self._wanted[-1][1] <= wanted:
            self._wanted.pop()
        self._wanted.append((now, wanted))
        while len(self._wanted) > 1 and now - self._wanted[0][0] > self._bounds.calm_seconds:
            self._wanted.popleft()
        return max(self._bounds.least, min(self._wanted[0][1], self._bounds.most))


class LaneWorkers:
    """The workers that this process has started. Belongs to the main thread. `stop` must be called; should we be killed, they drain."""

    def __init__(self, lane: Lane, settings: Settings, logs: Path, *, announce: Callable[[str], None]) -> None:
        self._program = worker_program(lane, settings)
        self._supervisor = Supervisor(logs, announce=announce, orphan_seconds=self._program.patience_seconds)

    @property
    def count(self) -> int:
        """The number of workers, without those that are being ended."""
        return len(self._supervisor.kept)

    def scale_to(self, count: int) -> None:
        """Have so many, from now on. Waits for nothing: a worker is ready in a second or two, and ends when its calls have."""
        kept = self._supervisor.kept
        for child in kept:
            if child.is_dead:  # it has ended again and again; another one may fare better
                self._supervisor.dismiss(child)
        for _ in range(self.count, count):
            self._supervisor.start([self._next()])
        for child in self._supervisor.kept[count:][::-1]:  # the last one started has the least to finish, most often
            self._supervisor.dismiss(child)

    def tend(self) -> None:
        """Check them once: one that has ended by itself is restarted, a little later."""
        self._supervisor.tend()

    def stop(self, *, in_hurry: Callable[[], bool]) -> None:
        """End all. Each finishes its calls first; `in_hurry`: it puts them back into their queues."""
        self._supervisor.stop(in_hurry=in_hurry, together=True)

    def _next(self) -> Program:
        names = {child.name for child in self._supervisor.children}  # one that is still ending has its log to itself
        number = next(number for number in range(1, len(names) + 2) if f"{self._program.name}-{number}" not in names)
        name = f"{self._program.name}-{number}"
        *command, _ = self._program.argv  # the last word is a node name, which two must not have
        return replace(self._program, name=name, argv=[*command, f"{name}-{os.getpid()}@%h"])


def autoscale(
    lane: Lane, settings: Settings, bounds: ScaleBounds, logs: Path, *, announce: Callable[[str], None]
) -> None:
    """Scale the lane in the foreground. Main thread only. Ends when a signal asks for it, and its workers have finished their calls."""
    with stop_signals() as signals:
        workers = LaneWorkers(lane, settings, logs, announce=announce)
        try:
            asyncio.run(_scale(Autoscaler(lane, settings, bounds, workers, announce=announce), signals))
        finally:
            workers.stop(in_hurry=lambda: signals.in_hurry)


class Autoscaler:
    """Scales one lane: reads its load each second, and has `workers` follow."""

    def __init__(
        self,
        lane: Lane,
        settings: Settings,
        bounds: ScaleBounds,
        workers: LaneWorkers,
        *,
        announce: Callable[[str], None],
    ) -> None:
        self._lane: Lane = lane
        self._settings = settings
        self._bounds = bounds
        self._rule = ScaleRule(bounds)
        self._workers = workers
        self._announce = announce

    async def keep(self, check: Callable[[], None]) -> None:
        """Scale it until cancelled, or until `check`, which is called all the while, raises."""
        async with AsyncExitStack() as stack:
            redis = await self._client(stack, str(self._settings.redis_url))
            broker = str(self._settings.broker)
            is_elsewhere = broker != str(self._settings.redis_url) and is_redis_url(broker)
            other = await self._client(stack, broker) if is_elsewhere else None
            reader = FleetReader(redis, self._settings, broker=other)
            stack.callback(reader.close)
            metrics = FleetMetrics(reader, self._settings)
            awaited = AwaitedLane(redis, self._settings, self._lane)
            self._workers.scale_to(self._bounds.least)
            checking = asyncio.create_task(self._check(metrics, awaited))
            while True:
                check()
                self._workers.tend()
                if checking.done():
                    checking.result()  # a defect of ours ends it
                    checking = asyncio.create_task(self._check(metrics, awaited))
                await asyncio.sleep(_POLL_SECONDS)

    async def _check(self, metrics: FleetMetrics, awaited: AwaitedLane) -> None:
        facts = await metrics.facts()
        if facts is not None:  # else all stays as it is
            await awaited.note(facts)
            load = lane_load(facts, self._lane, usual_slots=self._settings.worker_concurrency)
            if load is not None:  # as above
                self._scale(load, self._rule.target(load.wanted_at(self._bounds.fill), now=time.monotonic()))
        await asyncio.sleep(_CHECK_SECONDS)

    def _scale(self, load: LaneLoad, target: int) -> None:
        before = self._workers.count
        if before != target:
            self._announce(
                f"{self._lane}: from {before} to {target} workers, for {load.running} running and {load.waiting} waiting calls"
            )
        self._workers.scale_to(target)

    async def _client(self, stack: AsyncExitStack, url: str) -> Redis:
        return await stack.enter_async_context(
            async_client(url, master=self._settings.sentinel_master, timeout_seconds=_REDIS_SECONDS)
        )


async def _scale(autoscaler: Autoscaler, signals: StopSignals) -> None:
    try:
        await autoscaler.keep(signals.check)
    except StopRequested:
        return
