"""Tells the time that agents and workers share, by a clock that follows a Redis server's and never goes back.

There is one fleet clock in a process. It is based on monotonic time, so a change of this machine's clock has no effect,
and it follows the clock of the Redis that holds calls' records; the code that talks to that Redis passes its readings
on.

The clock knows no Redis: it is given readings, and judges them. Monotonic time tells a clock that was set from one that goes wrong;
and as a machine can stop for a while, but never run ahead, of two that contradict each other the one that shows more is right.
"""

import functools
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

STEP_SECONDS = 1.0
"""A clock that differs by more from what it should show was set: less than that is made good without a jump."""
FASTEST_SLEW = 0.05
"""How much faster or slower than real time it goes at most: a second is made good in 20 s, and a lease of 60 s lasts 57 s at least."""
LONGEST_BRIDGE_SECONDS = 3600.0
"""A step by more is followed, though calls end by it: a server whose date was wrong would keep the fleet off for weeks."""
RETURN_RATE = 0.01
"""How fast the fleet's time comes back to the server's: slowly, as clocks have to follow that are looked after once in a minute."""
_WORST_DRIFT = 5e-4  # of two machines' clocks against each other, while they are not compared
_KEPT = 8  # readings, of which the one with the shortest way is the most exact
KEPT_SECONDS = 30.0
"""How much older than the latest the reading may be that a clock goes by. While the fleet's time comes back to the server's, such a
clock differs from it by `RETURN_RATE` times that."""
YOUNG_SECONDS = 5.0
"""For so long, and until it has asked again, a clock that was set believes the server, unless others confirm its time: they may still
be finding out that the server was set just before."""

Verdict = Literal["set", "followed", "paused", "stepped", "lost"]
"""What a reading has led to.

`set`: at first, to what it says. `followed`: smoothly. `paused`: it was this machine that stood still, as others have gone on,
and the clock is set forward. `stepped`: the server's clock was set; ours goes on as before, and others have to be told by how
much. `lost`: it was set by too much for that, and ours with it.
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading: between `asked_at` and `heard_at` (s, monotonic) the server's clock showed `server`, and the fleet's `fleet`."""

    server: float
    fleet: float
    asked_at: float
    heard_at: float

    @property
    def at(self) -> float:
        """The moment, as well as it is known."""
        return (self.asked_at + self.heard_at) / 2

    @property
    def doubt(self) -> float:
        """The uncertainty in seconds, either way."""
        return (self.heard_at - self.asked_at) / 2


