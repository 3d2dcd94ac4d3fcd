"""Sessions of older MCP clients, request by request, at whichever gateway: no client's library changes that within one."""

import itertools
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

VERSION = "2025-11-25"
TAKES = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

_NUMBERS = itertools.count(1)


@dataclass(frozen=True)
class OldSession:
    """One session at an endpoint, by its id."""

    path: str
    id: str
    version: str = VERSION

    @classmethod
    async def open(cls, client: httpx.AsyncClient, path: str, version: str = VERSION) -> "OldSession":
        info = {"name": "test", "version": "1"}
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": info}
        body = {"jsonrpc": "2.0", "id": next(_NUMBERS), "method": "initialize", "params": params}
        answer = await client.post(path, json=body, headers=TAKES)
        assert answer.is_success, answer.text
        return cls(path, answer.headers["mcp-session-id"], version)

    @property
    def headers(self) -> dict[str, str]:
        return {**TAKES, "mcp-session-id": self.id, "mcp-protocol-version": self.version}

    async def ask(self, client: httpx.AsyncClient, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a request."""
        answer = await self.post(client, method, **params)
        text = answer.text
        if answer.headers["content-type"].startswith("text/event-stream"):
            text = [line for line in text.splitlines() if line.startswith("data:")][-1].removeprefix("data:")
        said: dict[str, Any] = json.loads(text)
        return said

    async def post(self, client: httpx.AsyncClient, method: str, **params: Any) -> httpx.Response:
        """The same as it came."""
        body = {"jsonrpc": "2.0", "id": next(_NUMBERS), "method": method, "params": params}
        return await client.post(self.path, json=body, headers=self.headers)

    @asynccontextmanager
    async def stream(self, client: httpx.AsyncClient) -> AsyncGenerator[AsyncGenerator[dict[str, Any]]]:
        """The messages of the session's stream."""
        async with client.stream("GET", self.path, headers=self.headers) as answer:
            assert answer.is_success
            yield _messages(answer)


async def _messages(answer: httpx.Response) -> AsyncGenerator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data:") and "jsonrpc" in line:
            yield json.loads(line.removeprefix("data:"))
