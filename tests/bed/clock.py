"""The virtual clock. It stands still until it is moved; a Redis server under libfaketime shows the same time.

Nothing of the product may be imported before `replaced`, which puts these functions in the place of `time.time` and its like.
"""

import math
import time
from pathlib import Path

real_monotonic, real_sleep = time.monotonic, time.sleep

_HOUR, _DAY = 3600, 86_400
_MORNING, _AFTERNOON = 10 * _HOUR, 16 * _HOUR
_MICROSECONDS = 1_000_000
_wall = int(time.time()) // _DAY * _DAY + _MORNING
_monotonic = time.monotonic()
_passed = 0  # microseconds, as exact as Redis's own
_file: Path | None = None


def wall() -> float:
    """Return seconds since the epoch. The clock begins at ten in the morning, UTC."""
    return _wall + _passed / _MICROSECONDS


def monotonic() -> float:
    """Return seconds; only differences mean something."""
    return _monotonic + _passed / _MICROSECONDS


def passed() -> float:
    """Return the seconds by which the clock has been moved since the process started."""
    return _passed / _MICROSECONDS


def milliseconds() -> int:
    """Return the same as whole milliseconds, by which Redis ends the waits of its clients."""
    return _passed // 1000


def begin(at: float) -> None:
    """Have the clock begin at another time than this morning: what a seed has made is the same on every day."""
    global _wall, _monotonic
    _wall, _monotonic = int(at), 0.0


def move(seconds: float) -> None:
    """Move the clock. Redis first: no client may find there what is older than itself."""
    global _passed  # noqa: PLW0603 - there is one time
    later = _passed + math.ceil(seconds * _MICROSECONDS)
    if _file is not None:
        _show(_file, later)
    _passed = later


def move_to_morning() -> None:
    """Move the clock to the next ten in the morning, UTC, once it is afternoon: no day ends unasked in what comes."""
    if not _MORNING <= (time_of_day := wall() % _DAY) < _AFTERNOON:
        move((_MORNING - time_of_day) % _DAY)


def shown_in(folder: Path) -> dict[str, str]:
    """Show the time in a file from now on. Returns the environment, without the library, of a process that reads it there."""
    global _file  # noqa: PLW0603 - as above
    _file = folder / "clock"
    _show(_file, _passed)
    return {
        "FAKETIME_TIMESTAMP_FILE": str(_file),
        "FAKETIME_FMT": "%s",  # seconds since the epoch, and their fraction: a clock that stands still
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",  # its older name
    }


def _show(file: Path, passed: int) -> None:
    draft = file.with_suffix(".new")
    draft.write_text(f"{_wall + passed // _MICROSECONDS}.{passed % _MICROSECONDS:06}\n")
    draft.replace(file)  # a reader sees no half of it
