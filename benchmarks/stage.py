"""What every system stands on: a Redis, the modules, a collector of traces and metrics, and a proxy in front of a Redis that is far away."""

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from redis import Redis

from benchmarks.environments import ROOT, python_of
from toolfleet_cli.local.redis_server import LOOPBACK, find_redis_server, free_port
from toolfleet_modules.hosts.child_process import spawn, stop

FAR_MS = 2.8  # there and back
_START_SECONDS = 20
_STOP_SECONDS = 2


@dataclass(frozen=True)
class Stage:
    """Where things are. `folder` is for logs; at `metrics_port` a worker with metrics is asked for them."""

    folder: Path
    redis_port: int
    module_port: int
    redis_pid: int
    module_pid: int
    collector_port: int
    metrics_port: int
    proxy_pid: int | None = None

    @property
    def redis_url(self) -> str:
        """For workers and producers."""
        return f"redis://{LOOPBACK}:{self.redis_port}/0"

    @property
    def module_url(self) -> str:
        """Before a module's name."""
        return f"http://{LOOPBACK}:{self.module_port}"

    @property
    def collector_url(self) -> str:
        """Where traces go."""
        return f"http://{LOOPBACK}:{self.collector_port}"

    def empty_redis(self) -> None:
        """Forget everything that the last system has left."""
        with Redis.from_url(self.redis_url) as client:
            client.flushall()

    def redis_version(self) -> str:
        """For the report."""
        with Redis.from_url(self.redis_url) as client:
            return str(client.info("server")["redis_version"])

    def most_running(self) -> int:
        """How many calls the modules had at the same time, since this was asked last."""
        connection = http.client.HTTPConnection(LOOPBACK, self.module_port, timeout=_START_SECONDS)
        connection.request("GET", "/most-running")
        most = int(json.loads(connection.getresponse().read())["most_running"])
        connection.close()
        return most


@contextmanager
def stages(folder: Path) -> Generator[tuple[Stage, Stage]]:
    """A stage, and the same with its Redis far away, for as long as we live. Raises `RuntimeError` if they do not start."""
    redis_port, far_port, module_port = free_port(), free_port(), free_port()
    with ExitStack() as stack:
        redis_pid = stack.enter_context(listening(_redis(folder, redis_port), redis_port, folder))
        module: list[str | Path] = [python_of("module"), "-m", "benchmarks.module.app", str(module_port)]
        module_pid = stack.enter_context(listening(module, module_port, folder))
        collector_port, metrics_port = free_port(), free_port()
        ports = str(collector_port), str(metrics_port)
        collector: list[str | Path] = [python_of("toolfleet"), "-m", "benchmarks.collector", *ports]
        stack.enter_context(listening(collector, collector_port, folder))
        delay = str(FAR_MS / 2)
        proxy: list[str | Path] = [
            python_of("toolfleet"),
            "-m",
            "benchmarks.proxy",
            str(far_port),
            str(redis_port),
            delay,
        ]
        proxy_pid = stack.enter_context(listening(proxy, far_port, folder))
        near = Stage(folder, redis_port, module_port, redis_pid, module_pid, collector_port, metrics_port)
        yield near, replace(near, redis_port=far_port, proxy_pid=proxy_pid)


def _redis(folder: Path, port: int) -> list[str | Path]:
    """Without persistence, for all alike: what a disk does here is not what is compared."""
    options = {"bind": LOOPBACK, "port": str(port), "dir": str(folder), "save": "", "appendonly": "no"}
    limits = {"maxclients": "10000"}
    return [find_redis_server(), *(word for name, value in (options | limits).items() for word in (f"--{name}", value))]


@contextmanager
def listening(command: Sequence[str | Path], port: int, folder: Path) -> Generator[int]:
    """Run a program from when it listens at its port, with its log in `folder`; yields its process id. Raises `RuntimeError`."""
    with (folder / "stage.log").open("ab") as log:
        process = spawn(command, env={"PYTHONPATH": str(ROOT)}, cwd=folder, output=log)
    try:
        if not _listens(port, process):
            said = (folder / "stage.log").read_text(errors="replace")
            raise RuntimeError(f"did not start: {' '.join(map(str, command))}\n{said}")
        yield process.pid
    finally:
        stop(process, patience_seconds=_STOP_SECONDS)


def _listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    give_up_at = time.monotonic() + _START_SECONDS
    while time.monotonic() < give_up_at and process.poll() is None:
        try:
            socket.create_connection((LOOPBACK, port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return True
    return False
