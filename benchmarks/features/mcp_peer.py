"""Asks a server of MCP for one tool, with as little work as possible, as its revision has it."""

import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.features.rest_client import RestClient

_OK = 200
_MODERN, _OLD, _PREFIX = "2026-07-28", "2025-11-25", "io.modelcontextprotocol/"
_MARK = '"echo":'


@dataclass(frozen=True)
class Peer:
    """Where a server is asked, and how. `wrapped` is what its tool takes beside the arguments, where it posts all to the module as they are."""

    name: str
    pid: int
    port: int
    tool: str = "echo"
    path: str = "/mcp"
    key: str = ""
    is_modern: bool = True
    wrapped: Mapping[str, str] = field(default_factory=dict)

    def calling(self, client: RestClient, arguments: dict[str, Any]) -> Callable[[], Awaitable[None]]:
        """What makes one call. It ends the program if the call fails."""
        given = {**self.wrapped, "arguments": arguments} if self.wrapped else arguments
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": self._params(given)}
        headers = self._headers()

        async def call() -> None:
            status, answer = await client.post(self.path, asked, headers)
            result = answer.get("result", {})
            if status != _OK or result.get("isError") or _MARK not in result["content"][0]["text"]:
                sys.exit(f"A call of {self.name} has failed: {status} {answer}")

        return call

    def _params(self, arguments: dict[str, Any]) -> dict[str, Any]:
        params = {"name": self.tool, "arguments": arguments}
        meta = {f"{_PREFIX}clientCapabilities": {}, f"{_PREFIX}protocolVersion": _MODERN}
        return {**params, "_meta": meta} if self.is_modern else params

    def _headers(self) -> str:
        accept = "Accept: application/json, text/event-stream\r\n"
        if not self.is_modern:
            return f"{accept}MCP-Protocol-Version: {_OLD}\r\n"
        return f"{accept}MCP-Protocol-Version: {_MODERN}\r\nMcp-Method: tools/call\r\nMcp-Name: {self.tool}\r\n"
