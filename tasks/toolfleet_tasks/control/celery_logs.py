"""Has Celery's own commands log as the fleet does, for the fleet's app only."""

from typing import Any

from celery.app.log import Logging

from toolfleet_tasks.control.logs import configure_logs


class FleetLogging(Logging):
    """The logging set-up of `celery worker` and `celery beat`.

    It does not use Celery's signal `setup_logging`: that is the process's, and would take its logs from a program's own
    Celery app.
    """

    def setup_logging_subsystem(self, *_: object, **__: Any) -> Any:
        """Configure the process's logs, once. Returns True: Celery must not do anything of its own."""
        if not self.already_setup:
            Logging._setup = True  # noqa: SLF001 - as Celery's own does
            configure_logs(self.app.settings)
        return True
