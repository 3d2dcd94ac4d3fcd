"""Runs MCP clients of Node.js against a gateway: the TypeScript SDK's, and the inspector's command line."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from conformance.packages import NODE
from support.gateways.gateway_process import Gateway

REVISIONS = {"sdk": "2025-11-25", "client": "2025-11-25", "modern": "2026-07-28"}
"""The SDK's clients, by generation and era, with the revision of the protocol that each speaks."""

_INSPECTOR = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
_SECONDS = 90


def sdk_client(name: str, gateway: Gateway, act: str) -> Sequence[str]:
    """The words by which one of `REVISIONS` does what `run.mjs` calls so."""
    return ("run.mjs", name, f"{gateway.url}/mcp", gateway.key, act)


def inspector(era: str, gateway: Gateway, *words: str) -> Sequence[str]:
    """The words by which the inspector does one thing, in an era of the protocol."""
    where = (f"{gateway.url}/mcp", "--header", f"Authorization: Bearer {gateway.key}")
    return (_INSPECTOR, "--cli", *where, "--protocol-era", era, "--format", "json", *words)


@asynccontextmanager
async def node(folder: Path, *words: str, **env: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A program of node in the clients' folder, in a group of processes that is ended with the test."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), **env}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        str(NODE), *words, cwd=folder, env=env, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def printed(process: asyncio.subprocess.Process, text: bytes = b"") -> str:
    """What it has printed at its end, after it was given `text`; a failure has what it wrote to standard error."""
    async with asyncio.timeout(_SECONDS):
        said, errors = await process.communicate(text)
    assert process.returncode == 0, errors.decode()[-3000:]
    return said.decode()
