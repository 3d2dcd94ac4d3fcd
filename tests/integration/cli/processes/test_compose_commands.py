"""The commands of the compose file, with the environment that it gives them where nothing is set outside: each one stays up."""

import os
import re
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from support.servers.plain_http import PLAIN
from support.waiting import wait_until_sync
from toolfleet_cli.local.redis_server import held_port
from toolfleet_modules.hosts.child_process import spawn, stop

_COMPOSE = yaml.safe_load((Path(__file__).parents[4] / "docker-compose.yml").read_text())["services"]
_OWN_PORTS = {"flower": "5555", "gateway": "8484"}
_PYTHON = {"python": [sys.executable], "toolfleet": [sys.executable, "-m", "toolfleet_cli"]}


def environment_of(service: dict[str, Any], redis_url: str, folder: Path) -> dict[str, str]:
    """What the container has, with our Redis and temporary folder instead of its own."""
    values = {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for name, value in service["environment"].items()}
    others = {name: value for name, value in os.environ.items() if not name.startswith(("TOOLFLEET_", "FLOWER_"))}
    return {**others, **values, "TOOLFLEET_REDIS_URL": redis_url, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize("name", ["worker-fast", "beat", "flower", "gateway"])
def test_it_stays_up_and_is_healthy(name: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own health check, and without restarts; Flower makes a login for this run, and a gateway waits for its first key."""
    service, log = _COMPOSE[name], tmp_path / "log"
    monkeypatch.chdir(tmp_path)
    for variable in os.environ:
        if variable.startswith(("TOOLFLEET_", "FLOWER_")):
            monkeypatch.delenv(variable)
    env = environment_of(service, redis_url, tmp_path)
    with held_port() as held:
        stays_up(name, service, env, log, str(held))


def stays_up(name: str, service: dict[str, Any], env: dict[str, str], log: Path, port: str) -> None:
    """Run the command of a service until it is healthy."""
    command = [*_PYTHON["toolfleet"], *service["command"][1:], *(["--port", port] if name in _OWN_PORTS else [])]
    test = [word.replace(f":{_OWN_PORTS.get(name, 'none')}/", f":{port}/") for word in service["healthcheck"]["test"]]
    check = [*_PYTHON[test[1]], *test[2:]]
    with log.open("wb") as output:
        process = spawn(command, env=env, output=output)
    try:

        def is_healthy() -> bool:
            assert process.poll() is None, log.read_text()
            return subprocess.run(check, env=env, capture_output=True, check=False).returncode == 0

        wait_until_sync(is_healthy, f"{name} is healthy")
        said = log.read_text()
        if name == "beat":  # it needs nothing to write to
            assert [path for path in log.parent.iterdir() if path.is_file()] == [log]
        if name == "gateway":
            assert "All requests are refused until `toolfleet keys create` has made a key." in said
        if name == "flower":
            found = re.search(r"the name and password of Flower are (\S+)", said)
            assert found is not None, said
            login = {"authorization": f"Basic {b64encode(found[1].encode()).decode()}"}
            asked = [
                httpx.get(f"http://127.0.0.1:{port}/", headers=headers, verify=PLAIN).status_code
                for headers in ({}, login)
            ]
            assert asked == [401, 200]
    finally:
        stop(process, patience_seconds=30)
