"""`toolfleet up` ends: in order when asked, fast when asked twice, and completely even when it is killed."""

import json
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from redis import Redis

from support.command import call
from support.module_server import ModuleServer, holding, serve
from support.owls import make_module
from support.processes import is_gone
from support.up import Up, publish, starting, up
from support.waiting import wait_until_sync
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.config.run_file import find_run_file


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


def nobody_lives_in(folder: Path) -> bool:
    """Whether no process has its working folder there, as all that `up` starts here have."""
    living = [process for process in psutil.process_iter(["cwd"]) if folder in Path(process.info["cwd"] or "/").parents]
    return all(is_gone(process.pid) for process in living)


def wait_until_gone(folder: Path) -> None:
    wait_until_sync(lambda: nobody_lives_in(folder), f"all processes in {folder} are gone")


def test_a_signal_ends_it_in_order(fleet: Up, naps: ModuleServer) -> None:
    """A call that runs comes to its end, its caller gets the result, and then no process and no run file is left.

    Where no module is slow there was no worker for the slow lane.
    """
    with ThreadPoolExecutor(1) as threads, holding(naps, "nap") as release:
        nap = threads.submit(call, "owls.nap", "seconds:=0", cwd=fleet.folder)
        wait_until_sync(lambda: naps.running, "the module has the call")
        fleet.process.send_signal(signal.SIGTERM)
        wait_until_sync(lambda: "Warm shutdown" in fleet.log("worker-fast"), "the worker ends")
        release()

        assert nap.result()["result"] == "awake"
    assert fleet.wait() == 0
    wait_until_gone(fleet.folder)
    assert find_run_file(fleet.folder) is None
    assert not (fleet.folder / ".toolfleet" / "run.json").exists()
    assert fleet.said().endswith("All has ended.\n")
    assert "worker-slow" not in fleet.said()


@pytest.mark.slow
def test_a_second_signal_ends_it_fast(fleet: Up, naps: ModuleServer) -> None:
    """Ctrl-C, twice: what still runs then goes back into its queue, and is there for the next fleet in this folder."""
    with publish("owls.nap", "seconds:=60", cwd=fleet.folder):
        wait_until_sync(lambda: naps.running, "the module has the call")
        fleet.process.send_signal(signal.SIGINT)
        wait_until_sync(lambda: "Warm shutdown" in fleet.log("worker-fast"), "the worker ends")
        fleet.process.send_signal(signal.SIGINT)

        assert fleet.wait() == 0
    wait_until_gone(fleet.folder)
    with redis_server(fleet.folder / ".toolfleet" / "redis") as url, Redis.from_url(url) as redis:
        assert redis.llen("tools.owls") == 1


def test_a_signal_during_the_start_ends_it_too(naps: ModuleServer, tmp_path: Path) -> None:
    """What has been started by then ends; the run file never appears."""
    with starting(tmp_path, {"TOOLFLEET_MODULE_SERVICES": json.dumps({"owls": naps.url})}) as fleet:
        wait_until_sync(lambda: "redis is ready" in fleet.said(), "Redis is there")
        assert not nobody_lives_in(tmp_path)
        fleet.process.send_signal(signal.SIGTERM)

        assert fleet.wait() == 0
    assert fleet.said().endswith("All has ended.\n")
    assert not (tmp_path / ".toolfleet" / "run.json").exists()
    wait_until_gone(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Redis, a child of the dead, may live on for a while")
@pytest.mark.slow
def test_a_killed_one_leaves_nothing_behind(fleet: Up, naps: ModuleServer) -> None:
    """Kill -9: its children end, and another fleet can start in the folder at once, with its Redis where it was.

    Also for whoever has set the address of it meanwhile: it is none that was given to this one.
    """
    killed, redis = fleet.processes(), fleet.run_file().settings["redis_url"]
    fleet.process.kill()
    fleet.wait()
    env = {"TOOLFLEET_MODULE_SERVICES": json.dumps({"owls": naps.url}), "TOOLFLEET_REDIS_URL": str(redis)}
    with up(fleet.folder, env) as another:
        assert another.run_file().settings["redis_url"] == redis
        assert call("owls.echo", "kind=barn", cwd=another.folder)["result"] == {"kind": "barn"}

        wait_until_sync(lambda: all(is_gone(pid) for pid in killed), f"all are gone of {killed}")
