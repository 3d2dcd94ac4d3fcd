"""An executor for one module, and a look at the connections that it keeps."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from toolfleet_workers.executors.http_client import Connection, HttpClient
from toolfleet_workers.executors.http_executor import HttpExecutor


@asynccontextmanager
async def executor_for(url: str, *, max_reply_bytes: int = 2**20) -> AsyncGenerator[HttpExecutor]:
    """An executor that knows the module `research` at `url`."""
    executor = HttpExecutor({"research": url}, client=HttpClient(), max_reply_bytes=max_reply_bytes)
    try:
        yield executor
    finally:
        await executor.aclose()


def client_of(executor: HttpExecutor) -> HttpClient:
    """The worker's own client, with which an executor was made."""
    client = executor._client
    assert isinstance(client, HttpClient)
    return client


def idle_connections(executor: HttpExecutor) -> list[Connection]:
    """The kept connections that are still open."""
    pool = client_of(executor)._pool
    assert pool is not None
    return pool.idle()


def open_connections(executor: HttpExecutor) -> int:
    """How many there are, in use or not."""
    pool = client_of(executor)._pool
    assert pool is not None
    return len(pool._all)
