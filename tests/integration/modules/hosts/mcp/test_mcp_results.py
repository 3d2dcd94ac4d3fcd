"""Results of MCP servers on their way to clients of the fleet: as the servers made them, also those that are not quite legal."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.hosts.mcp_server import hosted_server
from support.hosts.odd_server import Answer, odd_http
from toolfleet_gateway.mcp.results import CALL_ID, ERROR, call_result
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.formats.results import from_result

pytestmark = pytest.mark.asyncio

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
DATA = base64.b64encode(PNG).decode()
WAV = base64.b64encode(b"RIFF....WAVEfmt ").decode()
NOTES = {"audience": ["user"], "priority": 0.5}
META = {"owls.test/page": 2}


def text(said: str, **more: Any) -> dict[str, Any]:
    """A block of text."""
    return {"type": "text", "text": said, **more}


IMAGE = {"type": "image", "data": DATA, "mimeType": "image/png"}
FIXED: Mapping[str, Mapping[str, Any]] = {
    "text": {"content": [text("hoot")]},
    "texts": {"content": [text("one"), text("two")]},
    "blank": {"content": [text("")]},
    "wrapped": {"content": [text("14")], "structuredContent": {"result": "14"}},
    "beside": {"content": [text("the file")], "structuredContent": {"name": "a.txt"}},
    "list": {"content": [text('[{"a":1}]')], "structuredContent": {"entities": [{"a": 1}]}},
    "image": {"content": [IMAGE]},
    "like-blocks": {
        "content": [text('{"content":[{"type":"text","text":"inner"}]}')],
        "structuredContent": {"content": [text("inner")]},
    },
    "image-beside": {"content": [IMAGE], "structuredContent": {"content": [IMAGE]}},
    "order": {"content": [text("one"), IMAGE, text("two"), {"type": "audio", "data": WAV, "mimeType": "audio/wav"}]},
    "notes": {"content": [text("hoot", annotations=NOTES, _meta=META), {**IMAGE, "annotations": NOTES}]},
    "one-note": {"content": [text("hoot", annotations=NOTES)]},
    "meta": {"content": [text("hoot")], "_meta": META},
    "meta-only": {"content": [], "structuredContent": {"a": 1}, "_meta": META},
    "link": {
        "content": [
            {"type": "resource_link", "uri": "nest://owl", "name": "owl", "title": "An owl", "size": 5, "_meta": META}
        ]
    },
    "resources": {
        "content": [
            {"type": "resource", "resource": {"uri": "nest://egg", "text": "egg", "_meta": META}, "annotations": NOTES},
            {
                "type": "resource",
                "resource": {"uri": "nest://png", "mimeType": "image/png", "blob": DATA},
                "_meta": META,
            },
            {"type": "resource", "resource": {"uri": "nest://none", "text": ""}},
        ]
    },
}
"""What arrives as it is."""

SAME = {"grams": 12, "is_whole": True}
READ: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "structure": (
        {"content": [text('{ "grams": 12,  "is_whole": true }')], "structuredContent": SAME},
        {"content": [text('{"grams":12,"is_whole":true}')], "structuredContent": SAME},
    ),
    "only-structure": (
        {"structuredContent": SAME},
        {"content": [text('{"grams":12,"is_whole":true}')], "structuredContent": SAME},
    ),
    "null": (
        {"content": [text("42")], "structuredContent": None, "isError": None, "_meta": None},
        {"content": [text("42")]},
    ),
    "odd-error": ({"content": [text("42")], "isError": []}, {"content": [text("42")]}),
    "null-notes": ({"content": [text("42", annotations=None)]}, {"content": [text("42")]}),
    "unknown-block": (
        {"content": [text("words"), {"type": "blob", "data": "AAAA"}, "bare", 5]},
        {"content": [text("words"), text('{"type":"blob","data":"AAAA"}'), text("bare"), text("5")]},
    ),
    "no-list": ({"content": text("words")}, {"content": [text("words")]}),
    "bare": ({"content": "words"}, {"content": [text("words")]}),
    "no-type": ({"content": [{"type": "image", "data": DATA}]}, {"content": [IMAGE]}),
    "wrong-type": ({"content": [{**IMAGE, "mimeType": "image/jpeg"}]}, {"content": [IMAGE]}),
    "lines": ({"content": [{**IMAGE, "data": base64.encodebytes(PNG).decode()}]}, {"content": [IMAGE]}),
    "unpadded": ({"content": [{**IMAGE, "data": DATA.rstrip("=")}]}, {"content": [IMAGE]}),
    "url-safe": ({"content": [{**IMAGE, "data": base64.urlsafe_b64encode(PNG).decode()}]}, {"content": [IMAGE]}),
    "data-url": ({"content": [{**IMAGE, "data": f"data:image/png;base64,{DATA}"}]}, {"content": [IMAGE]}),
    "unreadable": (
        {"content": [text("words"), {**IMAGE, "data": "!!"}]},
        {"content": [text("words"), text('(image without readable data: {"type":"image","mimeType":"image/png"})')]},
    ),
    "own-names": (
        {
            "content": [text("hoot")],
            "_meta": {"toolfleet/callId": "x", "io.modelcontextprotocol/serverInfo": {}, **META},
        },
        {"content": [text("hoot")], "_meta": META},
    ),
}
"""What is read, and what arrives."""

RESULTS = {name: (said, said) for name, said in FIXED.items()} | dict(READ)


def answers(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Answer]:
    return {
        name: Answer(200, json.dumps({"jsonrpc": "2.0", "id": 0, "result": said}).replace('"id": 0', '"id": %d'))
        for name, said in results.items()
    }


async def test_a_result_arrives_as_the_server_made_it(tmp_path: Path) -> None:
    """Through the host and a gateway: text, media, links, resources, notes and structure, each once and in order."""
    with odd_http(answers({name: said for name, (said, _) in RESULTS.items()})) as (_, server):
        async with hosted_server(server, tmp_path / "notes") as served:
            ends = {name: await served.call(name) for name in RESULTS}

    assert {name for name, ended in ends.items() if not ended.success} == set()
    for name, (_, wanted) in RESULTS.items():
        shown = call_result(ToolResult.ok(f"nest.{name}", ends[name].result, files=tuple(ends[name].files)), "c-1")
        expected = {key: value for key, value in wanted.items() if key != "_meta"}
        meta = {CALL_ID: "c-1", **wanted.get("_meta", {})}
        assert shown == {**expected, "isError": False, "resultType": "complete", "_meta": meta}, name
    assert ends["order"].result["content"][1]["file"].startswith("image 1 (image/png")


async def test_a_failure_keeps_its_words_and_what_stands_beside_them(tmp_path: Path) -> None:
    """Texts in order, and structure and metadata for programs. A failure without words says so."""
    said: dict[str, dict[str, Any]] = {
        "texts": {"content": [text("no"), IMAGE, text("eggs")], "structuredContent": {"left": 0}, "_meta": META},
        "structure": {"content": [], "structuredContent": {"why": "no eggs"}},
        "silent": {"content": []},
    }
    with odd_http(answers({name: {**each, "isError": True} for name, each in said.items()})) as (_, server):
        async with hosted_server(server, tmp_path / "notes") as served:
            ends = {name: await served.call(name) for name in said}

    assert [end.error for end in ends.values()] == [
        "no\neggs",
        '{"why":"no eggs"}',
        "nest.silent failed, and does not say why.",
    ]
    assert {end.effect_state for end in ends.values()} == {"unknown"}
    failed = ToolResult.failed("nest.texts", "module_error", "no\neggs", effect_state="unknown").model_copy(
        update={"result": ends["texts"].result}
    )
    shown = call_result(failed, "c-1")
    assert (shown["isError"], shown["structuredContent"]) == (True, {"left": 0})
    assert shown["_meta"].keys() == {*META, CALL_ID, ERROR}


async def test_an_answer_without_anything_of_a_result_is_none(tmp_path: Path) -> None:
    """It ends at once, in the server's words, and is no success."""
    nothing: dict[str, dict[str, Any]] = {
        "empty": {},
        "other": {"said": "words"},
        "null": {"content": None, "structuredContent": None},
    }
    with odd_http(answers(nothing)) as (_, server):
        async with hosted_server(server, tmp_path / "notes") as served:
            for name in nothing:
                ended = await served.call(name)
                assert (ended.success, ended.effect_state) == (False, "unknown"), name
                assert "none of the protocol" in str(ended.error)


async def test_a_model_is_shown_the_servers_text() -> None:
    """In every provider's form; files and links by what can be said of them."""
    result = {
        "content": [
            text("one"),
            {"type": "image", "file": "image 1 (image/png, 5 bytes)"},
            {"type": "resource_link", "uri": "nest://owl", "name": "owl"},
        ],
        "structured": {"n": 1},
    }
    shown = from_result(ToolResult.ok("nest.lay", result), "openai_chat", "c-1")

    assert shown["content"] == (
        'one\nimage 1 (image/png, 5 bytes)\n{"type": "resource_link", "uri": "nest://owl", "name": "owl"}'
    )
