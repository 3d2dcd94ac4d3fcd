"""Tells the end of an attempt by our own clock, although the sender's clock, or ours, may be wrong.

A request says when it may last start, and the sender's time when it was sent. The smallest recent difference of a
sender's requests to our time is that of the clocks; a larger difference is the time that a request was under way.
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
        """Return when the attempt may last start, by the clock that counts suspension, by which its request `came_at`.

        `field` is its `Toolfleet-Begin-By`; `None` if that is invalid.
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
