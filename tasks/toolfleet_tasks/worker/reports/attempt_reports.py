"""Takes what one attempt reports: how far it is, and its log messages where its caller wants them."""

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.progress import report_to
from toolfleet_registry.settings import Settings
from toolfleet_tasks.worker.reports.attempt_log import AttemptLog
from toolfleet_tasks.worker.reports.progress import Reports


class AttemptReports:
    """Those of one attempt, from the moment that it is made: of whatever is reported in this task."""

    __slots__ = ("_log", "_progress")

    def __init__(self, call: PublishedCall, settings: Settings) -> None:
        self._progress = Reports(call, settings)
        report_to(self._progress.take)
        self._log = None if call.log_level is None else AttemptLog(call, call.log_level, settings)

    async def end(self) -> None:
        """Take no more. Log messages are published before the attempt's end is; Redis has a second for that."""
        self._progress.end()
        if self._log is not None:
            await self._log.end()
