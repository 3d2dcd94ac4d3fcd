"""The doctor at a whole fleet: a healthy one has nothing of weight, and a fault that is planted is found."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.clocks import WallClock
from support.fleet import TestBed
from support.module_server import ModuleServer
from support.waiting import wait_until_answered
from support.worker_process import WorkerProcess
from toolfleet import ToolFleet
from toolfleet_cli.doctor.check import Patient
from toolfleet_cli.doctor.examination import CHECKS, Examination, examine
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations import worker_probes


@pytest.fixture(scope="module")
def ward(owls: ModuleServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    """A fleet on a Redis of its own, whose module is known."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield TestBed(url, (owls,), tmp_path_factory.mktemp("logs"), {})


@pytest.fixture(scope="module")
def well(ward: TestBed) -> Iterator[WorkerProcess]:
    """A worker whose manifests have been read."""

    async def refresh() -> None:
        async with ToolFleet(settings=ward.settings) as fleet:

            async def is_known() -> bool:
                return (await fleet.modules.refresh())["owls"].ok

            await wait_until_answered(is_known, "the manifest is read")

    with ward.worker() as worker:
        asyncio.run(refresh())
        yield worker


def examined(settings: Settings) -> Examination:
    return asyncio.run(examine(Patient(settings, environ={}, canary_seconds=10), CHECKS))


def weighty(found: Examination) -> list[str]:
    return [finding.what for _, finding in found.findings if finding.weighs]


def test_a_healthy_fleet_has_nothing_of_weight(ward: TestBed, well: WorkerProcess) -> None:
    """All checks have looked, and each queue has answered its canary."""
    found = examined(ward.settings)

    assert (weighty(found), found.exit_code) == ([], 0)
    assert {one["queue"]: one["fate"] for one in found.facts["canary"]["canaries"]} == {
        "toolfleet.control": "answered",
        "tools.owls": "answered",
    }


def test_a_worker_that_is_alive_and_deaf_is_found(ward: TestBed, well: WorkerProcess) -> None:
    """It is stopped, and what it noted last still says that it lives."""
    with ward.worker() as frozen:
        frozen.send_signal(signal.SIGSTOP)
        try:
            found = weighty(examined(ward.settings))
        finally:
            frozen.send_signal(signal.SIGCONT)

    deaf = [what for what in found if "says that it lives" in what]
    assert len(deaf) == 1
    assert f":{frozen.process.pid} " in deaf[0]


@pytest.mark.slow
def test_a_worker_with_a_wrong_clock_is_found(ward: TestBed, well: WorkerProcess, tmp_path: Path) -> None:
    """By what it says each second of its machine."""
    clock = WallClock(tmp_path, ahead=90)
    with ward.worker(env=clock.env) as wrong:
        found = weighty(examined(ward.settings))

    assert [what for what in found if what.startswith("The clock of worker") and f":{wrong.process.pid} " in what]


def test_a_queue_without_a_worker_and_a_module_that_is_away_are_found(ward: TestBed, well: WorkerProcess) -> None:
    """A module that only these settings name has no worker."""
    services = {**ward.settings.module_services, "finches": "http://127.0.0.1:1"}
    found = weighty(examined(ward.settings.model_copy(update={"module_services": services})))

    assert "No worker takes calls of finches (lane fast)." in found
    assert [what for what in found if "no manifest of module finches" in what]


def test_a_worker_that_knows_no_canaries_is_older(
    ward: TestBed, well: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drops what it does not know, goes on, and the doctor says why it has no answer."""
    monkeypatch.setattr(worker_probes, "CANARY", "toolfleet.of_a_later_version")
    settings = ward.settings
    flights = asyncio.run(worker_probes.fly(settings, {"tools.owls": "owls"}, seconds=5))
    monkeypatch.undo()

    assert [one.fate for one in flights] == ["unknown"]
    assert [one.fate for one in asyncio.run(worker_probes.fly(settings, {"tools.owls": "owls"}, seconds=10))] == [
        "answered"
    ]
