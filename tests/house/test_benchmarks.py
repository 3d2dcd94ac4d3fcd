"""The benchmark is complete: each system can be run, each peer's environment is pinned, and its client does not wait in vain."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import interpreters
from benchmarks.__main__ import jobs, pick
from benchmarks.calling.open_loop import Schedule, arrivals, run_async, run_blocking
from benchmarks.features.rest_client import RestClient
from benchmarks.lengths import FULL
from benchmarks.redis_costs import redis_time
from benchmarks.reporting import report, targets
from benchmarks.reporting.results import Results
from benchmarks.stage import Stage
from benchmarks.systems import BY_NAME, SYSTEMS, System
from benchmarks.work import Call

from support.clocks import HandClock
from support.waiting import wait_until
from toolfleet_tasks.scripts import FILES

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"
PINS = sorted(
    path for path in PEERS.parent.glob("*/**/requirements.txt") if ".envs" not in path.parts
)  # what is installed there may have files of that name


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_every_system_has_a_client(system: System) -> None:
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


def test_the_best_peer_is_best_at_what_is_asked(tmp_path: Path) -> None:
    """The highest rate, the lowest of all else; and only of those that are named."""
    results = Results(tmp_path / "records.jsonl")
    for name, rate, p50, cold in (("toolfleet", 9, 1.0, 0.4), ("saq", 3, 5.0, 0.3), ("huey", 2, 2.0, 0.1)):
        results.add({"system": name, "workload": "W3", "rate": rate, "p50_ms": p50})
        results.add({"system": name, "workload": "cold", "cold_seconds": cold})

    assert (results.best_peer("W3", "rate"), results.best_peer("W3", "p50_ms")) == ("saq", "huey")
    assert results.best_peer("cold", "cold_seconds", ("saq", "arq")) == "saq"
    rows = {what: (measured, verdict) for what, _, measured, verdict in targets.rows(results)}
    assert rows["W3, median latency, to the fastest peer (huey, 100 threads)"] == ("0.5 (0.5 to 0.5)", "met")


async def test_a_connection_that_its_server_has_closed_is_not_used_again() -> None:
    """A server hangs up on what is idle for some seconds, as each peer is while others have their turn."""

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(answer_once, "127.0.0.1", 0) as server:
        client = RestClient("127.0.0.1", server.sockets[0].getsockname()[1], "key")
        for _ in range(2):
            assert await client.post("/", {}) == (200, {})
            await wait_until(lambda: client.idle == 0, "the client has heard of it")
        client.close()


def test_calls_come_by_chance_and_the_same_for_all() -> None:
    """The same seed has the same times; on average there are as many as there shall be."""
    due = arrivals(rate=500, seconds=20, seed=3)

    assert due == arrivals(rate=500, seconds=20, seed=3) != arrivals(rate=500, seconds=20, seed=4)
    assert due == sorted(due)
    assert len(due) == pytest.approx(10_000, rel=0.05)


class HeldClient:
    """Ends no call before all have begun."""

    def __init__(self, calls: int) -> None:
        self.all_begun = asyncio.Barrier(calls)

    async def open(self) -> None:
        """There is nothing to open."""

    async def call(self, call: Call) -> dict[str, Any]:
        await self.all_begun.wait()
        return {"success": True, "result": {"echo": call.arguments}}

    async def publish(self, call: Call) -> None:
        """Nobody asks for that here."""


async def test_an_open_loop_waits_for_nobody() -> None:
    """Calls are begun when they are due, and what a call waits for those before it counts as its own time."""
    schedule = Schedule({"tools": ["instant.echo"], "rate": 2000, "seconds": 0.1, "seed": 1})
    await run_async(HeldClient(len(schedule.due)), schedule)
    found = schedule.report()

    assert found["calls"] == len(schedule.due)
    assert found["p50_ms"] > found["late_p50_ms"]
    assert found["in_time"] == 0


def test_a_producer_that_is_late_is_seen_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who cannot publish as fast as calls come falls behind, and the calls' times have that in them."""
    clock = HandClock()

    class LateClient:
        def publish(self, call: Call) -> Call:
            clock.now += 0.01
            return call

        def result(self, handle: Call) -> dict[str, Any]:
            return {"success": True, "result": {"echo": handle.arguments}}

    def sleep(seconds: float) -> None:
        clock.now += seconds

    times = SimpleNamespace(perf_counter=clock, process_time=clock, sleep=sleep)
    monkeypatch.setattr("benchmarks.calling.open_loop.time", times)
    schedule = Schedule({"tools": ["instant.echo"], "rate": 200, "seconds": 1, "seed": 1})
    run_blocking(LateClient(), schedule)
    found = schedule.report()

    assert found["calls"] == len(schedule.due)
    assert found["late_p50_ms"] > 100
    assert found["p50_ms"] >= found["late_p50_ms"]


