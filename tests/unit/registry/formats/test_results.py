"""A result as each provider wants it back, with its files."""

import json
from typing import Any

import pytest

from support.files.pictures import JPEG, PDF, PNG, WAV, base64
from support.schemas.provider_judges import accepts_result
from support.there import there
from toolfleet_registry.contracts import ResultFile, ToolResult
from toolfleet_registry.formats import Format, from_result
from toolfleet_registry.formats.dialects import DIALECTS

FOUND = ToolResult.ok("research.search", {"passages": ["Eulen schlafen am Tag, Mäuse nicht"]})
JSON = '{"passages":["Eulen schlafen am Tag, Mäuse nicht"]}'
FAILED = ToolResult.failed(
    "research.search", "timed_out", "Timed out after 30 s.", effect_state="none", hint="Try less."
)
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPj/HwADBwIAMCbHYQAAAABJRU5ErkJggg=="
TEXT = "Timed out after 30 s.\nTry less."


CHAT = {"role": "tool", "tool_call_id": "1"}
RESPONSES = {"type": "function_call_output", "call_id": "1"}
ANTHROPIC = {"type": "tool_result", "tool_use_id": "1"}


def gemini_response(**response: Any) -> dict[str, Any]:
    return {"functionResponse": {"id": "1", "name": "research__search", "response": response}}


def mcp_result(text: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], **more}


@pytest.mark.parametrize(
    ("provider", "found", "failed"),
    [
        ("openai_chat", {**CHAT, "content": JSON}, {**CHAT, "content": f"Error: {TEXT}"}),
        ("openai_responses", {**RESPONSES, "output": JSON}, {**RESPONSES, "output": f"Error: {TEXT}"}),
        ("anthropic", {**ANTHROPIC, "content": JSON}, {**ANTHROPIC, "content": TEXT, "is_error": True}),
        ("gemini", gemini_response(output=FOUND.result), gemini_response(error=TEXT)),
        (
            "mcp",
            mcp_result(JSON, isError=False, structuredContent=FOUND.result),
            mcp_result(TEXT, isError=True),
        ),
    ],
)
def test_a_success_and_a_failure(provider: Format, found: dict[str, Any], failed: dict[str, Any]) -> None:
    """A failure is marked as the provider wants it, and says what went wrong and what may be done."""
    assert from_result(FOUND, provider, "1") == found
    assert from_result(FAILED, provider, "1") == failed
    accepts_result(provider, found)
    accepts_result(provider, failed)


PICTURE = ResultFile(kind="image", media_type="image/png", data=PIXEL)
BLOCKS = [
    {"type": "text", "text": "two eggs\n", "annotations": {"priority": 1}},
    {"type": "image", "file": PICTURE.label(1)},
    {"type": "text", "text": "no owl"},
]
STRUCTURE = {"eggs": 2, "picture": PIXEL}
ANSWER = {"content": BLOCKS, "structured": STRUCTURE, "_meta": {"owls.test/page": 1}}
MADE = ToolResult.ok("texts.several", ANSWER).model_copy(update={"files": (PICTURE,)})


@pytest.mark.parametrize("provider", DIALECTS)
def test_a_result_of_an_mcp_server_is_its_text_and_its_pictures_once(provider: Format) -> None:
    """Of its structure, which may have all of that again, a model reads nothing."""
    message = from_result(MADE, provider, "1")
    seen = json.dumps({**message, "structuredContent": None})

    accepts_result(provider, message)
    assert [seen.count(text) for text in ("two eggs", "no owl", "structured\\", '"eggs\\')] == [1, 1, 0, 0]
    assert seen.count(PIXEL) == (0 if provider == "openai_chat" else 1)
    if provider == "mcp":
        picture = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
        assert message["content"] == [BLOCKS[0], picture, BLOCKS[2]]
        assert (message["structuredContent"], message["_meta"]) == (STRUCTURE, {"owls.test/page": 1})


@pytest.mark.parametrize("provider", DIALECTS)
def test_a_result_of_an_mcp_server_without_blocks_is_its_structure(provider: Format) -> None:
    """As it would be of any other tool."""
    made = ToolResult.ok("texts.several", {"content": [], "structured": {"eggs": 2}, "_meta": {"owls.test/page": 1}})
    plain = ToolResult.ok("texts.several", {"eggs": 2})

    message = from_result(made, provider, "1")
    if provider == "mcp":
        assert (message["content"], message["structuredContent"]) == ([], {"eggs": 2})
    else:
        assert message == from_result(plain, provider, "1")