class SlewedClock:
    """`monotonic` counts suspension, too; `wall` is what the machine takes for the time. Until it is set, it shows `wall`.

    `now` never decreases, but where the verdict on a reading is `set` or `lost`. Any thread may read it; readings come from
    one at a time.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
        young_seconds: float = YOUNG_SECONDS,
    ) -> None:
        self.monotonic = monotonic
        self._young_seconds = young_seconds
        self._wall = wall
        self._readings = deque[Reading](maxlen=_KEPT)
        self.forget()

    def forget(self) -> None:
        """Show the machine's time again, as if no server had been heard."""
        # By when it has made good what it had to, what it shows then beyond monotonic time, and how fast it makes good.
        self._course: tuple[float, float, float] | None = None
        self._young_until = -math.inf
        self._last: Reading | None = None  # with which the clock has agreed
        self._readings.clear()
        self.source: tuple[str, float] = ("", -math.inf)
        """Which server it follows, and when (monotonic) that one was heard last."""

    @property
    def is_set(self) -> bool:
        """Whether it has had any reading of a server's time."""
        return self._course is not None

    @property
    def is_young(self) -> bool:
        """Whether other clocks may be better: it was not set yet, or no reading from after its first seconds has agreed with it."""
        return self._last is None or self._last.heard_at < self._young_until

    @property
    def wall_lead(self) -> float:
        """The seconds by which the machine's own clock is ahead of this one."""
        return self._wall() - self.now()

    def now(self) -> float:
        """Seconds since the epoch."""
        course = self._course
        if course is None:
            return self._wall()
        until, offset, rate = course
        moment = self.monotonic()
        return moment + offset if moment >= until else moment + offset - rate * (until - moment)

    def at(self, moment: float) -> float:
        """Return the fleet's time at a moment of the monotonic clock, close to now."""
        return self.now() + moment - self.monotonic()

    def hear(self, reading: Reading, reached: float = -math.inf) -> Verdict:
        """Take a reading. `reached` is the latest time that any other clock of the fleet is known to have shown.

        If that agrees with it, a process that has followed the server for longer agrees too, and the clock is no longer
        young.
        """
        verdict = self._judge(reading, reached)
        if verdict in {"set", "followed"} and abs(reading.fleet - reached) <= STEP_SECONDS + reading.doubt:
            self._young_until = -math.inf
        return verdict

    def _judge(self, reading: Reading, reached: float) -> Verdict:
        if self._course is None:
            self._young_until = reading.heard_at + self._young_seconds
            return self._set_to(reading, "set")
        last = self._last or reading
        idle = max(reading.at - last.at, 0.0)
        tolerance = STEP_SECONDS + reading.doubt + last.doubt + _WORST_DRIFT * idle
        shown = self.at(reading.at)
        ahead = reading.fleet - shown
        if abs(ahead) <= tolerance:
            return self._follow(reading)
        if self.is_young:
            return self._set_to(reading, "set")
        has_jumped = abs((reading.server - last.server) - (reading.at - last.at)) > tolerance
        is_returning = not has_jumped and abs(ahead) <= tolerance + RETURN_RATE * idle
        if is_returning and ahead < 0:
            return self._follow(reading)
        # If no other clock has shown such a time the server was set twice since it was asked, and the fleet's time still makes good
        # for the first.
        if ahead > 0 and (is_returning or reached >= shown + ahead / 2):
            return self._set_to(reading, "paused")
        return "stepped" if abs(ahead) <= LONGEST_BRIDGE_SECONDS else self._set_to(reading, "lost")

    def _set_to(self, reading: Reading, verdict: Verdict) -> Verdict:
        self._readings.clear()
        self._readings.append(reading)
        self._last = reading
        moment = self.monotonic()
        self._course = (moment, reading.fleet - reading.at, 0.0)
        return verdict

    def _follow(self, reading: Reading) -> Verdict:
        self._last = reading
        self._readings.append(reading)
        while self._readings[0].at < reading.at - KEPT_SECONDS:
            self._readings.popleft()
        # Of two that are as exact the later one: clocks drift.
        best = min(reversed(self._readings), key=lambda each: each.doubt)
        moment, shown = self.monotonic(), self.now()
        ahead = best.fleet + moment - best.at - shown
        # Within its doubt a reading contradicts nothing: the answer of a server that stood still would move a clock that is right.
        slew = math.copysign(max(abs(ahead) - best.doubt, 0.0), ahead)
        self._course = (moment + abs(slew) / FASTEST_SLEW, shown + slew - moment, math.copysign(FASTEST_SLEW, slew))
        return "followed"


_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS: its monotonic clock counts suspension

suspend_aware: Callable[[], float] = functools.partial(time.clock_gettime, _BOOTTIME)
"""Return seconds on a clock that cannot be set and that counts suspension too; only differences mean something."""

clock = SlewedClock(monotonic=suspend_aware, wall=time.time)
"""The clock of this process. Until a Redis was asked it is this machine's own."""

# Both are asked some twenty times a call: a function around them would take as long as they do.
now: Callable[[], float] = clock.now
"""Return the fleet's time: seconds since the epoch, as deadlines and leases are given."""


def utc_now() -> datetime:
    """Return the fleet's time as a datetime with its zone."""
    return datetime.fromtimestamp(now(), UTC)
