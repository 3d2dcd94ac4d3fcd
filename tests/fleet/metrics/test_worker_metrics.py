"""What a worker says of itself to Prometheus, and that one without a port says and counts nothing."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from support.fleet import TestBed
from support.metrics.scraping import names_in, scrape, sum_of, wait_until_read
from support.waiting import wait_until_sync
from toolfleet import ToolFleet
from toolfleet_cli.local.redis_server import held_port
from toolfleet_registry.contracts import Caller, ToolCall
from toolfleet_registry.metric_families import FAMILIES

TIMED = ("queued", "run", "total")


@contextmanager
def metered_worker(bed: TestBed) -> Generator[int]:
    """A worker, and the port of its metrics."""
    with held_port() as port, bed.worker(metrics_port=port):
        yield port


@pytest.fixture(scope="module")
def metered(bed: TestBed) -> Generator[int]:
    with metered_worker(bed) as port:
        yield port


async def test_a_worker_counts_and_times_its_calls(bed: TestBed, metered: int, owner: Caller) -> None:
    """By module, tool, outcome, error code and effect; those that others have ended are not among them."""
    before = scrape(metered)
    async with ToolFleet(settings=bed.settings) as fleet:
        for _ in range(3):
            assert (await fleet.call(ToolCall(tool_name="owls.echo", arguments={"word": "hoot"}), owner)).success
        assert not (await fleet.call(ToolCall(tool_name="owls.fail"), owner)).success
    after = scrape(metered)

    def is_counted() -> bool:
        nonlocal after
        after = scrape(metered)
        counters = ("calls_total", *(f"call_{family}_seconds_count" for family in TIMED))
        return all(grown(f"toolfleet_{name}", module="owls") >= 4 for name in counters)

    def grown(name: str, **labels: str) -> float:
        return sum_of(after, name, **labels) - sum_of(before, name, **labels)

    await wait_until_read(is_counted, "the last one is counted, too")  # after its caller has heard of it
    assert grown("toolfleet_calls_total", tool="owls.echo", outcome="success", error_code="") == 3
    assert grown("toolfleet_calls_total", tool="owls.fail", outcome="success") == 0
    assert grown("toolfleet_calls_total", module="owls") == 4
    for family in TIMED:
        assert grown(f"toolfleet_call_{family}_seconds_count", module="owls") == 4
    assert sum_of(after, "toolfleet_worker_ready") == 1
    assert sum_of(after, "toolfleet_worker_slots") >= 1


async def test_a_worker_says_how_full_it_is(bed: TestBed, metered: int, owner: Caller) -> None:
    """How many calls it runs, and holds in the ledger, at that moment."""
    async with ToolFleet(settings=bed.settings) as fleet:
        nap = asyncio.create_task(fleet.call(ToolCall(tool_name="owls.nap", arguments={"seconds": 60}), owner))
        await wait_until_read(lambda: sum_of(scrape(metered), "toolfleet_worker_in_flight") == 1, "it runs a call")
        await wait_until_read(
            lambda: sum_of(scrape(metered), "toolfleet_worker_leases") == 1, "it holds it in the ledger"
        )
        nap.cancel()
        await asyncio.wait([nap])
    await wait_until_read(lambda: sum_of(scrape(metered), "toolfleet_worker_in_flight") == 0, "it runs none")


async def test_a_worker_measures_its_loop_and_redis(metered: int) -> None:
    """Once a second; its process is measured as Prometheus's own libraries do."""
    await wait_until_read(
        lambda: (
            sum_of(scrape(metered), "toolfleet_redis_round_trip_seconds_count") > 0
            and sum_of(scrape(metered), "toolfleet_loop_lag_seconds_count") > 0
        ),
        "both were measured",
    )
    assert sum_of(scrape(metered), "process_cpu_seconds_total") > 0


async def test_it_says_nothing_that_the_table_does_not_name(metered: int) -> None:
    """Each family of a worker is in the table of names."""
    named = {family.name for family in FAMILIES}
    said = {name for name in names_in(scrape(metered)) if name.startswith("toolfleet_")}

    assert {
        name for name in said if name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") not in named
    } == set()


def test_two_workers_of_one_machine_share_its_settings(bed: TestBed, metered: int) -> None:
    """The second answers at the next port that is free."""
    with bed.worker(metrics_port=metered) as worker:
        wait_until_sync(lambda: "metrics_answered" in worker.said(), "it says where it answers")
        assert f"port={metered} " not in worker.said()
        assert "metrics_not_answered" not in worker.said()


def test_a_worker_that_finds_no_port_works(bed: TestBed, metered: int) -> None:
    """It says so in its log."""
    with bed.worker(metrics_port=metered, constants={"toolfleet_tasks.operations.process_metrics._PORTS": 1}) as worker:
        wait_until_sync(lambda: "metrics_not_answered" in worker.said(), "it says that it does not answer")
