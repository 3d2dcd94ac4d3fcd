"""What a worker finds that looks whether a module is there: over a connection of its own, and without a call."""

import resource
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from support.modules.http_executor import executor_for
from support.programs.closed_port import closed_port
from support.published_call import published
from toolfleet_registry.contracts.attempts import Health, Outcome


@contextmanager
def no_files() -> Generator[None]:
    """Let our process open no further file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("status", "health"),
    [
        (200, Health.WELL),
        (404, Health.WELL),  # most modules have no such endpoint
        (500, Health.WELL),
        (502, Health.NOT_READY),  # a gateway's words
        (503, Health.NOT_READY),
    ],
)
async def test_an_answer_says_that_a_module_is_there(status: int, health: Health) -> None:
    """Whatever it says, but that it cannot serve now."""
    asked = list[str]()

    async def answer(request: web.Request) -> web.Response:
        asked.append(f"{request.method} {request.path}")
        return web.Response(status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server, executor_for(str(server.make_url("/"))) as executor:
        assert await executor.probe("research", seconds=10) is health
    assert asked == ["GET /health"]


async def test_a_module_where_nobody_listens_is_away() -> None:
    """Its calls are not sent for the same reason; a module without an address is always there."""
    async with executor_for(f"http://127.0.0.1:{closed_port()}") as executor:
        assert await executor.probe("research", seconds=10) is Health.AWAY
        assert (await executor.execute(published(), seconds=10)).unreached is Health.AWAY
        assert await executor.probe("local", seconds=10) is Health.WELL


async def test_a_worker_without_descriptors_knows_nothing_of_a_module() -> None:
    """It is its own trouble, and is said to be."""
    url = f"http://127.0.0.1:{closed_port()}"
    async with executor_for(url) as executor:
        with no_files():
            health = await executor.probe("research", seconds=10)
            attempt = await executor.execute(published(), seconds=10)

    assert (health, attempt.outcome, attempt.unreached) == (Health.UNKNOWN, Outcome.NOT_SENT, Health.UNKNOWN)
