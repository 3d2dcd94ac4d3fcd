"""Registers the fleet's own tasks (`toolfleet.…`): they tell Celery's events of failures only.

Beat sends one each second: as rows in Flower they would bury the calls.
"""

from collections.abc import Callable
from typing import Any

from celery import Celery

_REQUEST = "toolfleet_tasks.control.call_strategy:HousekeepingRequest"  # by name: agents import no parts of a worker


def register_task(app: Celery, name: str, body: Callable[..., Any], **options: Any) -> None:
    """Give the app a task of the fleet's own; `body` gets the task first. `options`: of Celery's `app.task`, such as limits."""
    app.task(name=name, bind=True, ignore_result=True, send_events=False, Request=_REQUEST, **options)(body)
