"""Serves modules that a test's fleet can call, from this process or from a child."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

from toolfleet_cli.local.tcp_ports import LOOPBACK, held_port
from toolfleet_modules.hosts.child_process import spawn, stop
from toolfleet_modules.sdk.module import Module
from toolfleet_registry.errors import FleetError, SettingsError

READY_SECONDS = 60.0
"""For a process or a server to be ready, perhaps on a small and busy machine."""

_STOP_SECONDS = 10.0


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
