"""The example modules, as apps in this process and as real servers."""

import re
import runpy
import socket
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette

from support.programs.fork_server import Process, end, start
from support.servers.plain_http import PLAIN
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from toolfleet_cli.local.modules import data_environment

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
_RUNNING = re.compile(r"Uvicorn running on (http://\S+)")


@dataclass(frozen=True)
class Module:
    """A module behind HTTP: `await module("list_files", user_id="ada")` is the reply's JSON."""

    name: str
    url: str
    app: Starlette | None = None
    process: Process | None = None

    def client(self, timeout: float = 30) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app) if self.app else None
        return httpx.AsyncClient(base_url=self.url, transport=transport, timeout=timeout, trust_env=False, verify=PLAIN)

    async def get(self, path: str) -> Any:
        async with self.client() as client:
            return (await client.get(path)).raise_for_status().json()

    async def post(self, tool: str, *, user_id: str | None = None, **arguments: Any) -> httpx.Response:
        body = {"tool_name": f"{self.name}.{tool}", "arguments": arguments, "user_id": user_id}
        async with self.client() as client:
            return await client.post("/execute", json=body)

    async def __call__(self, tool: str, *, user_id: str | None = None, **arguments: Any) -> dict[str, Any]:
        reply: dict[str, Any] = (await self.post(tool, user_id=user_id, **arguments)).raise_for_status().json()
        assert set(reply) - {"effect_state"} == {"tool_name", "success", "result", "error"}
        return reply


def in_process(name: str, app: Starlette) -> Module:
    return Module(name, "http://module.test", app)


@contextmanager
def serving(name: str, app: Starlette) -> Generator[Module]:
    """Serve the app from a thread, over HTTP as any other: it is there at once, for tests that need no process of its own."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, log_level="critical", timeout_graceful_shutdown=5))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            wait_until_sync(lambda: server.started or not thread.is_alive(), f"{name} runs")
            assert server.started
            yield Module(name, f"http://127.0.0.1:{port}")
        finally:
            server.should_exit = True
            thread.join(2 * PATIENCE_SECONDS)
            assert not thread.is_alive()


@contextmanager
def serving_here(name: str, folder: Path, **env: object) -> Generator[Module]:
    """Serve the module as its `main` makes it, with its data in `folder`, from this process: it is not hidden from others."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in {**data_environment(folder), **env}.items():
            patch.setenv(variable, str(value))
        patch.setattr("toolfleet.sdk.hide_process", lambda: None)
        app = runpy.run_module(f"modules.{name}.main")["app"]
    with serving(name, app) as module:
        yield module


@contextmanager
def running(name: str, folder: Path, **env: object) -> Generator[Module]:
    """Start the module as `toolfleet up` does, on a port that the system chooses."""
    with running_copy(
        name, folder, EXAMPLES, Path(sys.executable), {key: str(value) for key, value in env.items()}
    ) as module:
        yield module


@contextmanager
def running_copy(
    name: str, folder: Path, examples: Path, python: Path, env: Mapping[str, str] | None = None
) -> Generator[Module]:
    """Start a copy of the module, with its data in `folder` and with that Python."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = start(
            [python, "-m", "uvicorn", f"modules.{name}.main:app", "--host", "127.0.0.1", "--port", "0"],
            env={**data_environment(folder), **(env or {})},
            cwd=examples,
            output=output,
        )
        try:
            wait_until_sync(
                lambda: _RUNNING.search(log.read_text()) or process.poll() is not None,
                f"{name} runs",
                seconds=3 * PATIENCE_SECONDS,
            )
            found = _RUNNING.search(log.read_text())
            assert found, log.read_text()
            yield Module(name, found[1], process=process)
        finally:
            end(process, patience_seconds=5)
