"""What of a result is kept as an artifact, and what a model sees in its place."""

import hashlib
import json
from typing import Any

import pytest

from toolfleet_registry.contracts import ResultFile, ToolResult
from toolfleet_registry.contracts.calls import ResultArtifact
from toolfleet_registry.formats import Format, from_result
from toolfleet_registry.previews import is_large, large_parts, previewed

BOUND = 32 * 2**10
PAGE = "<p>" + "owl " * 72_500 + "</p>"
ROWS = [{"name": f"owl {number}", "seen": number} for number in range(5_000)]
PICTURE = ResultFile.of("image", b"\x89PNG" * 10, "image/png", "owl.png")
FORMATS: tuple[Format, ...] = ("openai_chat", "openai_responses", "anthropic", "gemini", "mcp")


def kept(result: ToolResult) -> ToolResult:
    """The result as a worker hands it on."""
    artifacts = tuple(
        ResultArtifact(
            id=f"call.1.{number}",
            place=part.place,
            media_type=part.media_type,
            size=len(part.data),
            sha256=hashlib.sha256(part.data).hexdigest(),
        )
        for number, part in enumerate(large_parts(result, from_bytes=BOUND))
    )
    return result.model_copy(update={"artifacts": artifacts})


def blocks(*texts: str, **more: Any) -> ToolResult:
    return ToolResult.ok("m.t", {"content": [{"type": "text", "text": text} for text in texts], **more})


@pytest.mark.parametrize(
    ("result", "places"),
    [
        (ToolResult.ok("m.t", "small"), []),
        (ToolResult.ok("m.t", PAGE), ["/result"]),
        (ToolResult.ok("m.t", {"rows": ROWS}), ["/result"]),
        (ToolResult.ok("m.t", "small", files=(PICTURE,)), ["/files/0"]),
        (blocks("small", PAGE), ["/result/content/1/text"]),
        (blocks("a" * 20_000, "b" * 20_001, "c" * 100), ["/result/content/1/text"]),
        (blocks("small", structured={"rows": ROWS}), ["/result/structured"]),
        (blocks(*["x" * 1_000] * 100), ["/result"]),
    ],
    ids=["small", "text", "JSON", "a small file", "one block", "the largest block", "structure", "many small blocks"],
)
def test_large_parts_are_kept_and_no_others(result: ToolResult, places: list[str]) -> None:
    """Files always; of texts the largest, until the others are within the bound together."""
    assert [part.place for part in large_parts(result, from_bytes=BOUND)] == places


def test_what_is_kept_is_what_the_tool_gave() -> None:
    """Text byte for byte, and JSON as JSON."""
    (text,), (rows,) = (large_parts(ToolResult.ok("m.t", value), from_bytes=BOUND) for value in (PAGE, ROWS))

    assert text.data == PAGE.encode()
    assert json.loads(rows.data) == ROWS


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "value", [PAGE, {"rows": ROWS}, ROWS, {"a" * 300: "b" * 90_000}], ids=["text", "object", "list", "long keys"]
)
def test_a_model_sees_a_preview(format: Format, value: Any) -> None:
    """Size, digest and handle, and less than 3 kB of 290; the result itself stays whole."""
    result = kept(ToolResult.ok("m.t", value))
    shown = json.dumps(from_result(result, format, "id"), ensure_ascii=False)

    (artifact,) = result.artifacts
    limit = 7_000 if format == "mcp" and not isinstance(value, str) else 3_000  # text and structure, each of them
    assert len(shown.encode()) < limit
    assert all(str(fact) in shown for fact in (artifact.id, artifact.size, artifact.sha256))
    assert result.result is value


@pytest.mark.parametrize("format", ["openai_responses", "anthropic"])
def test_a_providers_program_gets_the_whole(format: Format) -> None:
    """It keeps a large result out of the model's context itself, and reads it by the output schema that it was offered."""
    result = kept(ToolResult.ok("m.t", {"rows": ROWS}))
    answer = from_result(result, format, "id", caller={"type": "program", "caller_id": "program-1"})

    assert json.loads(answer.get("output") or answer["content"]) == {"rows": ROWS}


def test_frameworks_show_a_preview() -> None:
    """As text, or as the value that the framework writes; programs have the result itself."""
    from toolfleet_tasks.adapters.calling import shown_parts
    from toolfleet_tasks.adapters.pydantic_ai import tool_return

    result = kept(ToolResult.ok("m.t", {"rows": ROWS}))

    assert "call.1.0" in shown_parts(result)[0]
    assert len(shown_parts(result)[0]) < 3_000
    value: Any = tool_return(result).return_value
    assert value["artifact"] == "call.1.0"


def test_frameworks_show_a_kept_file_with_its_handle() -> None:
    """The file goes with the text, as without a store."""
    from toolfleet_tasks.adapters.calling import shown_parts

    text, files = shown_parts(kept(ToolResult.ok("m.t", "an owl", files=(PICTURE,))))

    assert "owl.png" in text
    assert "is artifact call.1.0" in text
    assert files == [PICTURE]


