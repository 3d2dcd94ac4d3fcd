"""Runs a whole fleet for tests: a Redis, a worker and modules, which end with the test."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

from toolfleet import Caller, Settings, ToolCall, ToolFleet, ToolResult
from toolfleet_cli.local.environment import beat_command, environment_of, worker_command
from toolfleet_cli.local.redis_server import LOOPBACK, held_port, redis_server
from toolfleet_modules.hosts.child_process import spawn, stop
from toolfleet_modules.sdk.module import Module
from toolfleet_registry.errors import FleetError, SettingsError
from toolfleet_registry.settings import load_settings
from toolfleet_tasks.client.fleet import SyncToolFleet
from toolfleet_tasks.messages.signing import module_keys

_CALL_SECONDS = 60.0
_OWNER = Caller(permission="owner", allowed_modules="*")

READY_SECONDS = 60.0
"""The seconds that a process or a server has to become ready, perhaps on a small and busy machine."""

_STOP_SECONDS = 10.0


class RunningFleet:
    """A fleet under test: `call` for short, `sync` and `agent()` for everything that an agent can do.

    `folder` has the logs of its processes.
    """

    def __init__(self, settings: Settings, sync: SyncToolFleet, folder: Path) -> None:
        self.settings = settings
        self.sync = sync
        self.folder = folder

    def call(self, tool: str, /, **arguments: Any) -> ToolResult:
        """Run a tool as a user with all rights, within a minute."""
        return self.sync.call(ToolCall(tool_name=tool, arguments=arguments), _OWNER, timeout=_CALL_SECONDS)

    def agent(self) -> ToolFleet:
        """Return an agent for async tests: `async with fleet.agent() as agent: await agent.call(…)`."""
        return ToolFleet(settings=self.settings)


@contextmanager
def run_fleet(
    *modules: Module | str, folder: Path, with_beat: bool = False, **settings: Any
) -> Generator[RunningFleet]:
    """Start a fleet with these modules, and end all of it. From the main thread.

    A module is a `Module`, which is served from this process, or `package.main:app`, which is imported by another. Data
    and logs are in `folder`. `with_beat`: periodic work is done, as jobs need it. `settings` are named as in
    `toolfleet.toml`. Raises `SettingsError`, or `FleetError` if something does not start.
    """
    with ExitStack() as stack:
        url = stack.enter_context(redis_server(folder / "redis"))
        made = load_settings(**{"redis_url": url, **settings})
        services = dict(made.module_services)
        for module in modules:
            name = module.name if isinstance(module, Module) else module.partition(":")[0].partition(".")[0]
            if name in services:
                raise SettingsError(f"There are two modules named {name!r}.")
            services[name] = stack.enter_context(_served(module, name, folder, made))
        made = made.model_copy(update={"module_services": services})
        env = environment_of(made)
        if with_beat:
            stack.enter_context(child(beat_command(), folder / "beat.log", "maxinterval ->", env=env))
        stack.enter_context(child(worker_command("all"), folder / "worker.log", "toolfleet worker ready", env=env))
        yield RunningFleet(made, stack.enter_context(ToolFleet.sync(settings=made)), folder)


@contextmanager
def _served(module: Module | str, name: str, folder: Path, settings: Settings) -> Generator[str]:
    if isinstance(module, Module):
        with served(module) as url:
            yield url
        return
    key = module_keys(settings.signing_keys, name)
    with served_elsewhere(module, folder, {"TOOLFLEET_MODULE_KEY": key}) as url:
        yield url


@contextmanager
def served(module: Module) -> Generator[str]:
    """Serve a module from a thread of this process; yields its URL."""
    try:
        import uvicorn
    except ImportError:
        raise SettingsError("Serving a module needs uvicorn: pip install 'toolfleet[worker,sdk]'.") from None
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        server = uvicorn.Server(uvicorn.Config(module.app, log_config=None, ws="none", lifespan="on"))
        thread = threading.Thread(target=server.run, args=([sock],), name=f"toolfleet-{module.name}", daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started or not thread.is_alive(), f"the module {module.name}")
            if not server.started:
                raise FleetError(f"The module {module.name!r} did not start; what it logged says why.")
            yield f"http://{LOOPBACK}:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(_STOP_SECONDS)


@contextmanager
def served_elsewhere(app: str, folder: Path, env: dict[str, str]) -> Generator[str]:
    """Serve `package.main:app` from a process of its own, started in this one's working folder; yields its URL."""
    with held_port() as port:
        command = [sys.executable, "-m", "uvicorn", app, "--host", LOOPBACK, "--port", str(port), "--ws", "none"]
        with child(command, folder / f"{app.partition(':')[0]}.log", "Application startup complete", env=env):
            yield f"http://{LOOPBACK}:{port}"


@contextmanager
def child(command: list[str], log: Path, ready: str, *, env: dict[str, str]) -> Generator[Popen[bytes]]:
    """Run a process from when its log says `ready`. Raises `FleetError` with the log's end if it does not get there."""
    with log.open("wb") as output:
        process = spawn(command, env={"PYTHONUNBUFFERED": "1", **env}, output=output)
    try:
        wait_until(lambda: ready in _text(log) or process.poll() is not None, log.stem)
        if ready not in _text(log):
            raise FleetError(f"{log.stem} ended at its start:\n{_text(log)[-2000:]}")
        yield process
    finally:
        stop(process, patience_seconds=_STOP_SECONDS)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return once it holds. Raises `FleetError` when that takes longer than `READY_SECONDS`."""
    give_up_at = time.monotonic() + READY_SECONDS
    while not condition():
        if time.monotonic() > give_up_at:
            raise FleetError(f"{what} was not ready within {READY_SECONDS:.0f} s.")
        time.sleep(0.02)


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")
