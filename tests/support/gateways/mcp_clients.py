"""The official SDK's clients of a gateway, of both eras."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from support.gateways.gateway_process import NO_TLS, ServedGateway
from support.waiting import PATIENCE_SECONDS

Era = Literal["auto", "legacy"]
ERAS: list[Era] = ["auto", "legacy"]


@asynccontextmanager
async def mcp_client(
    gateway: ServedGateway, era: Era = "auto", *, path: str = "/mcp", key: str | None = None, **options: Any
) -> AsyncGenerator[Client]:
    """A client that has connected; `auto` finds that the gateway speaks 2026-07-28."""
    headers = {"Authorization": f"Bearer {key or gateway.key}"}
    async with httpx2.AsyncClient(
        headers=headers, timeout=2 * PATIENCE_SECONDS, trust_env=False, verify=NO_TLS
    ) as http:
        transport = streamable_http_client(gateway.url + path, http_client=http)
        async with Client(transport, mode=era, **options) as client:
            yield client
