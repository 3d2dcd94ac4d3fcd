"""`toolfleet worker`, `beat` and `flower`: what a container or a service manager starts."""

import json
import signal
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from support.module_server import ModuleServer
from support.servers.plain_http import PLAIN
from support.up import COMMAND
from support.waiting import wait_until_sync
from toolfleet_cli.local.redis_server import held_port
from toolfleet_modules.hosts.child_process import spawn, stop


@pytest.fixture
def env(redis_url: str, owls: ModuleServer) -> dict[str, str]:
    services = {"TOOLFLEET_MODULE_SERVICES": json.dumps({"owls": owls.url}), "TOOLFLEET_SLOW_MODULES": "owls"}
    return {"TOOLFLEET_REDIS_URL": redis_url, "PYTHONUNBUFFERED": "1", **services}


@contextmanager
def running(
    folder: Path, env: Mapping[str, str], *words: str, ready: str
) -> Generator[tuple[subprocess.Popen[bytes], Path]]:
    """The command, from when it has said `ready`, and its log."""
    log = folder / "log"
    with log.open("wb") as output:
        process = spawn([*COMMAND, *words], env=env, cwd=folder, output=output)
    try:
        wait_until_sync(lambda: ready in log.read_text() or process.poll() is not None, "it is ready")
        assert process.poll() is None, log.read_text()
        yield process, log
    finally:
        stop(process, patience_seconds=20)


def test_a_worker_serves_its_lane_until_it_is_told_to_end(tmp_path: Path, env: dict[str, str]) -> None:
    """It is the process that was started, so SIGTERM reaches it, and it ends well; the environment says which lane."""
    env = {**env, "TOOLFLEET_LANE": "slow"}
    command = ("worker", "--concurrency", "7")
    with running(tmp_path, env, *command, ready="toolfleet worker ready lane=slow\n") as (process, log):
        assert "concurrency: 7 " in log.read_text()
        assert ".> tools.owls" in log.read_text()
        process.send_signal(signal.SIGTERM)

        assert process.wait() == 0


def test_flower_takes_its_own_variables(tmp_path: Path, env: dict[str, str]) -> None:
    """As in the compose file: whoever has the password may look, and nobody may do anything."""
    own = {"FLOWER_BASIC_AUTH": "ada:secret", "FLOWER_READ_ONLY": "true"}
    ada = httpx.BasicAuth("ada", "secret")
    with held_port() as port, running(tmp_path, {**env, **own}, "flower", "--port", str(port), ready="Visit me"):
        url = f"http://127.0.0.1:{port}"

        assert httpx.get(f"{url}/healthcheck", verify=PLAIN).text == "OK"
        assert httpx.get(f"{url}/workers", verify=PLAIN).status_code == 401
        assert httpx.get(f"{url}/workers", auth=ada, verify=PLAIN).status_code == 200
        assert httpx.post(f"{url}/api/task/revoke/x", auth=ada, verify=PLAIN).status_code == 403
