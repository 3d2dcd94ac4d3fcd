"""Lists of tools as servers write them: their ends, members that are null, and addresses that have moved."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.hosts.mcp_server import hosted_server
from support.hosts.odd_server import Answer, OddServer, odd_http
from toolfleet_modules.hosts.mcp.http_transport import HttpServer

pytestmark = pytest.mark.asyncio

NOTHING = Answer(200, '{"jsonrpc": "2.0", "id": %d, "result": {"content": []}}')
NAMES = ("one", "two", "three", "four")

Pages = Callable[[OddServer, list[str | None]], dict[str, Any]]
"""Gives the page of the last cursor, of those that were asked for in this list."""


def paged(odd: OddServer, asked: list[str | None], *cursors: object) -> dict[str, Any]:
    """Two tools a page, and these cursors."""
    page = len(asked) - 1
    return {"tools": odd.listed(*NAMES[2 * page : 2 * page + 2]), "nextCursor": cursors[page]}


LISTS: dict[str, tuple[Pages, int, int]] = {
    "one page": (lambda odd, _: {"tools": odd.listed(*NAMES)}, 4, 1),
    "null": (lambda odd, _: {"tools": odd.listed(*NAMES), "nextCursor": None}, 4, 1),
    "the same page with an empty cursor": (lambda odd, _: {"tools": odd.listed(*NAMES), "nextCursor": ""}, 4, 2),
    "the same page with other cursors": (
        lambda odd, asked: {"tools": odd.listed(*NAMES), "nextCursor": f"{len(asked)}"},
        4,
        2,
    ),
    "empty pages": (
        lambda odd, asked: {"tools": odd.listed(*NAMES) if asked == [None] else [], "nextCursor": ""},
        4,
        2,
    ),
    "an empty cursor between two pages": (lambda odd, asked: paged(odd, asked, "", None), 4, 2),
    "a page of tools that are none": (
        lambda odd, asked: {
            "tools": [{"name": "none"}] if len(asked) == 2 else odd.listed(NAMES[len(asked)]),
            "nextCursor": None if len(asked) == 3 else "next",
        },
        2,
        3,
    ),
}


@pytest.mark.parametrize("kind", LISTS)
async def test_a_list_ends_with_its_last_page(tmp_path: Path, kind: str) -> None:
    """It has no cursor, or brings no new name; an empty cursor is one. Nothing is listed twice, and nothing is lost."""
    page_of, tools, requests = LISTS[kind]
    asked: list[str | None] = []

    with odd_http(dict.fromkeys(NAMES, NOTHING)) as (odd, server):

        def page(cursor: str | None) -> dict[str, Any]:
            asked[:] = [None] if cursor is None else [*asked, cursor]
            return page_of(odd, asked)

        odd.pages = page
        async with hosted_server(server, tmp_path / "notes", refresh_seconds=600) as served:
            assert (len(served.host.tools), len(asked)) == (tools, requests)
            assert [name for name, why in served.faults().items() if "twice" in why] == []


NULLS: Mapping[str, Any] = {
    "title": None,
    "description": None,
    "outputSchema": None,
    "annotations": {"title": None, "readOnlyHint": None},
    "icons": None,
    "_meta": None,
    "execution": None,
}
SCHEMA = {"type": "object", "title": None, "required": None, "properties": {"n": {"type": "integer", "minimum": None}}}


async def test_a_member_that_is_null_is_absent(tmp_path: Path) -> None:
    """In tools and in their schemas; what decides nothing and is written wrongly costs no tool."""
    tools = {
        "one": NULLS,
        "two": {"inputSchema": SCHEMA},
        "three": {"inputSchema": {"type": "object", "properties": {"n": {"type": "integer", "examples": "5"}}}},
        "four": {"inputSchema": {"type": "object", "properties": {"description": {"default": None, "const": 5}}}},
    }
    with odd_http(dict.fromkeys(NAMES, NOTHING), tools) as (_, server):
        async with hosted_server(server, tmp_path / "notes") as served:
            assert served.faults() == {}
            schemas = {tool.name.removeprefix("nest."): tool.input_schema for tool in served.host.definitions}

    assert schemas["two"] == {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert schemas["three"] == {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert schemas["four"] == tools["four"]["inputSchema"]


def moved(location: str, status: int = 307) -> Answer:
    """An answer that names another address."""
    return Answer(status, "", {"Location": location})


@pytest.mark.parametrize("status", [307, 308])
async def test_a_server_may_have_moved_within_its_origin(tmp_path: Path, status: int) -> None:
    """Three times at most; each request is the same one, with its header fields."""
    steps = {"/mcp": moved("/mcp/", status), "/mcp/": moved("two?a=1", status), "/mcp/two?a=1": moved("/end", status)}
    with odd_http({"lay": NOTHING}) as (odd, server):
        odd.redirects = steps
        moving = replace(server, headers={"X-Owl": "Ada"})
        async with hosted_server(moving, tmp_path / "notes", refresh_seconds=600) as served:
            assert (await served.call("lay")).success
    assert odd.executed == {"lay": 1}
    assert {path for _, path, _ in odd.seen} == {*steps, "/end"}
    assert all(fields.get("X-Owl") == "Ada" for _, _, fields in odd.seen)


@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        ({"/mcp": moved("http://owl:egg@127.0.0.1:9/mcp?key=egg")}, "it is at http://127.0.0.1:9/mcp, which is not"),
        ({"/mcp": moved("//owls.test/mcp")}, "it is at http://owls.test/mcp, which is not"),
        ({"/mcp": moved("/mcp")}, "which is not followed"),
        ({"/mcp": moved("/mcp/", 301)}, "HTTP 301: it is at "),
        ({"/mcp": moved("/mcp/", 302)}, "HTTP 302: it is at "),
        ({"/mcp": moved("/mcp/", 303)}, "HTTP 303: it is at "),
        ({"/mcp": Answer(307, "")}, "HTTP 307"),
    ],
)
async def test_no_other_redirect_is_followed(tmp_path: Path, steps: Mapping[str, Answer], shown: str) -> None:
    """The reason says so, and where the server points, without credentials."""
    with odd_http({"lay": NOTHING}) as (odd, server):
        odd.redirects = steps
        async with hosted_server(HttpServer(server.url), tmp_path / "notes") as served:
            assert shown in served.faults()["nest"]
            assert "egg" not in served.faults()["nest"]
        assert {path for _, path, _ in odd.seen} == {"/mcp"}
