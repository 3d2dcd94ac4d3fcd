"""Returns to Celery what a call has come to."""

from celery.exceptions import Ignore

from toolfleet_registry.contracts import ToolResult
from toolfleet_tasks.results import stored as results
from toolfleet_tasks.worker.running_task import RunningTask


def stored_end(task: RunningTask, stored: str) -> str:
    """The result of a call that has ended, for Celery."""
    if not stored:  # its result has expired
        raise Ignore
    text = results.text_of(stored)
    needs_result = task.app.settings.is_fast or task.is_followed
    return returned(task, text, results.read_stored(text, "") if needs_result else None)


def returned(task: RunningTask, text: str, result: ToolResult | None) -> str:
    """What Celery gets to see: where the result stands already, a word, for Celery shows it to Flower.

    Raises what `RunningTask.pass_on` does.
    """
    shown = text
    if task.app.settings.is_fast and result is not None:
        task.request.is_stored = True
        shown = results.word_of(result)
    if result is not None and task.is_followed:
        task.pass_on(text, result)
    return shown
