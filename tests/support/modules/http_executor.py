"""An executor for one module, and a look at the connections that it keeps."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from toolfleet_workers.executors.connections.connection import Connection
from toolfleet_workers.executors.http.executor import HttpExecutor


@asynccontextmanager
async def executor_for(url: str, *, max_reply_bytes: int = 2**20) -> AsyncGenerator[HttpExecutor]:
    """An executor that knows the module `research` at `url`."""
    executor = HttpExecutor({"research": url}, max_reply_bytes=max_reply_bytes)
    try:
        yield executor
    finally:
        await executor.aclose()


def idle_connections(executor: HttpExecutor) -> list[Connection]:
    """The kept connections that are still open."""
    pool = executor._connections._pool
    assert pool is not None
    return pool.idle()


def open_connections(executor: HttpExecutor) -> int:
    """How many there are, in use or not."""
    pool = executor._connections._pool
    assert pool is not None
    return len(pool._all)
