"""Modules on loopback that write their answers byte for byte, so that they can misbehave."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from support.streams.stream_server import stream_server

Behaviour = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
"""Gets the request's head and answers it; the connection closes when it returns."""


@contextlib.asynccontextmanager
async def raw_module(behave: Behaviour) -> AsyncGenerator[str]:
    """Serve `behave`; yields the base URL. Ends every answer that is still being written."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await behave(await reader.readuntil(b"\r\n\r\n"), writer)

    async with stream_server(answer, backlog=1000) as port:
        yield f"http://127.0.0.1:{port}"


def answering(body: bytes, *, status: str = "200 OK", headers: Mapping[str, str] | None = None) -> Behaviour:
    """Answer every request with this, as it is."""
    head = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    return writing(_head(status, head) + body)


def writing(answer: bytes) -> Behaviour:
    """Write these bytes and close."""

    async def behave(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    return behave


def trickling(start: bytes, byte: bytes) -> Behaviour:
    """Write `start`, then one byte after another for ever."""

    async def behave(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            writer.write(byte)
            await writer.drain()
            await asyncio.sleep(0.01)

    return behave


def noting(heads: list[bytes], behave: Behaviour) -> Behaviour:
    """Do as `behave`, and add each request's head to `heads`."""

    async def noted(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        await behave(head, writer)

    return noted


def offering(module: str, *methods: str, **more: Any) -> Behaviour:
    """A well-behaved module with tools of these names; `more` goes into its manifest."""
    return answering(json.dumps(manifest_of(module, *methods, **more)).encode())


def manifest_of(module: str, *methods: str, **more: Any) -> dict[str, Any]:
    """A manifest as modules send it."""
    tools = [{"name": f"{module}.{method}", "description": f"{method} it", "parameters": []} for method in methods]
    return {"module_name": module, "description": f"The {module} module", "tools": tools, **more}


def _head(status: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()
