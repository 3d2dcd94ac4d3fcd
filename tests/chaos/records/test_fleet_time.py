"""A run's times by the fleet's clock: strictly where Redis's clock stood still, and within the clocks' own bounds where it was set."""

from pathlib import Path

import pytest

from chaos.records.fleet_time import ROUNDING_SECONDS, FleetTime, FleetWatch
from toolfleet_registry.system.fleet_clock import KEPT_SECONDS, RETURN_RATE


def watch(*leads: tuple[float, float]) -> FleetWatch:
    one = FleetWatch("redis://127.0.0.1:1/0")
    one._leads.extend(leads)
    return one


def test_times_are_the_machines_where_nobody_set_redis(tmp_path: Path) -> None:
    """However the watch's own readings were: nothing but rounding is allowed."""
    log = tmp_path / "worker.log"
    log.write_text("own_clock_off seconds=3.0\n")

    assert watch((10.0, 0.3)).seen([log]) == FleetTime(ROUNDING_SECONDS)
    assert FleetTime().at(10.0) == 10.0


def test_times_are_the_fleets_where_redis_was_set(tmp_path: Path) -> None:
    """And clocks may differ by what bridges moved them, and by how old their readings may be."""
    log = tmp_path / "worker.log"
    log.write_text(
        "[error] redis_clock_stepped doubt=0.002 hint='as before' seconds=90.0\nredis_clock_stepped doubt=0.01\n"
    )
    seen = watch((10.0, 0.0), (10.2, -0.06), (10.4, -0.05)).seen([log])

    assert seen.allowance == pytest.approx(ROUNDING_SECONDS + RETURN_RATE * KEPT_SECONDS + 0.012)
    assert [seen.at(moment) - moment for moment in (9.0, 10.1, 10.3, 99.0)] == pytest.approx([0, -0.06, -0.05, -0.05])
