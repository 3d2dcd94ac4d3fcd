"""Tells the end of an attempt by our own clock, whatever its sender's clock shows: it may be wrong, and ours may be.

A request says when it may last begin, and what its sender's clock showed as it was sent. The smallest difference to ours that
a sender's requests have had of late is that of the clocks; by how much another one has more, so long it was under way.
"""

import math
import re
from collections import OrderedDict
from dataclasses import dataclass

from toolfleet_registry.time.lease import ALLOWANCE_SECONDS

# For which the smallest difference counts, and at most twice as long: clocks drift, by less than the allowance in this time.
_PERIOD_SECONDS = 300.0
_MOST_SENDERS = 10_000
_END = re.compile(r"(\d{1,15});now=(\d{1,15});sender=([A-Za-z0-9_-]{1,64})", re.ASCII)


@dataclass(slots=True)
class _Clock:
    since: float
    least: float
    before: float = math.inf  # the least of the period before this one


class Senders:
    """The clocks of those who send requests, as far as their requests show them."""

    def __init__(self) -> None:
        self._clocks = OrderedDict[str, _Clock]()

    def end_of(self, field: str | None, *, came_at: float) -> float | None:
        """When the attempt may last begin, by the clock that counts suspension, by which its request `came_at`.

        `field` is its `Toolfleet-Begin-By`; `None` if that says nothing.
        """
        match = _END.fullmatch(field or "")
        if match is None:
            return None
        begin_by, now = int(match[1]) / 1000, int(match[2]) / 1000
        return begin_by + self._difference(match[3], came_at - now, came_at) + ALLOWANCE_SECONDS

    def _difference(self, sender: str, difference: float, at: float) -> float:
        clock = self._clocks.pop(sender, None) or _Clock(at, difference)
        if at > clock.since + _PERIOD_SECONDS:
            is_recent = at <= clock.since + 2 * _PERIOD_SECONDS
            clock = _Clock(at, difference, clock.least if is_recent else math.inf)
        clock.least = min(clock.least, difference)
        self._clocks[sender] = clock
        if len(self._clocks) > _MOST_SENDERS:
            self._clocks.popitem(last=False)
        return min(clock.least, clock.before)
