"""A client that is generated from the gateway's document, in TypeScript, against a real fleet."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from support.documents import programs
from support.fleet import TestBed
from support.gateways.gateway_process import Gateway, gateway_process
from support.module_server import ModuleServer
from support.worker_process import WorkerProcess

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).parent / "typescript"
FOLDER = ROOT / ".cache" / "clients" / "typescript"
PROGRAM = programs("docs/guides/gateway.md")["typescript"]
_OLDEST_NODE = 20
_INSTALL_SECONDS, _SECONDS = 120, 90
_TAMPERED = "EINTEGRITY"

pytestmark = [pytest.mark.clients, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def installed() -> Path:
    """Where the client's packages are, by the lock file's digests."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js and npm are not installed")
    version = _run(["node", "--version"], Path.cwd()).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0]) < _OLDEST_NODE:
        pytest.skip(f"Node.js is too old: {version}")
    shutil.copytree(SOURCE, FOLDER, dirs_exist_ok=True)
    (FOLDER / "client.ts").write_text(PROGRAM)
    try:
        done = _run(["npm", "ci", "--ignore-scripts", "--prefer-offline"], FOLDER, seconds=_INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm has not brought the packages in {_INSTALL_SECONDS} s")
    assert _TAMPERED not in done.stderr, done.stderr
    if done.returncode != 0:
        pytest.skip(f"npm cannot bring the packages: {done.stderr.strip()[:200]}")
    return FOLDER


def test_a_generated_client_calls_follows_polls_and_cancels(
    installed: Path, bed: TestBed, owls: ModuleServer, worker: WorkerProcess
) -> None:
    """Its types come from the served document, the compiler takes the program in its strictest mode, and it does all of it."""
    owls.forget()
    with gateway_process(bed) as gateway:
        _generate(installed, gateway)
        compiled = _run([installed / "node_modules" / ".bin" / "tsc"], installed)
        assert compiled.returncode == 0, compiled.stdout
        env = {"URL": gateway.url, "KEY": gateway.key}
        ran = _run(["node", "dist/client.js"], installed, env=env)

    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert (said["called"]["success"], said["called"]["result"]) == (True, {"text": "hoo"})
    assert said["again"] == said["called"]
    assert said["refused"].startswith("Error: unknown_tool: ")
    assert (said["followed"], said["polled"], said["cancelled"]) == ("awake", "awake", "cancelled")
    assert said["tools"] > 1
    assert len(owls.calls("echo")) == 1


def _generate(folder: Path, gateway: Gateway) -> None:
    answer = httpx.get(f"{gateway.url}/openapi.json", trust_env=False)
    (folder / "openapi.json").write_text(answer.text)
    generator = folder / "node_modules" / ".bin" / "openapi-typescript"
    options = ["openapi.json", "--default-non-nullable=false", "--output", "gateway.d.ts"]
    done = _run([generator, *options], folder)
    assert done.returncode == 0, done.stderr


def _run(
    command: Sequence[str | Path], folder: Path, *, env: dict[str, str] | None = None, seconds: float = _SECONDS
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