@pytest.mark.parametrize(
    ("result", "changes"),
    [
        (ToolResult.ok("m.t", "small", files=(PICTURE,)), {"files": ()}),
        (ToolResult.ok("m.t", {"rows": ROWS}), {"result": {"rows": 5_000}}),
        (ToolResult.ok("m.t", {"rows": ROWS}), {"result": None}),
        (blocks("small", PAGE), {"result": "an owl"}),
        (blocks("small", PAGE), {"result": {"content": []}}),
        (blocks("small", structured={"rows": ROWS}), {"result": 7}),
    ],
    ids=["no files", "another value", "none", "a text for blocks", "no blocks", "a number for blocks"],
)
def test_what_a_program_has_replaced_has_no_preview(result: ToolResult, changes: dict[str, Any]) -> None:
    """It is shown as the program has left it."""
    changed = kept(result).model_copy(update=changes)

    assert previewed(changed) == changed.model_copy(update={"artifacts": ()})


def test_a_result_without_artifacts_has_no_field_of_them() -> None:
    """Strict clients of earlier versions read it."""
    result = ToolResult.ok("m.t", PAGE)

    assert "artifacts" not in result.model_dump(mode="json", exclude={"files"})
    assert kept(result).model_dump(mode="json")["artifacts"][0]["id"] == "call.1.0"


def test_a_preview_shows_both_ends_of_a_text_and_the_first_rows() -> None:
    """The beginning and the end of a page; of rows the first ones, their keys, and how many there are."""
    page, rows = (previewed(kept(ToolResult.ok("m.t", value))).result for value in (PAGE, {"rows": ROWS}))

    assert page.startswith("<p>owl")
    assert page.endswith("owl </p>")
    assert rows["preview"] == {"rows": [*ROWS[:3], "… 4997 more items"]}


def test_the_rest_of_a_servers_result_stays() -> None:
    """Its structure, `_meta`, images and links stay in their places; a link to what was replaced follows."""
    link = {"type": "resource_link", "uri": "owl://1", "name": "owl"}
    image = {"type": "image", "file": PICTURE.label(1)}
    value = {"content": [{"type": "text", "text": PAGE}, link, image], "structured": {"n": 1}, "_meta": {"owl": 2}}
    result = kept(ToolResult.ok("m.t", value, files=(PICTURE,)))
    answer = from_result(result, "mcp", None)

    text, *others = answer["content"]
    assert len(text["text"]) < 3_000
    assert others[:2] == [link, {"type": "image", "data": PICTURE.data, "mimeType": "image/png"}]
    assert {each["uri"] for each in others[2:]} == {"artifact://call.1.0", "artifact://call.1.1"}
    assert (answer["structuredContent"], answer["_meta"]) == ({"n": 1}, {"owl": 2})


def test_a_result_without_artifacts_is_shown_whole() -> None:
    """A fleet without a store changes nothing of what models see."""
    result = ToolResult.ok("m.t", PAGE)

    assert previewed(result) is result
    assert from_result(result, "openai_chat", "id")["content"] == PAGE


def test_half_a_character_costs_no_result() -> None:
    """In a text or in JSON: it is kept in a form that can be stored."""
    for value in ("\ud800" + PAGE, {"text": "\ud800", "rows": ROWS}):
        (part,) = large_parts(ToolResult.ok("m.t", value), from_bytes=BOUND)
        assert part.data.decode()
        assert previewed(kept(ToolResult.ok("m.t", value))).artifacts == ()


CJK = "\u732b" * 700


@pytest.mark.parametrize(
    "value",
    [
        "\U0001f600" * 9_000,
        {"content": [{"type": "text", "text": "y" * 3_000} for _ in range(3_000)]},
        {"content": [{"type": "text", "text": CJK} for _ in range(40)]},
        {"content": [{"type": "resource", "resource": {"uri": "owl://1", "text": "y" * 1_000_000}}]},
        {"content": [{"type": "text", "text": "y" * 100_000, "mimeType": "m" * 1_000_000}]},
        {"content": [{"type": "resource_link", "uri": "owl://1", "name": "y" * 300} for _ in range(500)]},
        {"content": [{"type": "text", "text": "y"}], "_meta": {"y": "y" * 100_000}},
        {"content": [{"type": "text", "text": CJK * 20}], "structured": {"rows": [CJK] * 20}},
    ],
    ids=["emoji", "many texts", "CJK", "a resource", "a long type", "links", "meta", "text and structure"],
)
def test_a_preview_is_bounded_in_bytes(value: Any) -> None:
    """One artifact, whatever a result is made of, and some kB in all that a model sees."""
    result = kept(ToolResult.ok("m.t", value))
    shown = previewed(result)

    (artifact,) = result.artifacts
    assert is_large(result, from_bytes=BOUND)
    assert len(artifact.media_type) < 100
    assert len(json.dumps(shown.result, ensure_ascii=False).encode()) < 8_000
    assert artifact.id in json.dumps(shown.result)


def test_a_result_has_no_more_than_twenty_files() -> None:
    """As artifacts: each is an object and a record, which a call's end waits for; their types are checked."""
    files = [
        ResultFile.of("file", b"owl", "text/HTML; charset=utf-8" if at else "x" * 10_000, None) for at in range(30)
    ]
    parts = large_parts(ToolResult.ok("m.t", "small", files=tuple(files)), from_bytes=BOUND)

    assert len(parts) == 20
    assert [part.media_type for part in parts[:2]] == ["application/octet-stream", "text/html"]


@pytest.mark.parametrize("size", [BOUND, BOUND + 1])
def test_a_result_is_large_from_the_bound_on(size: int) -> None:
    """To the byte, in bytes, of a text and of JSON."""
    for value in ("x" * size, ["x" * (size - 4)], "\u732b" * (size // 3) + "x" * (size % 3)):
        assert is_large(ToolResult.ok("m.t", value), from_bytes=BOUND) is (size > BOUND)
