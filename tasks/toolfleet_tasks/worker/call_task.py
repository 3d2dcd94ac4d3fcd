"""Gives the Celery app the task that runs a call."""

from celery import Celery

from toolfleet_registry.contracts.calls import MOST_RETRIES
from toolfleet_tasks.messages.envelope import TASK
from toolfleet_tasks.worker.accepted import follow_revocations
from toolfleet_tasks.worker.canvas import CallTask
from toolfleet_tasks.worker.execute import body

# Celery's own shows arguments and results to everybody who asks.
_REQUEST = "toolfleet_tasks.control.celery_request:FleetRequest"


def register(app: Celery) -> None:
    """Give the app the task: acked when its result is stored, tried as often as the ledger lets it, limits from the message."""
    follow_revocations()
    # One function for all apps: Celery warns of two with the same name.
    app.task(name=TASK, base=CallTask, bind=True, acks_late=True, max_retries=MOST_RETRIES, Request=_REQUEST)(body)
