"""`toolfleet up` ends: in order when asked, fast when asked twice, and completely even when it is killed."""

import json
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from redis import Redis

from support.module_server import ModuleServer, serve
from support.owls import make_module
from support.processes import is_gone
from support.up import Up, call, toolfleet, up
from support.waiting import wait_until_sync
from toolfleet_registry.runfile import find_run_file
from toolfleet_workers.redis_server import redis_server


@pytest.fixture(scope="module")
def naps() -> Iterator[ModuleServer]:
    """A module of our own, so that `up` has less to start."""
    with serve(make_module("owls")) as module:
        yield module


@pytest.fixture
def fleet(naps: ModuleServer, tmp_path: Path) -> Iterator[Up]:
    naps.forget()
    with up(tmp_path, {"TOOLFLEET_MODULE_SERVICES": json.dumps({"owls": naps.url})}) as running:
        yield running


def wait_until_gone(pids: dict[int, str], *, seconds: float = 30) -> None:
    wait_until_sync(
        lambda: all(is_gone(pid) for pid in pids),
        f"all processes are gone, of {pids}",
        seconds=seconds,
    )


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(fleet: Up, naps: ModuleServer, signum: signal.Signals) -> None:
    """A call that runs comes to its end, its caller gets the result, and then no process and no run file is left."""
    processes = fleet.processes()
    with ThreadPoolExecutor(1) as threads:
        nap = threads.submit(call, "owls.nap", "seconds:=1.5", cwd=fleet.folder)
        wait_until_sync(lambda: naps.running, "the module has the call")
        fleet.process.send_signal(signum)

        assert nap.result(60)["result"] == "awake"
    assert fleet.wait() == 0
    wait_until_gone(processes)
    assert find_run_file(fleet.folder) is None
    assert not (fleet.folder / ".toolfleet" / "run.json").exists()
    assert fleet.said().endswith("All has ended.\n")


def test_a_second_signal_ends_it_fast(fleet: Up, naps: ModuleServer) -> None:
    """What still runs then goes back into its queue, and is there for the next fleet in this folder."""
    processes = fleet.processes()
    with ThreadPoolExecutor(1) as threads:
        nap = threads.submit(toolfleet, "call", "owls.nap", "seconds:=50", "--timeout", "55", cwd=fleet.folder)
        wait_until_sync(lambda: naps.running, "the module has the call")
        fleet.process.send_signal(signal.SIGINT)
        wait_until_sync(lambda: "Warm shutdown" in fleet.log("worker-fast"), "the worker ends")
        fleet.process.send_signal(signal.SIGINT)

        assert fleet.wait(seconds=30) == 0
        wait_until_gone(processes)
        with redis_server(fleet.folder / ".toolfleet" / "redis") as url, Redis.from_url(url) as redis:
            assert redis.llen("tools.owls") + redis.hlen("unacked") == 1
        nap.cancel()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Redis, a child of the dead, may live on for a while")
def test_a_killed_one_leaves_nothing_behind(fleet: Up, naps: ModuleServer) -> None:
    """Kill -9: its children end, their children too, and another fleet can start in the folder at once."""
    processes = fleet.processes()
    fleet.process.kill()
    with up(fleet.folder, {"TOOLFLEET_MODULE_SERVICES": json.dumps({"owls": naps.url})}) as another:
        assert call("owls.echo", "kind=barn", cwd=another.folder)["result"] == {"kind": "barn"}

        wait_until_gone(processes)
