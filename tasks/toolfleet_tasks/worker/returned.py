"""Returns to Celery what a call has come to, and to the calls of a canvas that follow it."""

from typing import Any

from celery.exceptions import Ignore
from celery.states import SUCCESS

from toolfleet_registry.contracts import ToolResult
from toolfleet_tasks.results import stored as results
from toolfleet_tasks.worker.canvas import go_on, is_followed


def stored_end(task: Any, stored: str) -> str:
    """The result of a call that has ended, for Celery."""
    if not stored:  # its result has expired
        raise Ignore
    text = results.text_of(stored)
    needs_result = task.app.settings.is_fast or is_followed(task.request)
    return returned(task, text, results.read_stored(text, "") if needs_result else None)


def returned(task: Any, text: str, result: ToolResult | None) -> str:
    """What Celery gets to see: where the result stands already, a word, for Celery shows it to Flower.

    Raises `LinkFailed` where others follow the call and must not be called; its own result is stored before.
    """
    if task.app.settings.is_fast and result is not None:
        task.request.is_stored = True
        text = results.word_of(result)
    elif result is not None and not result.success and is_followed(task.request):
        task.backend.store_result(task.request.id, text, SUCCESS, request=task.request)
    if result is not None:
        go_on(task.request, result)
    return text
