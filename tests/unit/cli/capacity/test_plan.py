"""How many processes a load needs."""

import pytest

from toolfleet_cli.commands.capacity import FleetLoad, plan


def test_a_small_load_needs_one_of_each_and_a_worker_to_spare() -> None:
    found = plan(FleetLoad(rate=0.1, latency=0))

    assert (found.agents, found.workers, found.fleets, found.at_once) == (1, 2, 1, 0)


def test_long_calls_are_short_of_slots() -> None:
    """300 calls a second of 4 s are 1,200 at once: two processes of 1,000 slots, and one to spare."""
    found = plan(FleetLoad(rate=300, latency=4))

    assert (found.at_once, found.workers, found.short_of) == (1_200, 3, "slots")


def test_short_calls_are_short_of_cpu() -> None:
    """5,000 calls a second take 1.25 cores of workers."""
    found = plan(FleetLoad(rate=5_000, latency=0.01))

    assert (found.workers, found.short_of, found.fleets) == (4, "CPU", 1)


@pytest.mark.parametrize(("rate", "fleets"), [(14_000, 1), (14_001, 2), (30_000, 3)])
def test_beyond_one_redis_there_are_several_fleets(rate: float, fleets: int) -> None:
    """None of which is busier than one Redis should be."""
    found = plan(FleetLoad(rate=rate, latency=0.1))

    assert (found.redis_ends_at, found.fleets) == (14_000, fleets)
    assert found.redis_cores <= 0.7 + 1e-9


def test_records_and_payloads_need_memory() -> None:
    """Twice what is kept: 100 calls a second for six hours are 2.16 million records."""
    small, large = plan(FleetLoad(rate=100, latency=1)), plan(FleetLoad(rate=100, latency=1, payload=1_000_000))

    assert small.redis_memory == 2 * (2_160_000 * 300 + 100 * 1_500)
    assert large.redis_memory - small.redis_memory == 2 * 100 * 2_000_000
