"""Definitions of MCP servers on their way to clients of the fleet: as the servers made them, within what their trust allows."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.hosts.mcp_server import hosted_server
from support.hosts.odd_server import odd_program, written
from toolfleet_registry.formats.offers import convert
from toolfleet_registry.manifests.definitions import definition_of, spec_of

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


async def offered(folder: Path, tools: Mapping[str, Mapping[str, Any]], **options: Any) -> dict[str, dict[str, Any]]:
    """What clients are shown after the registry has kept it, by the server's names."""
    program = odd_program(folder, dict.fromkeys(tools, written(0, {})), tools)
    async with hosted_server(program, folder / "notes", **options) as served:
        kept = [definition_of(spec_of(each)) for each in served.host.definitions]
    names = [each.name.removeprefix("nest.") for each in kept]
    return {
        name: {key: offer[key] for key in offer if key != "name"}
        for name, offer in zip(names, convert(kept, "mcp"), strict=True)
    }


def as_listed(tools: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """As the server lists them."""
    return {name: {"inputSchema": {"type": "object"}, **said} for name, said in tools.items()}


async def test_a_trusted_server_is_listed_as_it_lists_itself(tmp_path: Path) -> None:
    """All but the names: titles, descriptions, schemas, annotations, icons and metadata; nothing is added."""
    assert await offered(tmp_path, TOOLS, trusted=True) == as_listed(TOOLS)


async def test_without_trust_only_what_makes_a_client_careful_is_passed_on(tmp_path: Path) -> None:
    """Other hints are left out, and none is turned around or made up."""
    assert await offered(tmp_path, TOOLS) == as_listed({**TOOLS, "calm": {"annotations": {"title": "Look"}}})


@pytest.mark.parametrize(
    "src",
    [
        "http://owls.test/owl.png",
        "javascript:alert(1)",
        "data:text/html;base64,PGI+",
        "file:///owl.png",
        "data:image/png;base64," + "A" * 70_000,
    ],
)
async def test_icons_of_other_addresses_are_left_out(tmp_path: Path, src: str) -> None:
    """The tool is served without them."""
    found = await offered(tmp_path, {"drawn": {"icons": [{"src": src}, ICON]}})

    assert found["drawn"]["icons"] == [ICON]


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
    versions = set[str]()
    for change in changes:
        program = odd_program(tmp_path, {"lay": written(0, {})}, {"lay": change})
        async with hosted_server(program, tmp_path / "notes") as served:
            versions |= {str(spec_of(each).version) for each in served.host.definitions}
    assert len(versions) == len(changes)
