"""Thousands of modules in a process of their own: `/NAME/manifest` and `/NAME/execute` of whatever name, at the port that it is told."""

import asyncio
import json
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from subprocess import Popen

from support.modules.raw_modules import manifest_of
from support.waiting import wait_until_sync
from support.worker_process import TESTS
from toolfleet_cli.local.redis_server import free_port


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            _, _, length = head.partition(b"content-length:")
            sent = await reader.readexactly(int(length.split(b"\r\n")[0])) if length else b""
            _, name, what = head.split()[1].decode().split("/")
            reply = {"tool_name": json.loads(sent)["tool_name"], "success": True, "result": name} if sent else None
            body = json.dumps(manifest_of(name, "read") if what == "manifest" else reply).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            if b"connection: close" in head:
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    writer.close()


async def _serve(port: int) -> None:
    async with await asyncio.start_server(_answer, "127.0.0.1", port, backlog=1024) as server:
        await server.serve_forever()


@contextmanager
def module_crowd() -> Generator[str]:
    """Serve them; gives the URL to which their names are added."""
    port = free_port()
    program = f"import sys; sys.path[:0] = [{str(TESTS)!r}]; from support.modules import module_crowd; module_crowd.main({port})"
    process = Popen([sys.executable, "-c", program])
    try:
        wait_until_sync(lambda: _answers(port), "the modules are there")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main(port: int) -> None:
    asyncio.run(_serve(port))
