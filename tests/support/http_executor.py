"""An executor for one module, and a look at the connections that it keeps."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from toolfleet_workers.executors.http import HttpExecutor


@asynccontextmanager
async def executor_for(url: str, *, max_reply_bytes: int = 2**20) -> AsyncGenerator[HttpExecutor]:
    """An executor that knows the module `research` at `url`."""
    executor = HttpExecutor({"research": url}, max_reply_bytes=max_reply_bytes)
    try:
        yield executor
    finally:
        await executor.aclose()


def idle_connections(executor: HttpExecutor) -> list[Any]:
    """The kept connections that aiohttp still takes for open; it shows them nowhere in public."""
    session: Any = executor._connections._session
    assert session is not None
    idle = (protocol for pool in session.connector._conns.values() for protocol, _ in pool)
    return [protocol for protocol in idle if protocol.is_connected()]
