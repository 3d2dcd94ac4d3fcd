"""Apps of MCP servers: a client finds and reads them at both kinds of endpoint, and what an app asks is a call of the fleet."""

import mcp_types as types
import pytest
from mcp import Client
from mcp.server.apps import APP_MIME_TYPE, EXTENSION_ID
from mcp.shared.exceptions import MCPError

from bed.fleet import Bed, Gateway, until
from support.gateways.mcp_clients import ERAS, mcp_client
from support.hosts.app_server import app_server

SHARED = "ui://nest/app.html"
MODULES = {"barn": "ui://barn/app.html", "left": SHARED, "right": SHARED}
"""The address of each module's app."""
META = {
    "ui": {"csp": {"connectDomains": ["https://owls.example"]}, "permissions": {"camera": {}}, "prefersBorder": True}
}


@pytest.fixture
async def gateway(bed: Bed) -> Gateway:
    for module, address in MODULES.items():
        await bed.host_mcp(module, app_server(module, address, is_old=module == "right"))
    await bed.worker()
    gateway = await bed.gateway()
    async with gateway.client() as client:

        async def are_there() -> bool:
            text = (await client.get("/tools")).text
            return all(f'"{module}.show"' in text for module in MODULES)

        await until(are_there, "the gateway serves the modules", step=1)
    return gateway


async def said(client: Client, tool: str) -> str:
    (block,) = (await client.call_tool(tool, {})).content
    assert isinstance(block, types.TextContent)
    return block.text


async def page(client: Client, address: str) -> str:
    """The text of a resource, which is there once."""
    (content,) = (await client.read_resource(address)).contents
    assert isinstance(content, types.TextResourceContents)
    return content.text


async def test_an_app_is_listed_and_read_as_its_server_made_it(gateway: Gateway) -> None:
    """With its kind, and with what it may reach, in the list and in what is read."""
    for era in ERAS:
        for path in ("/mcp", "/mcp/barn"):
            async with mcp_client(gateway, era, path=path) as client:
                listed = {each.uri: each for each in (await client.list_resources()).resources}
                (content,) = (await client.read_resource(MODULES["barn"])).contents
                assert client.server_capabilities.resources is not None
                declared = (client.server_capabilities.extensions or {}).get(EXTENSION_ID)

            for each in (listed[MODULES["barn"]], content):
                assert (each.mime_type, each.meta) == (APP_MIME_TYPE, META)
            assert listed.keys() == ({*MODULES.values()} if path == "/mcp" else {MODULES["barn"], "data://barn"})
            assert declared == ({} if era == "auto" else None)  # before, no server says so


async def test_a_server_is_told_that_apps_are_shown(gateway: Gateway) -> None:
    """In its own era, which is the older one of `right`: else it could have no tools with apps."""
    for era in ERAS:
        async with mcp_client(gateway, era) as client:
            assert await said(client, "barn.show") == "an app"
            assert await said(client, "right.show") == "an app"


async def test_an_app_calls_the_tools_of_its_server_by_their_names(gateway: Gateway) -> None:
    """Where one module with apps has a tool of that name: a name that two have is none."""
    for era in ERAS:
        async with mcp_client(gateway, era) as client:
            assert await said(client, "only_barn") == "barn"
            assert await said(client, "only_left") == "left"
            with pytest.raises(MCPError, match="Unknown tool: refresh") as refused:
                await client.call_tool("refresh", {})
        assert refused.value.code == types.INVALID_PARAMS


async def test_an_app_reads_other_resources_of_its_server(gateway: Gateway) -> None:
    """Whichever module with apps has it; what none has is an error in the words of a server."""
    for era in ERAS:
        async with mcp_client(gateway, era) as client:
            assert await page(client, "data://left") == "left"
            with pytest.raises(MCPError, match="data://none"):
                await page(client, "data://none")


async def test_no_app_passes_for_another(gateway: Gateway) -> None:
    """What two modules name is read at their own endpoints only."""
    for era in ERAS:
        async with mcp_client(gateway, era) as client:
            with pytest.raises(MCPError, match="left, right have it: read it at /mcp/left or /mcp/right"):
                await page(client, SHARED)
        for module in ("left", "right"):
            async with mcp_client(gateway, path=f"/mcp/{module}") as own:
                assert module in await page(own, SHARED)


async def test_a_key_hears_of_apps_that_it_reaches_only(gateway: Gateway) -> None:
    """No other module is asked or named, also where it has the same address or the same name for a tool."""
    for era in ERAS:
        async with gateway.client() as operator:
            draft = {"user_id": "eve", "permission": "owner", "allowed_modules": ["left"]}
            made = (await operator.post("/operations/keys", json=draft)).json()

            async def is_known() -> bool:
                async with gateway.client(made["text"]) as client:  # noqa: B023 - awaited
                    return (await client.get("/tools")).is_success

            await until(is_known, "the key is known")
            async with mcp_client(gateway, era, key=made["text"]) as client:
                assert [each.uri for each in (await client.list_resources()).resources] == [SHARED]
                assert "left" in await page(client, SHARED)
                assert await said(client, "refresh") == "left"
                for address in (MODULES["barn"], "data://barn"):
                    with pytest.raises(MCPError) as refused:
                        await page(client, address)
                    assert not {"barn,", "right", "/mcp/"} & {*str(refused.value).split()}
                for name in ("only_barn", "only_right", "barn.only_barn", "barn__only_barn"):
                    assert await is_refused(client, name)
            async with gateway.client(made["text"]) as plain:
                assert (await plain.post("/mcp/barn", json={})).status_code == 404
            lines = (await operator.get("/operations/audit", params={"limit": 200})).json()["lines"]
        asked = {line["tool"] for line in lines if line["user_id"] == "eve" and line.get("outcome") == "success"}
        assert asked == {"left.refresh", "left.mcp.resources.list", "left.mcp.resources.read"}


async def is_refused(client: Client, tool: str) -> bool:
    try:
        return (await client.call_tool(tool, {})).is_error
    except MCPError:
        return True


async def test_what_an_app_asks_is_audited(gateway: Gateway) -> None:
    """Calls and reads, with the user that the client has."""
    async with mcp_client(gateway) as client:
        await said(client, "only_right")
        await page(client, MODULES["barn"])
    async with gateway.client() as operator:
        lines = (await operator.get("/operations/audit", params={"limit": 100})).json()["lines"]

    assert {"right.only_right", "barn.mcp.resources.read"} <= {line["tool"] for line in lines}
