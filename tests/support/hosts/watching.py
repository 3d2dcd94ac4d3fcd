"""Clients that watch resources of MCP servers through a gateway."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import mcp_types as types
from mcp import Client
from mcp.client.subscriptions import listen

from support.gateways.gateway_process import ServedGateway
from support.gateways.mcp_clients import Era, mcp_client
from support.waiting import wait_until


@dataclass
class Heard:
    """What a client was told of: the addresses of resources, and the names of lists."""

    uris: list[str] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)

    async def __call__(self, message: object) -> None:
        match message:
            case types.ResourceUpdatedNotification():
                self.uris.append(str(message.params.uri))
            case types.PromptListChangedNotification():
                self.lists.append("prompts")
            case types.ResourceListChangedNotification():
                self.lists.append("resources")
            case _:
                pass


async def subscribe(client: Client, uri: str) -> None:
    """As older clients do: the SDK's own method warns of its age."""
    request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
    await client.session.send_request(request, types.EmptyResult)


async def unsubscribe(client: Client, uri: str) -> None:
    """As above."""
    request = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri))
    await client.session.send_request(request, types.EmptyResult)


@asynccontextmanager
async def watching(gateway: ServedGateway, module: str, era: Era, *uris: str) -> AsyncGenerator[tuple[Client, Heard]]:
    """A client that watches these resources, and hears."""
    heard = Heard()
    async with mcp_client(gateway, era, path=f"/mcp/{module}", message_handler=heard) as client:
        if era == "legacy":
            await _until_it_hears(client, heard)
            for uri in uris:
                await subscribe(client, uri)
            yield client, heard
        else:
            async with listen(
                client.session, prompts_list_changed=True, resources_list_changed=True, resource_subscriptions=uris
            ) as stream:
                assert stream.honored.resource_subscriptions == (list(uris) or None)
                yield client, heard


async def _until_it_hears(client: Client, heard: Heard) -> None:
    """Wait until a client has its stream: it asks for it when it likes."""
    uri = f"eggs://ready-{id(client)}"
    await subscribe(client, uri)
    await client.call_tool("lay", {"uri": uri})
    await wait_until(lambda: uri in heard.uris, "the stream is there")
    await unsubscribe(client, uri)
    heard.uris.clear()
