"""What Celery's tools get to see of a call's end is a word."""

import pytest

from toolfleet_registry.contracts import ToolResult
from toolfleet_tasks import wire
from toolfleet_tasks.request import word_in

DONE = ToolResult.ok("owls.echo", {"success": False, "error_code": "busy"})
FAILED = ToolResult.failed("owls.echo", "module_error", '"success":true', effect_state="unknown")
NESTED = FAILED.model_copy(update={"result": {"error_code": "secret"}})


@pytest.mark.parametrize(
    ("shown", "word"),
    [
        ("'done'", "done"),  # as Celery shows a text
        ("'timed_out'", "timed_out"),
        (f"'{wire.dump(DONE)}'", "done"),  # a result, as stock parts have it
        (f"'{wire.dump(FAILED)}'", "module_error"),
        (f"'{wire.dump(FAILED)[:60]}...'", "failed"),  # cut off before the code
        (f"'{wire.dump(NESTED)}'", "module_error"),  # no module gets a word of its own in
        (f"'{wire.dump(NESTED)[:120]}'", "failed"),
        ("None", "done"),
    ],
)
def test_a_result_is_shown_as_a_word(shown: str, word: str) -> None:
    """Its error code, or that it is done; nothing that the module has said."""
    assert word_in(shown) == word
