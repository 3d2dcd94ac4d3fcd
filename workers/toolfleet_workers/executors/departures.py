"""Notes since when processes of modules are not there any more, and says which of them are gone for good.

Redis that has lost its data hears of all hosts again within less than `ABSENT_SECONDS`: what is missing for so long has left.
"""

from collections.abc import Collection

from toolfleet_registry.time import machine_clock

ABSENT_SECONDS = 5.0
_MOST = 10_000  # that are remembered: of those before, somebody asks again

Process = tuple[str, str]
"""A module's name, and the id of one of its processes."""


class Departures:
    """Those that one worker process knows of. A process that comes back has never left."""

    def __init__(self) -> None:
        self._since: dict[Process, float] = {}

    def serve(self, there: Collection[Process], *, before: Collection[Process]) -> None:
        """Have these from now on; those that were there `before` may have left."""
        for process in there:
            self._since.pop(process, None)
        for process in before:
            if process not in there:
                self._note(process)

    def is_gone(self, module: str, replica_id: str) -> bool:
        """Whether a process that is not there has left for good. One of which nobody has heard has left just now."""
        return machine_clock.monotonic() - self._note((module, replica_id)) >= ABSENT_SECONDS

    def _note(self, process: Process) -> float:
        since = self._since.setdefault(process, machine_clock.monotonic())
        if len(self._since) > _MOST:
            del self._since[next(iter(self._since))]
        return since
