"""Lists and calls tools at a gateway, as a client of the Model Context Protocol."""

import asyncio
import os

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

URL, KEY = os.environ["URL"], os.environ["KEY"]


async def main() -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(f"{URL}/mcp", http_client=http)) as client,
    ):
        tools = await client.list_tools()
        print(len(tools.tools), "tools")
        result = await client.call_tool("owls.echo", {"text": "hello"})
        print(result.structured_content)


asyncio.run(main())
