"""The gateway of `toolfleet up`: it is there, comes back, and keeps its address and its key."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.command import run
from support.module_server import ModuleServer, serve
from support.owls import make_module
from support.servers.plain_http import PLAIN
from support.up import Up, up
from support.waiting import wait_until_sync
from toolfleet_cli.local.tcp_ports import held_port
from toolfleet_registry.config.gateway_settings import DEFAULT_PORT


@pytest.fixture(scope="module")
def owls() -> Iterator[ModuleServer]:
    """A module of our own, so that `up` has less to start."""
    with serve(make_module("owls")) as module:
        yield module


def key_of(fleet: Up) -> str:
    return (fleet.folder / ".toolfleet" / "gateway-key").read_text().strip()


def url_of(fleet: Up) -> str:
    url = fleet.run_file().gateway_url
    assert url is not None
    return url


def answers(fleet: Up) -> bool:
    """Whether its gateway knows its key."""
    try:
        headers = {"authorization": f"Bearer {key_of(fleet)}"}
        return httpx.get(f"{url_of(fleet)}/tools", headers=headers, verify=PLAIN).status_code == 200
    except httpx.HTTPError:
        return False


def check_that_the_key_is_kept_secret(fleet: Up) -> None:
    key, folder = key_of(fleet), fleet.folder / ".toolfleet"
    assert (folder / "gateway-key").stat().st_mode & 0o777 == 0o600
    for path in (folder / "run.json", *(folder / "logs").glob("*.log")):
        assert key not in path.read_text(errors="replace"), path


def check_that_it_comes_back(fleet: Up) -> None:
    before = fleet.run_file().processes["gateway"].pid
    os.kill(before, signal.SIGKILL)
    wait_until_sync(lambda: fleet.run_file().processes["gateway"].pid != before and answers(fleet), "it is back")


def answers_at(url: str) -> bool:
    try:
        return httpx.get(f"{url}/livez", verify=PLAIN).status_code == 200
    except httpx.HTTPError:
        return False


def test_a_fleet_has_a_gateway(owls: ModuleServer, tmp_path: Path) -> None:
    """It takes the key that `up` prints, which no log has.

    The gateway comes back when it is killed, ends with the fleet, and the next fleet in the folder has it where it was, with its key.
    """
    env = {"TOOLFLEET_MODULE_SERVICES": json.dumps({"owls": owls.url})}
    # Not at the usual port, which any other fleet of this machine would take while there is none here.
    with held_port(DEFAULT_PORT), up(tmp_path, env) as fleet:
        key, url = key_of(fleet), url_of(fleet)
        assert f"Gateway {url}\n" in fleet.said()
        assert f"Port {DEFAULT_PORT} is another program's: the gateway uses {url.rpartition(':')[2]}." in fleet.said()
        assert (tmp_path / ".toolfleet" / "gateway-url").read_text() == f"{url}\n"
        assert f"Key     {key}\n" in fleet.said()
        assert answers(fleet)
        assert "gateway" in run("logs", cwd=tmp_path).out.split()
        check_that_it_comes_back(fleet)
        check_that_the_key_is_kept_secret(fleet)
        fleet.process.send_signal(signal.SIGTERM)
        assert fleet.wait() == 0
        assert not answers_at(url)
    with up(tmp_path, env) as another:
        assert (key_of(another), url_of(another)) == (key, url)
        assert answers(another)


def test_a_port_that_somebody_has_is_not_taken(owls: ModuleServer, tmp_path: Path) -> None:
    """Where the settings name one that is another program's, `up` says so, and starts no workers."""
    taken = owls.url.rpartition(":")[2]
    env = {"TOOLFLEET_MODULE_SERVICES": json.dumps({"owls": owls.url}), "TOOLFLEET_GATEWAY_PORT": taken}
    ended = run("up", cwd=tmp_path, env=env)

    assert ended.code == 2
    assert ended.err.endswith(f"Port {taken}, where the gateway is to be, is another program's.\n")


def test_what_the_key_asks_for_is_approved_at_the_command_line(owls: ModuleServer, tmp_path: Path) -> None:
    """Over HTTP the key that has asked does not approve its call, whichever user it names; the person at the machine does, without another key."""
    middleware = {"name": "human_in_the_loop", "approve_tools": ["owls.*"]}
    env = {
        "TOOLFLEET_MODULE_SERVICES": json.dumps({"owls": owls.url}),
        "TOOLFLEET_AGENTS": json.dumps({"production": {"middleware": [middleware]}}),
        "TOOLFLEET_DEFAULT_AGENT": "production",
    }
    body = {"tool_name": "owls.echo", "arguments": {"text": "hoo", "n": 1}}
    with up(tmp_path, env) as fleet:
        headers = {"authorization": f"Bearer {key_of(fleet)}"}
        with httpx.Client(base_url=url_of(fleet), headers=headers, verify=PLAIN) as client:
            for named in ({}, {"user_id": "ada"}):
                asked = client.post("/calls", json={**body, **named})
                assert asked.status_code == 202, asked.text
                call_id = asked.json()["call_id"]
                refused = client.post(f"/approvals/{call_id}", json={"decision": "approve"})
                assert (refused.status_code, "self_approval" in refused.text) == (403, True), refused.text
                same_key = {**env, "TOOLFLEET_GATEWAY_KEY": key_of(fleet)}
                over_http = run("approvals", "approve", call_id, "--url", url_of(fleet), cwd=tmp_path, env=same_key)
                assert (over_http.code, "self_approval" in over_http.err) == (1, True), over_http.err

                approved = run("approvals", "approve", call_id, cwd=tmp_path, env=env)
                assert approved.code == 0, approved.err
                ended = client.get(f"/calls/{call_id}", headers={"prefer": "wait=20"}).json()
                assert ended["result"]["success"], ended
