"""What a model reads of a call's end."""

import pytest

from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.calls import ResultFile
from toolfleet_tasks.adapters.calling import result_text, shown_parts


@pytest.mark.parametrize(
    ("value", "text"), [("hoo", "hoo"), ({"a": [1]}, '{"a":[1]}'), (None, "null"), ("\ud800", "?")]
)
def test_a_success_is_its_result(value: object, text: str) -> None:
    """Text as it is, and all else as JSON."""
    assert result_text(ToolResult.ok("owls.echo", value)) == text


def test_a_failure_says_what_decides_about_a_repeat() -> None:
    """The model reads the code, the effect, whether a repeat is harmless, and what it may do."""
    result = ToolResult.failed("owls.pay", "outcome_unknown", "No answer.", effect_state="unknown", hint="Ask first.")

    assert result_text(result) == (
        "Error: No answer.\nerror_code: outcome_unknown\neffect_state: unknown\nretryable: false\nhint: Ask first."
    )


def test_a_failure_without_a_hint_gets_one() -> None:
    """No failure leaves the model without a word on what it may do."""
    result = ToolResult.failed("owls.pay", "busy", "Busy.", effect_state="none", retryable=True)
    late = result.model_copy(update={"retry_after_seconds": 3.0})

    assert "\nretry_after_seconds: 3.0\nhint: " in result_text(late)


def test_files_that_cannot_be_shown_are_named() -> None:
    """An image goes beside the text, and of the rest the model is told that it cannot see them."""
    image, sound = ResultFile.of("image", b"png", "image/png", None), ResultFile.of("audio", b"wav", "audio/wav", None)
    result = ToolResult.ok("owls.photo", "an owl", files=(image, sound))

    assert "You cannot be shown image 1" in result_text(result)
    text, files = shown_parts(result)
    assert text == "an owl\nYou cannot be shown audio 2 (audio/wav, 3 bytes)."
    assert files == [image]
