"""Requests of the protocol's revision 2026-07-28 as they go over the wire, for what no client's library would send."""

import itertools
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

VERSION = "2026-07-28"
TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}

Json = dict[str, Any]

_NUMBERS = itertools.count(1)
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


def request_of(
    method: str,
    params: Mapping[str, Any],
    capabilities: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> tuple[Json, dict[str, str]]:
    """The body of a request and its headers."""
    envelope = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientCapabilities": dict(capabilities or {}),
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        **(meta or {}),
    }
    body = {"jsonrpc": "2.0", "id": next(_NUMBERS), "method": method, "params": {**params, "_meta": envelope}}
    headers = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": VERSION,
        "mcp-method": method,
    }
    name = params.get(_NAMED.get(method, "taskId" if method.startswith("tasks/") else ""))
    return body, headers if name is None else {**headers, "mcp-name": str(name)}


async def asked(
    client: httpx.AsyncClient,
    method: str,
    params: Mapping[str, Any],
    capabilities: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
    *,
    path: str = "/mcp",
) -> Json:
    """What comes back, as JSON or as the last message of a stream."""
    body, headers = request_of(method, params, capabilities, meta)
    answer = await client.post(path, json=body, headers=headers)
    if answer.headers["content-type"].startswith("text/event-stream"):
        return messages_of(answer.text)[-1]
    said: Json = answer.json()
    return said


@asynccontextmanager
async def stream_of(
    client: httpx.AsyncClient, method: str, params: Mapping[str, Any], meta: Mapping[str, Any] | None = None
) -> AsyncGenerator[AsyncGenerator[Json]]:
    """The messages of an answer that goes on, as they come."""
    body, headers = request_of(method, params, TASKS, meta)
    async with client.stream("POST", "/mcp", json=body, headers=headers) as answer:
        yield _messages(answer)


async def _messages(answer: httpx.Response) -> AsyncGenerator[Json]:
    async for line in answer.aiter_lines():
        if line.startswith("data:"):
            yield json.loads(line.removeprefix("data:"))


def messages_of(text: str) -> list[Json]:
    """The messages of a stream that has ended."""
    return [json.loads(line.removeprefix("data:")) for line in text.splitlines() if line.startswith("data:")]
