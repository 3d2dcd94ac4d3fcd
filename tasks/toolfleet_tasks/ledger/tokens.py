"""Makes fencing tokens: each claim of a call, and each end from outside, has one of its own."""

import itertools
import re

from toolfleet_registry.system import randomness
from toolfleet_registry.time import fleet_clock

# Characters: with a longer value than 64 bytes Redis keeps a record in another form, of several times the size.
_LONGEST_WORKER = 37
_LONGEST_SHORT = 23  # characters of it behind a tag, which has 26 at most, and a time, which has 15 with its signs
_PROCESS = 12  # hex digits
_ODD = re.compile(r"[^\w.@:/-]", re.ASCII)


class FencingTokens:
    """Those of one process. A worker's say when each was made, and by which worker: so the record of a call that it has lost does."""

    def __init__(self) -> None:
        self._process, self._count, self._last = randomness.uuid4().hex, itertools.count(), 0
        self._worker: str | None = None
        self._shown = ""

    def begin_with(self, name: str) -> None:
        """Have those to come begin with the name under which their worker holds messages. No other tokens may."""
        self._process = name

    def serve(self, worker: str | None) -> None:
        """Have those to come say that this worker has made them."""
        if worker and worker != self._worker:
            self._worker, self._shown = worker, _ODD.sub("_", worker)[:_LONGEST_WORKER]

    def next(self) -> str:
        """One that nobody has had."""
        return f"{self._process[:_PROCESS]}{self._mark()}" if self._shown else f"{self._process}-{next(self._count)}"

    @property
    def worker(self) -> str:
        """The worker as a token shows it that is made of a message's tag; '' as long as that is not known."""
        return self._shown[:_LONGEST_SHORT]

    def _mark(self) -> str:
        self._last = max(int(fleet_clock.now() * 1_000_000), self._last + 1)
        return f"~{self._last:x}~{self._shown}"
