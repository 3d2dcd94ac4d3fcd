"""Decides how many workers a lane has: up at once, down only when fewer have been enough for a while."""

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScaleBounds:
    """At least `least` workers, at most `most`; one is ended when fewer have been enough for `calm_seconds`.

    `fill`: which part of each worker's slots is to be in use; the others are for calls that come while a further worker starts.
    """

    least: int
    most: int
    calm_seconds: float
    fill: float = 1.0


class ScaleRule:
    """What one lane has needed within the last `calm_seconds`, and what that comes to."""

    def __init__(self, bounds: ScaleBounds) -> None:
        self._bounds = bounds
        self._wanted = deque[
            tuple[float, int]
        ]()  # when, and how many; from the most on, later ones only if they are fewer

    def target(self, wanted: int, *, now: float) -> int:
        """How many workers it is to have, if so many are wanted `now`, in seconds of a clock that nobody sets."""
        while self._wanted and self._wanted[-1][1] <= wanted:
            self._wanted.pop()
        self._wanted.append((now, wanted))
        while len(self._wanted) > 1 and now - self._wanted[0][0] > self._bounds.calm_seconds:
            self._wanted.popleft()
        return max(self._bounds.least, min(self._wanted[0][1], self._bounds.most))
