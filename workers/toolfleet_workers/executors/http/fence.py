"""Writes the header fields by which a module refuses an attempt that others have overtaken: its number, and its end."""

import math

from toolfleet_registry.system import randomness
from toolfleet_registry.time import fleet_clock
from toolfleet_registry.time.lease import Lease

_STEADY_SECONDS = 0.25  # a clock that differs by more from one that nobody sets was set


class Sender:
    """The clock by which this process tells modules the time. Once it was set it is another sender's: its times do not compare."""

    def __init__(self) -> None:
        self._name = ""
        self._offset = math.inf

    def fields(self, lease: Lease) -> bytes:
        """The fields of a request that is about to be sent; only the first for a call that nobody else can have."""
        left, now = lease.seconds_left(), fleet_clock.now()
        if left == math.inf:
            return b"Toolfleet-Attempt: %d\r\n" % lease.attempt
        offset = now - fleet_clock.suspend_aware()
        if abs(offset - self._offset) > _STEADY_SECONDS:
            self._name, self._offset = randomness.uuid4().hex, offset
        return (
            f"Toolfleet-Attempt: {lease.attempt}\r\n"
            f"Toolfleet-Begin-By: {int((now + left) * 1000)};now={int(now * 1000)};sender={self._name}\r\n"
        ).encode()
