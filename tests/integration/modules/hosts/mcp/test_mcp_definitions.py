"""Definitions of MCP servers on their way to clients of the fleet: as the servers made them, within what their trust allows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.hosts.mcp_server import hosted_server
from support.hosts.odd_server import odd_http
from toolfleet_registry.formats.offers import convert
from toolfleet_registry.specs import ToolSpec, definition_of, spec_of

pytestmark = pytest.mark.asyncio

ICON = {"src": "https://owls.test/owl.png", "mimeType": "image/png", "sizes": ["48x48"]}
DRAWN = {"src": "data:image/svg+xml;base64,PHN2Zy8+"}
CALM = {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False, "idempotentHint": True}
CAREFUL = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True, "idempotentHint": False}
TOOLS: Mapping[str, Mapping[str, Any]] = {
    "bare": {},
    "titled": {"title": "Lay an egg"},
    "described": {"title": "Lay an egg", "description": "Lays one.", "outputSchema": {"type": "object"}},
    "calm": {"annotations": {"title": "Look", **CALM}},
    "careful": {"annotations": CAREFUL},
    "one": {"annotations": {"openWorldHint": True}},
    "drawn": {"icons": [ICON, DRAWN]},
    "app": {"_meta": {"ui": {"resourceUri": "ui://owl/nest"}, "owls.test/n": [1, None]}},
}
FOREIGN_ICONS = {
    "http": "http://owls.test/owl.png",
    "script": "javascript:alert(1)",
    "page": "data:text/html;base64,PGI+",
    "file": "file:///owl.png",
    "large": "data:image/png;base64," + "A" * 70_000,
}


async def kept(folder: Path, tools: Mapping[str, Mapping[str, Any]], **options: Any) -> dict[str, ToolSpec]:
    """What the registry keeps, by the server's names."""
    with odd_http(dict.fromkeys(tools), tools) as (_, server):
        async with hosted_server(server, folder / "notes", **options) as served:
            return {each.name.removeprefix("nest."): spec_of(each) for each in served.host.definitions}


async def offered(folder: Path, tools: Mapping[str, Mapping[str, Any]], **options: Any) -> dict[str, dict[str, Any]]:
    """What clients are shown of it."""
    found = await kept(folder, tools, **options)
    shown = convert([definition_of(each) for each in found.values()], "mcp")
    return {name: {key: offer[key] for key in offer if key != "name"} for name, offer in zip(found, shown, strict=True)}


def as_listed(tools: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """As the server lists them."""
    return {name: {"inputSchema": {"type": "object"}, **said} for name, said in tools.items()}


async def test_a_trusted_server_is_listed_as_it_lists_itself(tmp_path: Path) -> None:
    """All but the names: titles, descriptions, schemas, annotations, icons and metadata; nothing is added."""
    assert await offered(tmp_path, TOOLS, trusted=True) == as_listed(TOOLS)


async def test_without_trust_only_what_makes_a_client_careful_is_passed_on(tmp_path: Path) -> None:
    """Other hints are left out, and none is turned around or made up."""
    assert await offered(tmp_path, TOOLS) == as_listed({**TOOLS, "calm": {"annotations": {"title": "Look"}}})


async def test_icons_of_other_addresses_are_left_out(tmp_path: Path) -> None:
    """The tool is served without them."""
    found = await offered(tmp_path, {name: {"icons": [{"src": src}, ICON]} for name, src in FOREIGN_ICONS.items()})

    assert [name for name, each in found.items() if each["icons"] != [ICON]] == []
    assert found.keys() == FOREIGN_ICONS.keys()


async def test_a_digest_knows_all_that_clients_are_shown(tmp_path: Path) -> None:
    """A pinned tool with another title, icon, annotation or metadata is another one."""
    changes: list[dict[str, Any]] = [
        {},
        {"title": "Look"},
        {"icons": [ICON]},
        {"_meta": {"a": 1}},
        {"annotations": {"openWorldHint": True}},
        {"annotations": {"title": "Look"}},
    ]
    versions = {str((await kept(tmp_path, {"lay": change}))["lay"].version) for change in changes}
    assert len(versions) == len(changes)
