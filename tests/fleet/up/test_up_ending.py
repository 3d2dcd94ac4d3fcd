"""`toolfleet up` ends: in order when asked, fast when asked twice, and completely even when it is killed.

Its gateway comes back when it is killed, and the next fleet in the folder has it where it was, with its key.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from redis import Redis

from support.command import call, run
from support.module_server import ModuleServer, holding, serve
from support.owls import make_module
from support.processes import is_gone
from support.servers.plain_http import PLAIN
from support.up import Up, publish, starting, up
from support.waiting import wait_until_sync
from toolfleet_cli.local.redis_server import redis_server
from toolfleet_registry.config.run_file import find_run_file


@pytest.fixture(scope="module")
def naps() -> Iterator[ModuleServer]:
    """A module of our own, so that `up` has less to start."""
    with serve(make_module("owls")) as module:
        yield module


@pytest.fixture(scope="module")
def env(naps: ModuleServer) -> dict[str, str]:
    """What `up` is started with: the module, and an agent whose calls of one tool a person approves."""
    approving = {"name": "human_in_the_loop", "approve_tools": ["owls.echo"]}
    return {
        "TOOLFLEET_MODULE_SERVICES": json.dumps({"owls": naps.url}),
        "TOOLFLEET_AGENTS": json.dumps({"production": {"middleware": [approving]}}),
        "TOOLFLEET_DEFAULT_AGENT": "production",
    }


@dataclass(frozen=True)
class Life:
    """What was seen of a fleet that SIGTERM has ended while a call ran."""

    folder: Path
    said: str
    code: int
    nap: dict[str, Any]
    left: list[object]
    key: str
    url: str
    kept_url: str
    taken_port: int


@pytest.fixture(scope="module")
def ended(naps: ModuleServer, env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Life:
    folder, taken = tmp_path_factory.mktemp("home"), port_of(naps)
    with up(folder, env, usual_port=taken) as fleet:
        key, url, kept_url = key_of(fleet), url_of(fleet), (folder / ".toolfleet" / "gateway-url").read_text()
        with ThreadPoolExecutor(1) as threads, holding(naps, "nap") as release:
            nap = threads.submit(call, "owls.nap", "seconds:=0", cwd=folder)
            wait_until_sync(lambda: naps.running, "the module has the call")
            fleet.process.send_signal(signal.SIGTERM)
            wait_until_sync(lambda: "Warm shutdown" in fleet.log("worker-fast"), "the worker ends")
            release()
        code = fleet.wait()
        wait_until_gone(folder)
        left = [find_run_file(folder), *(folder / ".toolfleet").glob("run.json"), url if answers_at(url) else None]
        return Life(folder, fleet.said(), code, nap.result(), [*filter(None, left)], key, url, kept_url, taken)


@pytest.fixture(scope="module")
def another(ended: Life, env: dict[str, str]) -> Iterator[Up]:
    """The next fleet in its folder. No test ends it."""
    with up(ended.folder, env) as running:
        yield running


@pytest.fixture
def fleet(naps: ModuleServer, tmp_path: Path) -> Iterator[Up]:
    """One for a test that ends it."""
    naps.forget()
    with up(tmp_path, {"TOOLFLEET_MODULE_SERVICES": json.dumps({"owls": naps.url})}) as running:
        yield running


def key_of(fleet: Up) -> str:
    return (fleet.folder / ".toolfleet" / "gateway-key").read_text().strip()


def url_of(fleet: Up) -> str:
    url = fleet.run_file().gateway_url
    assert url is not None
    return url


def port_of(module: ModuleServer) -> int:
    return int(module.url.rpartition(":")[2])


def answers(fleet: Up) -> bool:
    """Whether its gateway knows its key."""
    try:
        headers = {"authorization": f"Bearer {key_of(fleet)}"}
        return httpx.get(f"{url_of(fleet)}/tools", headers=headers, verify=PLAIN).status_code == 200
    except httpx.HTTPError:
        return False


def answers_at(url: str) -> bool:
    try:
        return httpx.get(f"{url}/livez", verify=PLAIN).status_code == 200
    except httpx.HTTPError:
        return False


def nobody_lives_in(folder: Path) -> bool:
    """Whether no process has its working folder there, as all that `up` starts here have."""
    living = [process for process in psutil.process_iter(["cwd"]) if folder in Path(process.info["cwd"] or "/").parents]
    return all(is_gone(process.pid) for process in living)


def wait_until_gone(folder: Path) -> None:
    wait_until_sync(lambda: nobody_lives_in(folder), f"all processes in {folder} are gone")


def test_a_signal_ends_it_in_order(ended: Life) -> None:
    """A call that runs comes to its end, its caller gets the result, and then no process and no run file is left.

    Where no module is slow there was no worker for the slow lane.
    """
    assert (ended.nap["result"], ended.code, ended.left) == ("awake", 0, [])
    assert ended.said.endswith("All has ended.\n")
    assert "worker-slow" not in ended.said


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


def test_a_fleet_has_a_gateway(ended: Life) -> None:
    """It takes the key that `up` prints; where the usual port is taken, another one, which `up` prints and a file keeps."""
    assert f"Gateway {ended.url}\n" in ended.said
    port = ended.url.rpartition(":")[2]
    assert f"Port {ended.taken_port} is another program's: the gateway uses {port}." in ended.said
    assert ended.kept_url == f"{ended.url}\n"
    assert f"Key     {ended.key}\n" in ended.said


def test_it_says_once_that_calls_are_not_signed(ended: Life) -> None:
    """Whoever runs a fleet without a key knows it; none of its processes says it again, to its end."""
    warning = "Calls are not signed"
    files = [path for path in (ended.folder / ".toolfleet").rglob("*") if path.is_file()]

    assert ended.said.count(warning) == 1
    assert [path for path in files if warning.encode() in path.read_bytes()] == []


def test_the_next_fleet_in_the_folder_has_it_where_it_was(ended: Life, another: Up) -> None:
    """With its key, which only the owner of its file can read, and no log has."""
    assert (key_of(another), url_of(another)) == (ended.key, ended.url)
    assert answers(another)
    assert "gateway" in run("logs", cwd=another.folder).out.split()
    key, folder = ended.key, another.folder / ".toolfleet"
    assert (folder / "gateway-key").stat().st_mode & 0o777 == 0o600
    for path in (folder / "run.json", *(folder / "logs").glob("*.log")):
        assert key not in path.read_text(errors="replace"), path


def test_what_the_key_asks_for_is_approved_at_the_command_line(another: Up, env: dict[str, str]) -> None:
    """Over HTTP the key that has asked does not approve its call, whichever user it names; the person at the machine does, without another key."""
    body = {"tool_name": "owls.echo", "arguments": {"text": "hoo", "n": 1}}
    folder, url = another.folder, url_of(another)
    headers = {"authorization": f"Bearer {key_of(another)}"}
    with httpx.Client(base_url=url, headers=headers, verify=PLAIN) as client:
        for named in ({}, {"user_id": "ada"}):
            asked = client.post("/calls", json={**body, **named})
            assert asked.status_code == 202, asked.text
            call_id = asked.json()["call_id"]
            refused = client.post(f"/approvals/{call_id}", json={"decision": "approve"})
            assert (refused.status_code, "self_approval" in refused.text) == (403, True), refused.text
            same_key = {**env, "TOOLFLEET_GATEWAY_KEY": key_of(another)}
            over_http = run("approvals", "approve", call_id, "--url", url, cwd=folder, env=same_key)
            assert (over_http.code, "self_approval" in over_http.err) == (1, True), over_http.err

            approved = run("approvals", "approve", call_id, cwd=folder, env=env)
            assert approved.code == 0, approved.err
            done = client.get(f"/calls/{call_id}", headers={"prefer": "wait=20"}).json()
            assert done["result"]["success"], done


def test_a_gateway_that_is_killed_comes_back(another: Up) -> None:
    before = another.run_file().processes["gateway"].pid
    os.kill(before, signal.SIGKILL)
    wait_until_sync(lambda: another.run_file().processes["gateway"].pid != before and answers(another), "it is back")


def test_a_port_that_somebody_has_is_not_taken(naps: ModuleServer, env: dict[str, str], tmp_path: Path) -> None:
    """Where the settings name one that is another program's, `up` says so, and starts no workers."""
    taken = port_of(naps)
    refused = run("up", cwd=tmp_path, env={**env, "TOOLFLEET_GATEWAY_PORT": str(taken)})

    assert refused.code == 2
    assert refused.err.endswith(f"Port {taken}, where the gateway is to be, is another program's.\n")
