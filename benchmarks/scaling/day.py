"""Draws the load of a day: quiet at night, a hill before noon, a higher one in the afternoon, and a burst in the evening."""

import math
import random
from dataclasses import dataclass

_HOURS = 24.0
_NIGHT = 0.04  # of the peak
_HILLS = ((10.5, 1.8, 0.7), (15.5, 2.0, 1.0), (21.0, 0.4, 0.6))  # hour, width, height


@dataclass(frozen=True, slots=True)
class Day:
    """`seconds` stand for 24 hours; at most `peak` calls a second."""

    seconds: float
    peak: float

    def rate(self, at: float) -> float:
        """Calls a second, so many seconds after midnight of the day that is played."""
        hour = at / self.seconds * _HOURS
        hills = (height * math.exp(-(((hour - middle) / width) ** 2)) for middle, width, height in _HILLS)
        return self.peak * max(_NIGHT, *hills)

    def moments(self, seed: int) -> list[float]:
        """When calls begin, as people's do: by chance, at that rate. The same for the same seed."""
        chance = random.Random(seed)
        found, at = list[float](), 0.0
        while True:
            at += chance.expovariate(self.peak)
            if at > self.seconds:
                return found
            if chance.random() < self.rate(at) / self.peak:
                found.append(at)
