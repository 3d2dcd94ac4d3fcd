"""A result as each provider wants it back."""

import json
from typing import Any

import pytest

from support.schemas.provider_judges import accepts_result
from toolfleet_registry.contracts import ResultFile, ToolResult
from toolfleet_registry.formats import Format, from_result
from toolfleet_registry.formats.providers.dialects import DIALECTS

FOUND = ToolResult.ok("research.search", {"passages": ["Eulen schlafen am Tag, Mäuse nicht"]})
FAILED = ToolResult.failed(
    "research.search", "timed_out", "Timed out after 30 s.", effect_state="none", hint="Try less."
)
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPj/HwADBwIAMCbHYQAAAABJRU5ErkJggg=="
TEXT = "Timed out after 30 s.\nTry less."


@pytest.mark.parametrize(
    ("provider", "found", "failed"),
    [
        (
            "openai_chat",
            {"role": "tool", "tool_call_id": "1", "content": '{"passages":["Eulen schlafen am Tag, Mäuse nicht"]}'},
            {"role": "tool", "tool_call_id": "1", "content": f"Error: {TEXT}"},
        ),
        (
            "openai_responses",
            {
                "type": "function_call_output",
                "call_id": "1",
                "output": '{"passages":["Eulen schlafen am Tag, Mäuse nicht"]}',
            },
            {"type": "function_call_output", "call_id": "1", "output": f"Error: {TEXT}"},
        ),
        (
            "anthropic",
            {
                "type": "tool_result",
                "tool_use_id": "1",
                "content": '{"passages":["Eulen schlafen am Tag, Mäuse nicht"]}',
            },
            {"type": "tool_result", "tool_use_id": "1", "content": TEXT, "is_error": True},
        ),
        (
            "gemini",
            {"functionResponse": {"id": "1", "name": "research__search", "response": {"output": FOUND.result}}},
            {"functionResponse": {"id": "1", "name": "research__search", "response": {"error": TEXT}}},
        ),
        (
            "mcp",
            {
                "content": [{"type": "text", "text": '{"passages":["Eulen schlafen am Tag, Mäuse nicht"]}'}],
                "isError": False,
                "structuredContent": FOUND.result,
            },
            {"content": [{"type": "text", "text": TEXT}], "isError": True},
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
    from google.genai import types as gemini  # noqa: PLC0415 - as `provider_judges`

    message = from_result(ToolResult.ok(name, 1), "gemini", "1", dotted=dotted)
    part = gemini.Part.model_validate(message)
    assert part.function_response is not None
    assert part.function_response.name == answered


def test_an_unknown_format_is_one_clear_error() -> None:
    """Like everywhere."""
    with pytest.raises(ValueError, match="There is no format 'x'"):
        from_result(FOUND, "x", "1")  # type: ignore[arg-type] # what somebody may write


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
