"""Answers `GET /livez` and `GET /readyz` of a worker or beat from threads, and probes those of this machine at Unix sockets.

It needs neither Celery nor Redis: a process that is probed every few seconds pays for each check.

Always on a Unix socket of this user's, and on `probe_port`, if one is set. Fails open: if it cannot listen, the process
logs that and works.
"""

import asyncio
import hashlib
import os
import secrets
import socket
import socketserver
import stat
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from redis.exceptions import RedisError

from toolfleet_registry.errors import FleetError
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import is_redis_url
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.time import machine_clock
from toolfleet_tasks.aio.threaded_http import HttpReply, serve_tcp, serve_unix

log = get_logger(__name__)

Probe = Literal["/livez", "/readyz"]

_DIGITS = 12  # of a digest: they keep the fleets of one user apart
_TOKEN_BYTES = 4  # process ids are no names: two containers may share a folder
_PRIVATE = 0o700
_LONGEST_PLACE = (
    60  # bytes of a folder: with what we put below it, a socket's path has less than the 104 that all systems take
)
_DEAD_SECONDS = 0.5  # for a socket to say that no process listens there, which it does at once

_YES = b"HTTP/1.0 200 "
_COMMON = "/tmp"  # noqa: S108 - whose folder ours is, is checked

Fault: TypeAlias = Callable[[], str | None]
"""Says what is wrong now, in a few words without anybody's data; `None` if all is well. Called from any thread."""

STILL_SECONDS = 30.0
"""A loop that has stood still for so long is stuck: what waits on it for a silent Redis gives up sooner."""

_REACH_SECONDS = 2.0  # for Redis, and for the broker: a probe has 5 s for all
_FRESH_SECONDS = 1.0  # many who ask at once cost Redis one question

_AMQP_PORTS = {"amqp": 5672, "amqps": 5671}


def new_socket_path(role: str, settings: Settings) -> Path:
    """Return a new socket path for a process of this role (a lane, or `beat`) of a fleet."""
    return folder() / f"{_prefix(role, settings)}{secrets.token_hex(_TOKEN_BYTES)}.sock"


def sockets_of(role: str, settings: Settings) -> list[Path]:
    """Return the sockets of this role's processes, including those that were killed."""
    return sorted(folder().glob(f"{_prefix(role, settings)}*.sock")) if is_private(folder()) else []


def says_yes(paths: Iterable[Path], probe: Probe, *, seconds: float) -> bool:
    """Return whether one of them answers with 200, within so many seconds for all of them."""
    ends_at = machine_clock.monotonic() + seconds
    return any(_ask(path, probe, ends_at) for path in paths)


def folder() -> Path:
    """A folder of this user's own. Nothing in it outlives a restart of the machine, or of a container."""
    place = os.environ.get("TMPDIR") or _COMMON
    return Path(place if len(place) <= _LONGEST_PLACE else _COMMON) / f"toolfleet-{os.geteuid()}"


def is_private(path: Path) -> bool:
    """Return whether it is a folder that no other user may enter: in a shared place any user can have made it before us."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & ~_PRIVATE & 0o777


def make_private(path: Path) -> None:
    """Make the folder, and remove the sockets of processes that have died. Raises `OSError` if it is another user's."""
    path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    if not is_private(path):
        raise PermissionError(f"{path} is not a folder of ours alone")
    for there in path.glob("*.sock"):
        if _is_dead(there):
            there.unlink(missing_ok=True)


def _prefix(role: str, settings: Settings) -> str:
    fleet = "\n".join((settings.redis_url or "", settings.broker or "", settings.key_prefix))
    return f"{hashlib.sha256(fleet.encode()).hexdigest()[:_DIGITS]}-{role}-"


def _ask(path: Path, probe: Probe, ends_at: float) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.settimeout(max(ends_at - machine_clock.monotonic(), 0.001))
            asking.connect(str(path))
            asking.sendall(f"GET {probe} HTTP/1.0\r\n\r\n".encode())
            asking.settimeout(max(ends_at - machine_clock.monotonic(), 0.001))
            return asking.recv(len(_YES)) == _YES
        except OSError:  # it has died, stands still, or has just ended
            return False


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_DEAD_SECONDS)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


class Probes:
    """The probes of one process: `role` is its lane, or `beat`.

    `live` asks no Redis; `ready` is asked before Redis and broker are.
    """

    def __init__(self, role: str, settings: Settings, *, live: Fault, ready: Fault) -> None:
        self._role = role
        self._settings = settings
        self._live = live
        self._ready = ready
        self._path: Path | None = None
        self._servers: list[socketserver.BaseServer] = []
        self._reaching = threading.Lock()
        self._reached: tuple[float, str | None] = (-_FRESH_SECONDS, None)

    def start(self) -> None:
        """Answer from now on."""
        path = new_socket_path(self._role, self._settings)
        try:
            make_private(folder())
            self._servers.append(serve_unix(str(path), self._reply))
            self._path = path
        except OSError as exc:  # no place to write to, or another user's
            log.warning("probes_not_answered", place=str(path), reason=str(exc))
        if self._settings.probe_port is not None:
            there = (self._settings.probe_address, self._settings.probe_port)
            try:
                self._servers.append(serve_tcp(there, self._reply))
            except OSError as exc:  # another process has it
                log.error("probes_not_answered", place=f"{there[0]}:{there[1]}", reason=str(exc))  # noqa: TRY400 - it says all

    def leave(self) -> None:
        """Remove the socket: the process ends, and its threads with it."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Answer no more. Takes a moment."""
        self.leave()
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._servers.clear()

    def answer(self, path: str) -> tuple[HTTPStatus, str]:
        """The status of a GET of `path`, and a sentence."""
        if path not in {"/livez", "/readyz"}:
            return HTTPStatus.NOT_FOUND, "There are /livez and /readyz."
        fault = self._live() or (self._unready() if path == "/readyz" else None)
        return (HTTPStatus.OK, "ok") if fault is None else (HTTPStatus.SERVICE_UNAVAILABLE, fault)

    def _reply(self, path: str) -> HttpReply:
        status, text = self.answer(path)
        return HttpReply(status, f"{text}\n".encode())

    def _unready(self) -> str | None:
        fault = self._ready()
        if fault is not None:
            return fault
        with self._reaching:
            asked_at, fault = self._reached
            if machine_clock.monotonic() - asked_at >= _FRESH_SECONDS:
                fault = asyncio.run(_unreached(self._settings))
                self._reached = (machine_clock.monotonic(), fault)
        return fault


async def _unreached(settings: Settings) -> str | None:
    """Return which of Redis and the broker does not answer."""
    names = {settings.broker: "the broker"} | {settings.redis_url: "Redis"}
    name = ""
    try:
        async with asyncio.timeout(_REACH_SECONDS):
            for url, name in names.items():  # noqa: B007 - it is asked for after the loop was left
                if not await _reaches(url or "", settings):
                    break
            else:
                return None
    except TimeoutError:
        pass
    return f"{name} does not answer"


async def _reaches(url: str, settings: Settings) -> bool:
    """Return whether the server answers: a Redis must reply; for RabbitMQ only its port is checked."""
    try:
        if is_redis_url(url):
            async with async_client(url, master=settings.sentinel_master, timeout_seconds=_REACH_SECONDS) as redis:
                return bool(await redis.ping())
        there = urlsplit(url)
        _, writer = await asyncio.open_connection(there.hostname, there.port or _AMQP_PORTS.get(there.scheme, 5672))
        writer.close()
    except (RedisError, FleetError, OSError):
        return False
    return True