def test_the_load_is_a_share_of_the_fastest_peer_in_the_same_round(tmp_path: Path) -> None:
    """Neither our own rate counts, nor that of another round; without a peer's figure nothing is measured."""
    results = Results(tmp_path / "records.jsonl")
    for results.round in (0, 1):
        assert results.capacity("W1") is None
        for name, rate in (("toolfleet", 900.0), ("saq", 500.0 + results.round), ("huey", 400.0)):
            results.add({"system": name, "workload": "W1", "rate": rate})
        assert results.capacity("W1") == 500.0 + results.round


def test_an_open_loop_brings_the_peers_that_its_load_depends_on(tmp_path: Path) -> None:
    """`--only open:toolfleet` measures W1 of its peers as well, before it; other names bring only themselves."""
    stage = Stage(tmp_path, 1, 1, 1, 1, 1, 1)
    todo = jobs(stage, stage, FULL, Results(tmp_path / "records.jsonl"))
    peers = {name for name in FULL.open if BY_NAME[name].kind == "peer"}

    assert {job.name for job in pick(todo, ["open:toolfleet"], stage, FULL)} == {"open:toolfleet", *peers}
    assert [job.name for job in pick(todo, ["toolfleet_shipped"], stage, FULL)] == ["toolfleet_shipped"]


def test_an_interpreter_that_is_not_here_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row says so, and it is not measured."""
    monkeypatch.setattr(interpreters, "find_interpreter", lambda _: None)
    stage = Stage(tmp_path, 1, 1, 1, 1, 1, 1)
    results = Results(tmp_path / "records.jsonl")
    text = report.markdown(results, "make bench", "7.2")

    assert interpreters.OTHER_VERSIONS
    for version in interpreters.OTHER_VERSIONS:
        assert f"| **toolfleet**, Python {version} | not on this machine |" in text
        assert f"toolfleet_py{version}" not in {job.name for job in jobs(stage, stage, FULL, results)}


def test_redis_time_is_split_by_script_and_command() -> None:
    """What a script has Redis do is in its own time only; a text that was cut is known by its beginning and its length."""
    reserve = FILES.script("queues/reserve").text.encode()
    cut = b"%s... (%d more bytes)" % (reserve[:128], len(reserve) - 128)
    digest = FILES.script("ledger/claim").digest.encode()
    inside, outside = {"client_address": b"?:0"}, {"client_address": b"127.0.0.1:5"}
    noted = [
        {"command": b"HSET record a b", "duration": 10, **inside},
        {"command": b"PUBLISH there x", "duration": 5, **inside},
        {"command": b"EVALSHA " + digest + b" 1 record", "duration": 30, **outside},
        {"command": b"EVAL " + cut + b" 2 unacked", "duration": 10, **outside},
        {"command": b"PUBLISH events x", "duration": 15, **outside},
    ]

    found = redis_time.costs(noted, calls=2, spent={"eval": 4.0, "evalsha": 16.0, "publish": 8.0, "hset": 3.0})

    assert {(cost.name, cost.times, cost.microseconds) for cost in found} == {
        ("ledger/claim", 0.5, 15.0),
        ("queues/reserve", 0.5, 5.0),
        ("PUBLISH", 0.5, 6.0),
    }
    assert "| CPU of the process (at most 50: not met) | | 60.0 |" in redis_time.table(found, 60.0)
