"""Large results at a gateway: whole and in ranges over REST, previews with links for MCP clients."""

import hashlib
from pathlib import Path
from typing import Any

import httpx
import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from bed.fleet import Bed, Gateway
from support.gateways.mcp_clients import ERAS, mcp_client
from support.gateways.old_sessions import OldSession
from support.module_server import ModuleServer, Request
from toolfleet import Caller
from toolfleet.adapters.claude import fleet_server
from toolfleet_registry.functions.passed_methods import passing_method
from toolfleet_registry.redis.keys import Keys

PLACE = f"toolfleet-artifacts/{hashlib.sha256(Keys().begin.encode()).hexdigest()[:16]}"
PAGE = "".join(f"<p>owl {number}</p>\n" for number in range(20_000))
ROWS = {"rows": [{"owl": number} for number in range(10_000)]}
SCHEMA = {
    "type": "object",
    "properties": {"rows": {"type": "array", "items": {"$ref": "#/$defs/row"}}},
    "required": ["rows"],
    "$defs": {"row": {"type": "object", "required": ["owl"]}},
}


async def page(_: Request) -> dict[str, Any]:
    return {"success": True, "result": PAGE}


async def rows(_: Request) -> dict[str, Any]:
    return {"success": True, "result": ROWS}


@pytest.fixture
async def gateway(bed: Bed, tmp_path: Path) -> Gateway:
    web = ModuleServer("web")
    web.add("page", page, effect="read")
    web.add("save", rows, parameters=[{"name": "text", "type": "string", "description": ""}], approval=True)
    web.add("rows", rows, effect="read", output_schema=SCHEMA)
    bed.given["artifact_store"] = str(tmp_path / "artifacts")
    await bed.serve(web)
    await bed.worker()
    return await bed.gateway()


async def made(client: httpx.AsyncClient, **more: Any) -> str:
    """Have a page made, and return its handle."""
    result = (await client.post("/calls", json={"tool_name": "web.page", **more})).json()
    assert result["result"] == PAGE
    return str(result["artifacts"][0]["id"])


async def test_an_artifact_is_read_in_ranges(gateway: Gateway) -> None:
    """Whole, from a byte, up to one, and the last ones, as HTTP has it."""
    asked = {None: (200, PAGE), "bytes=0-9": (206, PAGE[:10]), "bytes=-7": (206, PAGE[-7:]), "pages=1": (200, PAGE)}
    async with gateway.client() as client:
        path = f"/artifacts/{await made(client)}"
        answers = {span: await client.get(path, headers={"Range": span} if span else {}) for span in asked}
        beyond = await client.get(path, headers={"Range": f"bytes={len(PAGE)}-"})

    assert {span: (answer.status_code, answer.text) for span, answer in answers.items()} == asked
    assert answers["bytes=0-9"].headers["content-range"] == f"bytes 0-9/{len(PAGE)}"
    assert answers[None].headers["content-disposition"] == "attachment"
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(PAGE)}")


async def test_an_artifact_is_deleted_by_its_user_alone(gateway: Gateway) -> None:
    """In another user's name it looks like one that does not exist."""
    async with gateway.client() as client:
        path = f"/artifacts/{await made(client, user_id='ada')}"
        others = [
            (await client.get(path, params={"user_id": "bob"})).json(),
            (await client.get("/artifacts/none.1.0", params={"user_id": "bob"})).json(),
            (await client.delete(path, params={"user_id": "bob"})).json(),
        ]
        own = [
            (await client.request(method, path, params={"user_id": "ada"})).status_code
            for method in ("GET", "DELETE", "GET", "DELETE")
        ]

    assert len({(each["status"], each["detail"]) for each in others}) == 1
    assert own == [200, 204, 404, 404]


@pytest.mark.parametrize("path", ["/mcp", "/mcp/web"])
async def test_an_mcp_client_sees_a_preview_and_reads_the_whole(gateway: Gateway, path: str) -> None:
    """By the link in the result, at every endpoint, in both eras."""
    name = "web.page" if path == "/mcp" else "page"
    for era in ERAS:
        async with mcp_client(gateway, era, path=path) as client:
            text, link = (await client.call_tool(name, {})).content
            assert isinstance(text, types.TextContent)
            assert isinstance(link, types.ResourceLink)
            (content,) = (await client.read_resource(str(link.uri))).contents
            assert isinstance(content, types.TextResourceContents)
            with pytest.raises(MCPError, match="not yours"):
                await client.read_resource(f"{link.uri}0")

        assert len(text.text) < 3_000
        assert (content.text, link.size) == (PAGE, len(PAGE))