@pytest.mark.parametrize("provider", DIALECTS)
@pytest.mark.parametrize(
    "value", [None, "", "words", 0, 1.5, True, [], [1, None], {}, {"a": {"b": []}}, "\ud800", ["\ud800"]]
)
def test_results_of_any_kind_are_taken(provider: Format, value: Any) -> None:
    """Text as it is, the rest as JSON; and it can be sent."""
    message = from_result(ToolResult.ok("m.t", value), provider, "1")
    accepts_result(provider, message)
    if provider == "openai_chat":
        message["content"].encode()
        expected = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        assert message["content"] == expected.encode("utf-8", "replace").decode()


@pytest.mark.parametrize("provider", DIALECTS)
def test_a_long_result_is_whole(provider: Format) -> None:
    """How much a model should read is not for this to say."""
    assert "x" * 1_000_000 in json.dumps(from_result(ToolResult.ok("m.t", "x" * 1_000_000), provider, "1"))


@pytest.mark.parametrize("provider", DIALECTS)
def test_a_failure_without_words_still_says_something(provider: Format) -> None:
    """And has a hint made of what is known."""
    message = json.dumps(from_result(ToolResult(tool_name="m.t", success=False, effect_state="done"), provider, None))
    assert "The call failed." in message
    assert "do not repeat it" in message
    accepts_result(provider, from_result(ToolResult(tool_name="m.t", success=False), provider, None))


@pytest.mark.parametrize(
    ("name", "dotted", "answered"),
    [
        ("research.search", False, "research__search"),
        ("research.search", True, "research.search"),
        ("research__fly", False, "research__fly"),  # not offered, so as the model spoke it
        ("", False, "_-xe3b0c44298"),
    ],
)
def test_gemini_gets_the_name_that_it_called(name: str, dotted: bool, answered: str) -> None:
    """It finds its call by that."""
    from google.genai import types as gemini  # as `provider_judges`

    message = from_result(ToolResult.ok(name, 1), "gemini", "1", dotted=dotted)
    part = gemini.Part.model_validate(message)
    assert part.function_response is not None
    assert part.function_response.name == answered


@pytest.mark.parametrize("provider", DIALECTS)
@pytest.mark.parametrize("value", [{"page": 1}, "one", None])
def test_what_a_model_needs_beside_a_result_is_shown(provider: Format, value: Any) -> None:
    """After the result's text, or as a note; the structure stays as it is."""
    result = ToolResult.ok("research.search", value).model_copy(update={"hint": "Link: </two>"})
    message = from_result(result, provider, "1")

    accepts_result(provider, message)
    assert json.dumps(message).count("Link: </two>") == 1
    if provider == "mcp" and isinstance(value, dict):
        assert message["structuredContent"] == value


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


def anthropic_block(kind: str, media_type: str, data: str, form: str = "base64", **more: str) -> dict[str, Any]:
    return {"type": kind, "source": {"type": form, "media_type": media_type, "data": data}, **more}


def mcp_file(uri: str, media_type: str, data: bytes) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": media_type, "blob": base64(data)}}


@pytest.mark.parametrize(
    ("provider", "file", "block"),
    [
        ("openai_responses", CHART, {"type": "input_image", "image_url": PNG_URL, "detail": "auto"}),
        ("openai_responses", REPORT, {"type": "input_file", "filename": "report.pdf", "file_data": PDF_URL}),
        ("anthropic", CHART, anthropic_block("image", "image/png", base64(PNG))),
        ("anthropic", REPORT, anthropic_block("document", "application/pdf", base64(PDF), title="report.pdf")),
        ("anthropic", NOTE, anthropic_block("document", "text/plain", "Eulen", "text", title="note.txt")),
        ("gemini", CHART, {"inlineData": {"mimeType": "image/png", "data": base64(PNG)}}),
        ("gemini", REPORT, {"inlineData": {"mimeType": "application/pdf", "data": base64(PDF)}}),
        ("mcp", CHART, {"type": "image", "data": base64(PNG), "mimeType": "image/png"}),
        ("mcp", HOOT, {"type": "audio", "data": base64(WAV), "mimeType": "audio/wav"}),
        ("mcp", REPORT, mcp_file("result://files/1/report.pdf", "application/pdf", PDF)),
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
    from google.genai import types as gemini  # as `provider_judges`

    part = gemini.Part.model_validate(from_result(result(CHART), "gemini", "1"))
    assert part.function_response is not None
    assert part.function_response.parts is not None
    blob = there(part.function_response.parts[0].inline_data)
    assert (blob.data, blob.mime_type) == (PNG, "image/png")


def test_a_file_knows_its_size_and_its_bytes() -> None:
    """Whatever the padding is."""
    for data in (b"a", b"ab", b"abc", b"abcd"):
        file = ResultFile.of("file", data, "application/octet-stream", None)
        assert (file.size, file.read()) == (len(data), data)
