"""Tells the time that agents and workers share, and the time that goes on while a machine is suspended.

There is one fleet clock in a process. It is based on monotonic time, so a change of this machine's clock has no effect,
and it follows the clock of the Redis that holds calls' records; the code that talks to that Redis passes its readings
on.
"""

import functools
import time
from collections.abc import Callable
from datetime import UTC, datetime

from toolfleet_registry.time.slewed_clock import SlewedClock

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS: its monotonic clock counts suspension


suspend_aware: Callable[[], float] = functools.partial(time.clock_gettime, _BOOTTIME)
"""Return seconds on a clock that nobody sets and that counts suspension too; only differences mean something."""

clock = SlewedClock(monotonic=suspend_aware, wall=time.time)
"""The process's. Until a Redis was asked it is this machine's own."""

# Both are asked some twenty times a call: a function around them would take as long as they do.
now: Callable[[], float] = clock.now
"""Return the fleet's time: seconds since the epoch, as deadlines and leases are given."""


def utc_now() -> datetime:
    """Return the fleet's time as a datetime with its zone."""
    return datetime.fromtimestamp(now(), UTC)
