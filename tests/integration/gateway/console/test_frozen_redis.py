"""What the console shows while its Redis says nothing, and afterwards."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.console.console_pages import PAGES
from support.console.plain_browser import ConsoleBrowser, browsing
from support.fleet import TestBed
from support.gateways.keyed_gateway import KeyedGateway, keyed_gateway
from support.module_server import ModuleServer
from support.servers.redis_faults import FaultyRedis, faulty_redis
from support.waiting import wait_until_answered

DEADLINE_SECONDS = 25.0  # for any page: each waits for Redis some seconds at most
FORMS = [
    ("/approvals/none", {"decision": "approve"}),
    ("/dead-letters/bulk", {"action": "replay"}),
    ("/dead-letters/call/none", {"action": "drop"}),
    ("/modules/owls", {"action": "pin"}),
    ("/tools/owls.echo", {"action": "disable"}),
    ("/logout", {}),
]


@pytest.fixture
def redis_here(tmp_path: Path) -> Iterator[FaultyRedis]:
    with faulty_redis(tmp_path / "redis") as redis:
        yield redis


@pytest.fixture
def gateway(redis_here: FaultyRedis, owls: ModuleServer, tmp_path: Path) -> Iterator[KeyedGateway]:
    (tmp_path / "logs").mkdir()
    bed = TestBed(redis_here.url, (owls,), tmp_path / "logs")
    with bed.worker(), keyed_gateway(bed) as gateway:
        yield gateway
        assert "Traceback" not in gateway.gateway.process.said()


async def asked(browser: ConsoleBrowser, below: str, form: dict[str, str] | None) -> tuple[str, int, bool]:
    """What a page has answered within the deadline, and whether it says so as a page."""
    method = "GET" if form is None else "POST"
    path, timeout = f"/console{below}", DEADLINE_SECONDS
    async with asyncio.timeout(DEADLINE_SECONDS):
        answer = await browser.client.request(method, path, data=form, timeout=timeout)
    is_page = answer.headers["content-type"].startswith("text/html") and "<h1>That did not work</h1>" in answer.text
    return below, answer.status_code, is_page


async def until(lines: AsyncIterator[str], event: str) -> None:
    """Read a stream until that event."""
    async for line in lines:
        if line == f"event: {event}":
            return
    pytest.fail(f"the stream has ended without {event!r}")


async def test_each_page_says_that_redis_is_away(gateway: KeyedGateway, redis_here: FaultyRedis) -> None:
    """Pages and forms answer 503 with a page, and none hangs: also once nobody's key can be checked. Then the session goes on."""
    async with browsing(gateway, "ada") as browser:
        csrf = await browser.csrf()
        forms = [(below, {**fields, "csrf": csrf}) for below, fields in FORMS]
        asks: list[tuple[str, dict[str, str] | None]] = [*((below, None) for below in PAGES), *forms]
        with redis_here.frozen():
            first = await asyncio.gather(*(asked(browser, below, form) for below, form in asks))
            later = await asyncio.gather(*(asked(browser, below, form) for below, form in asks))

        async def is_back() -> bool:
            return (await browser.get("/")).status == 200

        await wait_until_answered(is_back, "the overview is back")

    assert first == [(below, 503, True) for below, _ in asks]
    assert later == first


async def test_the_overviews_stream_says_so_and_goes_on(gateway: KeyedGateway, redis_here: FaultyRedis) -> None:
    """It says that the fleet is away while Redis is silent, and how it is when Redis is back, in the same stream."""
    async with (
        asyncio.timeout(4 * DEADLINE_SECONDS),
        browsing(gateway, "vera") as browser,
        browser.client.stream("GET", "/console/live", timeout=DEADLINE_SECONDS) as stream,
    ):
        lines = stream.aiter_lines()
        await until(lines, "reading")
        with redis_here.frozen():
            await until(lines, "away")
        await until(lines, "reading")
