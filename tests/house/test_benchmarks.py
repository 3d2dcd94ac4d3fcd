"""The benchmark is complete: each system can be run, each peer's environment is pinned, and its client does not wait in vain."""

import asyncio
import re
from pathlib import Path

import pytest
from benchmarks.features.rest_client import RestClient
from benchmarks.reporting import targets
from benchmarks.reporting.results import Results
from benchmarks.systems import SYSTEMS, System

from support.waiting import wait_until

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"
PINS = sorted(
    path for path in PEERS.parent.glob("*/**/requirements.txt") if ".envs" not in path.parts
)  # what is installed there may have files of that name


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_every_system_has_a_client(system: System) -> None:
    """A producer finds it by the peer's name."""
    assert (PEERS / system.client.partition(":")[0] / "client.py").is_file()


@pytest.mark.parametrize("pins", PINS, ids=lambda path: path.parent.name)
def test_every_environment_is_pinned(pins: Path) -> None:
    """Each line names one version, and no address."""
    assert all(re.fullmatch(r"[a-z0-9-]+(\[[a-z,]+\])?==[0-9a-z.]+", line) for line in pins.read_text().splitlines())


def test_ratios_are_taken_within_a_round(tmp_path: Path) -> None:
    """A machine that is half as fast in one round changes no ratio."""
    results = Results(tmp_path / "records.jsonl")
    for number, speed in enumerate([1.0, 0.5]):
        for name, rate in (("toolfleet", 600.0), ("celery_threads", 100.0)):
            results.add({"round": number, "system": name, "workload": "W1", "rate": rate * speed})

    ratio = results.ratio(("toolfleet", "W1"), ("celery_threads", "W1"), "rate")

    assert ratio is not None
    assert (ratio.low, ratio.median, ratio.high) == (6, 6, 6)
    rows = {what: verdict for what, _, _, verdict in targets.rows(results)}
    assert rows["W1, calls/s, to Celery with threads"] == "met"
    assert rows["W2, calls/s, to Celery with threads"] == "-"


async def test_a_connection_that_its_server_has_closed_is_not_used_again() -> None:
    """A server hangs up on what is idle for some seconds, as each peer is while others have their turn."""

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(answer_once, "127.0.0.1", 0) as server, asyncio.timeout(20):
        client = RestClient("127.0.0.1", server.sockets[0].getsockname()[1], "key")
        for _ in range(2):
            assert await client.post("/", {}) == (200, {})
            await wait_until(lambda: client.idle == 0, "the client has heard of it")
        client.close()
