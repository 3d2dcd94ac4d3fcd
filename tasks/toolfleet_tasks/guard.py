"""Refuses to start a worker from an app that can only publish calls."""

from typing import Any

from celery import Celery, bootsteps

COMMAND = "celery -A toolfleet_workers.main worker"


class RequireRunner(bootsteps.Step):  # type: ignore[misc] # Celery ships no types
    """Ends the process before the worker connects to anything, if its app has no `runner`."""

    def __init__(self, parent: Any, **options: object) -> None:
        super().__init__(parent, **options)
        require_runner(parent.app)


def install(app: Celery) -> None:
    """Have every worker that is started from `app` checked."""
    steps: Any = app.steps
    steps["worker"].add(RequireRunner)


def require_runner(app: Celery) -> None:
    """Raise `SystemExit`, with the right command in its message, if `app.runner` is missing or `None`."""
    if getattr(app, "runner", None) is None:
        raise SystemExit(f"This app publishes calls and has no runner to run them. Start the worker with: {COMMAND}")
