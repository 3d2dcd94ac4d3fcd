"""What a producer has counted of its calls."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.work import USER


class Tally:
    """How many calls there may still be, and how long each took."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.tools: list[str] = order["tools"]
        self.user: str = order.get("user", USER)
        self.in_flight: int = order["in_flight"]
        self._seconds: float = order["seconds"]
        self._most: int = order.get("most") or sys.maxsize
        self.took: list[float] = []

    def start(self) -> None:
        """Begin to measure."""
        self._cpu = time.process_time()
        self._started_at = time.perf_counter()
        self.numbers = self._numbers()

    def _numbers(self) -> Iterator[int]:
        """The calls to make: none any more when the time is up."""
        for number in range(self._most):
            if time.perf_counter() - self._started_at >= self._seconds:
                return
            yield number

    def report(self) -> dict[str, Any]:
        """What was measured; times in seconds and, of single calls, in milliseconds."""
        elapsed = time.perf_counter() - self._started_at
        cpu = time.process_time() - self._cpu
        return {"calls": len(self.took), "elapsed": elapsed, "producer_cpu": cpu, **quantiles(self.took)}


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """The median and the ends of so many times, in milliseconds: `p50_ms`, `p95_ms`, `p99_ms`."""
    ordered = sorted(seconds)
    return {f"p{q}_ms": _quantile(ordered, q / 100) * 1000 for q in (50, 95, 99)}


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
