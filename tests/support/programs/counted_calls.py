"""Counts the functions that a piece of work calls, Python's and those in C: how much it does, whatever the machine does meanwhile.

One that loops in C counts once: such work is bounded by what it is given.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def counted(work: Callable[[], T]) -> tuple[T, int]:
    """What the work returns, and how many calls it has made."""
    calls = 0

    def note(_: FrameType, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        return work(), calls
    finally:
        sys.setprofile(before)
