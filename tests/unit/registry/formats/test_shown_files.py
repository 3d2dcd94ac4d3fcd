"""A result's files as each provider wants them; the providers' own packages are the judges."""

import json
from typing import Any

import pytest

from support.files.pictures import JPEG, PDF, PNG, WAV, base64
from support.schemas.provider_judges import accepts_result
from toolfleet_registry.contracts import ResultFile, ToolResult
from toolfleet_registry.formats import Format, from_result
from toolfleet_registry.formats.providers.dialects import DIALECTS

CHART = ResultFile.of("image", PNG, "image/png", None)
REPORT = ResultFile.of("file", PDF, "application/pdf", "report.pdf")
NOTE = ResultFile.of("file", b"Eulen", "text/plain", "note.txt")
HOOT = ResultFile.of("audio", WAV, "audio/wav", None)
SCAN = ResultFile.of("image", b"II*\x00", "image/tiff", None)
PNG_URL = f"data:image/png;base64,{base64(PNG)}"
PDF_URL = f"data:application/pdf;base64,{base64(PDF)}"
LABELS = "image 1 (image/png, 70 bytes)"


def result(*files: ResultFile) -> ToolResult:
    labels = [file.label(number) for number, file in enumerate(files, 1)]
    return ToolResult.ok("owls.draw", labels[0] if len(labels) == 1 else labels, files=files)


@pytest.mark.parametrize(
    ("provider", "file", "block"),
    [
        ("openai_responses", CHART, {"type": "input_image", "image_url": PNG_URL, "detail": "auto"}),
        ("openai_responses", REPORT, {"type": "input_file", "filename": "report.pdf", "file_data": PDF_URL}),
        (
            "anthropic",
            CHART,
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64(PNG)}},
        ),
        (
            "anthropic",
            REPORT,
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": base64(PDF)},
                "title": "report.pdf",
            },
        ),
        (
            "anthropic",
            NOTE,
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "Eulen"},
                "title": "note.txt",
            },
        ),
        ("gemini", CHART, {"inlineData": {"mimeType": "image/png", "data": base64(PNG)}}),
        ("gemini", REPORT, {"inlineData": {"mimeType": "application/pdf", "data": base64(PDF)}}),
        ("mcp", CHART, {"type": "image", "data": base64(PNG), "mimeType": "image/png"}),
        ("mcp", HOOT, {"type": "audio", "data": base64(WAV), "mimeType": "audio/wav"}),
        (
            "mcp",
            REPORT,
            {
                "type": "resource",
                "resource": {
                    "uri": "result://files/1/report.pdf",
                    "mimeType": "application/pdf",
                    "blob": base64(PDF),
                },
            },
        ),
    ],
)
def test_a_file_comes_in_the_providers_own_form(provider: Format, file: ResultFile, block: dict[str, Any]) -> None:
    """Beside the text, in which its label stands."""
    message = from_result(result(file), provider, "1")
    accepts_result(provider, message)

    assert block in blocks_of(provider, message)
    assert file.label(1) in json.dumps(message, ensure_ascii=False).replace("\\'", "'")
    assert "cannot be shown" not in json.dumps(message)


def blocks_of(provider: Format, message: dict[str, Any]) -> Any:
    if provider == "gemini":
        return message["functionResponse"]["parts"]
    return message["output"] if provider == "openai_responses" else message["content"]


@pytest.mark.parametrize(
    ("provider", "file"),
    [
        ("openai_chat", CHART),  # a tool's message has text only
        ("openai_chat", REPORT),
        ("openai_responses", HOOT),
        ("openai_responses", SCAN),  # an image that no model looks at
        ("anthropic", HOOT),
        ("anthropic", SCAN),
        ("gemini", HOOT),
        ("gemini", ResultFile.of("image", b"GIF89a", "image/gif", None)),
    ],
)
def test_what_a_provider_does_not_take_is_a_sentence(provider: Format, file: ResultFile) -> None:
    """Its bytes are not sent: the whole request would be refused, or the model would read base64."""
    message = from_result(result(file), provider, "1")
    accepts_result(provider, message)
    said = json.dumps(message)

    assert f"You cannot be shown {file.label(1)}." in said
    assert file.data not in said


@pytest.mark.parametrize("provider", DIALECTS)
def test_a_model_that_takes_text_only_gets_none(provider: Format) -> None:
    """With `files=False`, whatever the provider takes."""
    message = from_result(result(CHART, REPORT), provider, "1", files=False)
    accepts_result(provider, message)
    said = json.dumps(message)

    assert f"You cannot be shown {LABELS}, file 2 'report.pdf' (application/pdf, 15 bytes)." in said
    assert CHART.data not in said
    assert REPORT.data not in said


@pytest.mark.parametrize("provider", DIALECTS)
def test_some_are_shown_and_some_are_not(provider: Format) -> None:
    """The numbers say which."""
    message = from_result(result(CHART, HOOT, ResultFile.of("image", JPEG, "image/jpeg", None)), provider, "1")
    accepts_result(provider, message)

    shown = 0 if provider == "openai_chat" else 3 if provider == "mcp" else 2
    assert sum(file.data in json.dumps(message) for file in result(CHART, HOOT).files) == (shown and shown - 1)
    assert ("You cannot be shown" in json.dumps(message)) == (provider != "mcp")


def test_gemini_reads_the_bytes() -> None:
    """Its package decodes them."""
    from google.genai import types as gemini  # noqa: PLC0415 - as `provider_judges`

    part = gemini.Part.model_validate(from_result(result(CHART), "gemini", "1"))
    assert part.function_response is not None
    assert part.function_response.parts is not None
    blob = part.function_response.parts[0].inline_data
    assert blob is not None
    assert (blob.data, blob.mime_type) == (PNG, "image/png")


def test_a_file_knows_its_size_and_its_bytes() -> None:
    """Whatever the padding is."""
    for data in (b"a", b"ab", b"abc", b"abcd"):
        file = ResultFile.of("file", data, "application/octet-stream", None)
        assert (file.size, file.read()) == (len(data), data)
