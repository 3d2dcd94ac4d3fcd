"""Makes calls when they are due, however long others take: an open loop, as users are. Latency counts from the time that a call is due.

A closed loop waits for results before it makes more calls, and so measures a system least when it is slowest.
"""

import asyncio
import contextlib
import ctypes
import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.calling.clients import AsyncClient, BlockingClient
from benchmarks.calling.tally import quantiles
from benchmarks.work import check, make_call

_LEAD_SECONDS = 0.05  # from the order to the first call
_WAITERS = 32
_MONOTONIC, _ABSOLUTE = 1, 1


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """When calls are due, in seconds from the start: by chance (a Poisson process), the same for the same seed."""
    chance, due, found = random.Random(seed), 0.0, list[float]()
    while (due := due + chance.expovariate(rate)) < seconds:
        found.append(due)
    return found


class Schedule:
    """The calls of an order, and what has become of them."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.tools: list[str] = order["tools"]
        offsets = arrivals(order["rate"], order["seconds"], order["seed"])
        self._cpu, self._starts_at = time.process_time(), time.perf_counter() + _LEAD_SECONDS
        self.due: Sequence[float] = [self._starts_at + offset for offset in offsets]
        self._late: list[float] = []
        self._took: list[float] = []
        self._in_time = 0  # had their results when the last one was due

    def begin(self, number: int) -> None:
        """Note that the producer begins to make a call."""
        self._late.append(time.perf_counter() - self.due[number])

    def end(self, number: int) -> None:
        """Note that a call's result is there."""
        now = time.perf_counter()
        self._took.append(now - self.due[number])
        self._in_time += now <= self.due[-1]

    def report(self) -> dict[str, Any]:
        """As `Tally.report`; `late_…` is how late calls were begun, `in_time` the share that had results when the last was due."""
        took = len(self._took)
        return {
            "calls": took,
            "elapsed": time.perf_counter() - self._starts_at,
            "producer_cpu": time.process_time() - self._cpu,
            "in_time": self._in_time / max(took, 1),
            **quantiles(self._took),
            **{f"late_{name}": value for name, value in quantiles(self._late).items()},
        }


async def run_async(client: AsyncClient, schedule: Schedule) -> None:
    """Make the calls from an event loop, each in a task of its own."""
    loop, timer, all_begun = asyncio.get_running_loop(), PreciseTimer(), asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def call(number: int) -> None:
        schedule.begin(number)
        check(await client.call(make_call(number, schedule.tools)))
        schedule.end(number)

    def begin_due() -> None:
        timer.clear()
        now = time.perf_counter()
        while len(tasks) < len(schedule.due) and schedule.due[len(tasks)] <= now:
            tasks.append(loop.create_task(call(len(tasks))))
        if len(tasks) < len(schedule.due):
            timer.set(schedule.due[len(tasks)])
        else:
            all_begun.set()

    loop.add_reader(timer.fd, begin_due)
    begin_due()
    await all_begun.wait()
    loop.remove_reader(timer.fd)
    timer.close()
    await asyncio.gather(*tasks)


def run_blocking(client: BlockingClient, schedule: Schedule) -> None:
    """Make the calls from one thread, and wait for their results in others: each waits for the oldest that nobody waits for."""

    def finish(number: int, handle: Any) -> None:
        check(client.result(handle))
        schedule.end(number)

    with ThreadPoolExecutor(_WAITERS) as waiters:
        ends = []
        for number, due in enumerate(schedule.due):
            if (rest := due - time.perf_counter()) > 0:
                time.sleep(rest)
            schedule.begin(number)
            ends.append(waiters.submit(finish, number, client.publish(make_call(number, schedule.tools))))
        for end in ends:
            end.result()


class PreciseTimer:
    """A file descriptor that can be read from a time on (of `perf_counter`): an event loop's own timers go by milliseconds."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "there is no timer")

    def set(self, at: float) -> None:
        """Let it be ready at that time; at once if that has passed."""
        seconds, rest = divmod(int(at * 1e9), 10**9)
        value = (ctypes.c_long * 4)(0, 0, seconds, rest)
        self._libc.timerfd_settime(self.fd, _ABSOLUTE, ctypes.byref(value), None)

    def clear(self) -> None:
        """Let it not be ready."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        """Give it back."""
        os.close(self.fd)