@pytest.mark.parametrize("door", ["gateway", "Claude"])
async def test_a_preview_fits_the_output_schema(bed: Bed, gateway: Gateway, door: str) -> None:
    """As it is listed: a client that checks structured content takes both. So it is over REST, for other servers."""
    ada = Caller(user_id="ada", permission="user", allowed_modules="*")
    server = fleet_server(await bed.agent(), ada)["instance"]
    name = "web.rows" if door == "gateway" else "web__rows"
    async with mcp_client(gateway) if door == "gateway" else Client(server) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        result = await client.call_tool(name, {})
    async with gateway.client() as http:
        tools = (await http.get("/tools", params={"format": "mcp", "module": "web"})).json()["tools"]

    schema = listed[name].output_schema
    assert schema in [tool.get("outputSchema") for tool in tools]
    assert schema is not None
    assert schema["$defs"] == SCHEMA["$defs"]
    assert isinstance(result.structured_content, dict)
    assert result.structured_content["preview"] == {"rows": [{"owl": 0}, {"owl": 1}, {"owl": 2}, "… 9997 more items"]}


@pytest.mark.parametrize(("version", "kinds"), [("2025-03-26", ["text"]), ("2025-06-18", ["text", "resource_link"])])
async def test_a_client_gets_blocks_that_its_protocol_has(gateway: Gateway, version: str, kinds: list[str]) -> None:
    """Before 2025-06-18 a link is none: the text names the handle."""
    async with gateway.client() as client:
        session = await OldSession.open(client, "/mcp", version)
        content = (await session.ask(client, "tools/call", name="web.page", arguments={}))["result"]["content"]

    assert [block["type"] for block in content] == kinds
    assert '{"$artifact": "' in content[0]["text"]


async def test_who_may_approve_a_call_opens_its_artifact(gateway: Gateway) -> None:
    """That of the call's arguments alone, though it is another user's."""
    async with gateway.client() as client:
        mine, other = [await made(client, user_id="ada") for _ in range(2)]
        body = {"tool_name": "web.save", "arguments": {"text": {"$artifact": mine}}, "user_id": "ada"}
        approval = (await client.post("/calls", json=body)).json()["call_id"]
        answers = [
            await client.get(f"/artifacts/{name}", params={"approval_id": where})
            for name, where in ((mine, approval), (other, approval), (mine, "none"))
        ]

    assert [answer.status_code for answer in answers] == [200, 404, 404]
    assert answers[0].text == PAGE


async def test_artifacts_go_with_their_users_data(gateway: Gateway, tmp_path: Path) -> None:
    """All of them, or one by its handle; another user's stay."""
    async with gateway.client() as client:
        first, _, bobs = [await made(client, user_id=user) for user in ("ada", "ada", "bob")]
        one = await client.delete("/operations/calls/artifacts", params={"user_id": "ada", "id": first})
        left = sorted(each.name for each in (tmp_path / "artifacts" / PLACE).iterdir())
        rest = await client.delete("/operations/calls/contents", params={"user_id": "ada"})

    assert (one.json()["artifacts"], rest.json()["artifacts"]) == (1, 1)
    assert first not in left
    assert [each.name for each in (tmp_path / "artifacts" / PLACE).iterdir()] == [bobs]


async def test_without_a_store_answers_have_no_field_of_it(bed: Bed) -> None:
    """Strict clients of earlier versions read them."""
    web = ModuleServer("web")
    web.add("page", page, effect="read")
    await bed.serve(web)
    await bed.worker()
    async with (await bed.gateway()).client() as client:
        result = (await client.post("/calls", json={"tool_name": "web.page"})).json()
        forgotten = (await client.delete("/operations/calls/contents", params={"user_id": "ada"})).json()

    assert (result["result"], "artifacts" in result) == (PAGE, False)
    assert forgotten == {"calls": 0}


async def test_a_part_of_a_changed_object_is_none(gateway: Gateway, tmp_path: Path) -> None:
    """One of another size is gone; of a part, no digest is told that it might not have."""
    async with gateway.client() as client:
        name = await made(client)
        part = await client.get(f"/artifacts/{name}", headers={"Range": "bytes=0-9"})
        (tmp_path / "artifacts" / PLACE / name).write_bytes(b"owl" * 10)
        changed = await client.get(f"/artifacts/{name}", headers={"Range": "bytes=0-9"})

    assert (part.status_code, part.headers.get("etag")) == (206, None)
    assert changed.status_code == 404


@pytest.mark.parametrize("has_store", [False, True])
async def test_a_modules_own_resources_stay(bed: Bed, tmp_path: Path, has_store: bool) -> None:
    """Its addresses may begin as ours do; without a store, a method that it lacks is an error as before."""

    async def read(_: Request) -> dict[str, Any]:
        return {"success": True, "result": {"result": {"contents": [{"uri": "artifact://mine", "text": "hello"}]}}}

    web = ModuleServer("web")
    web.add(passing_method("resources/list"), read, effect="read", input_schema={"type": "object", "properties": {}})
    schema = {"type": "object", "properties": {"uri": {"type": "string"}}}
    web.add(passing_method("resources/read"), read, effect="read", input_schema=schema)
    if has_store:
        bed.given["artifact_store"] = str(tmp_path / "artifacts")
    await bed.serve(web)
    await bed.worker()
    async with mcp_client(await bed.gateway(), path="/mcp/web") as client:
        (content,) = (await client.read_resource("artifact://mine")).contents
        assert isinstance(content, types.TextResourceContents)
        assert content.text == "hello"
        if not has_store:
            with pytest.raises(MCPError):
                await client.list_resource_templates()
