"""Lets a program sleep whose clock libfaketime sets: on its path, Python imports this at its start.

With its monotonic clock left alone, libfaketime refuses every `clock_nanosleep` (EINVAL), which is what `time.sleep` calls.
"""

import select
import time
from typing import SupportsIndex


def _sleep(seconds: float | SupportsIndex, /) -> None:
    select.select((), (), (), float(seconds))


time.sleep = _sleep
