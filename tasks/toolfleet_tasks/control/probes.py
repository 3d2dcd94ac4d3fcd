"""Answers `GET /livez` and `GET /readyz` of a worker or beat, from threads: a probe is answered even if the event loop stands still.

Always on a Unix socket of this user's, and on `probe_port`, if one is set. Fails open: if it cannot listen, the process
logs that and works.
"""

import asyncio
import socketserver
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

from redis.exceptions import RedisError

from toolfleet_registry.errors import FleetError
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.redis.urls import is_redis_url
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import machine_clock
from toolfleet_registry.system.loggers import get_logger
from toolfleet_tasks.control.probe_sockets import folder, make_private, new_socket_path
from toolfleet_tasks.threaded_http import HttpReply, serve_tcp, serve_unix

log = get_logger(__name__)


Fault: TypeAlias = Callable[[], str | None]
"""Says what is wrong now, in a few words without personal data; `None` if all is well. Called from any thread."""

STILL_SECONDS = 30.0
"""A loop that has stood still for so long is stuck: what waits on it for a silent Redis gives up sooner."""

_REACH_SECONDS = 2.0  # for Redis, and for the broker: a probe has 5 s for all
_FRESH_SECONDS = 1.0  # many who ask at once cost Redis one question

_AMQP_PORTS = {"amqp": 5672, "amqps": 5671}


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
