"""The benchmark is complete: each system can be run, and each peer's environment is pinned."""

import re
from pathlib import Path

import pytest
from benchmarks.reporting import targets
from benchmarks.reporting.results import Results
from benchmarks.systems import SYSTEMS, System

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
