"""Reads the clocks of this machine: the port for code that runs on no event loop, or must not wait for one.

Code on a loop sleeps, and sets timers, by its loop: that is the port there. A simulation replaces the names here, and
the loop; no object may store one of these functions for longer than it lives.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime

# The functions themselves: a function around them would take as long as they do.
monotonic: Callable[[], float] = time.monotonic
"""Return seconds on a clock that cannot be set; only differences mean something."""

wall: Callable[[], float] = time.time
"""Return what this machine takes for the time, in seconds since the epoch: for people to read. Deadlines go by the fleet's clock."""


def utc_now() -> datetime:
    """Return the same as a datetime with its zone."""
    return datetime.fromtimestamp(wall(), UTC)
