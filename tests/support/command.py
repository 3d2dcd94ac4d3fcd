"""The command, run in the test's own process."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code, and what it printed."""

    code: object
    out: str
    err: str


Run = Callable[..., Ended]
