"""Serves a host over HTTP until a signal ends it, and announces it and its changes to the fleet meanwhile."""

import asyncio
import gc
import hashlib
import json
import logging
import os
import socket
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolfleet_modules.hosts.secrets import Secrets, SecretUnknown
from toolfleet_modules.sdk.module import ServedModule
from toolfleet_modules.sdk.serve import JoinedHttpProtocol
from toolfleet_registry import metric_families, metrics
from toolfleet_registry.config.host_settings import SecretSource
from toolfleet_registry.config.setting_sources import secret_value
from toolfleet_registry.contracts import ModuleManifest
from toolfleet_registry.contracts.names import RESERVED, is_module_name
from toolfleet_registry.directory.hosts import (
    ANNOUNCE_VARIABLE,
    HEARTBEAT_SECONDS,
    Announcement,
    AnnouncingHost,
    hosts_seal,
)
from toolfleet_registry.directory.requests import RequestedProbes
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.metrics import Exposition, Recorder
from toolfleet_registry.once.redis import RedisReplies
from toolfleet_registry.redis.urls import is_http_url
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import machine_clock, randomness
from toolfleet_registry.system.process import hide_process, listening_socket

_log = logging.getLogger("toolfleet.host")

_REDIS_SECONDS = 5.0
_LEAVE_SECONDS = 2.0  # a Redis that is away must not delay the end: the host is forgotten within the TTL
_OFF_SECONDS = 0.5  # by which a heartbeat's time may be wrong before it is written again
_EVERYWHERE = {"0.0.0.0", "::", ""}  # noqa: S104 - nothing listens by it

_TIMED = "/execute"
_CUT_OFF = "0"  # instead of a status: there was no answer

_PROBE_SECONDS = 10.0
_GRACE_SECONDS = 5  # for calls that run when the host is to end
_COLLECT_AFTER = (50_000, 20, 20)  # objects, then collections of the generation below
_OTHERS_SECONDS = 1.5  # for workers to send what comes to other hosts: they ask twice a second who is there


def read_secrets(names: Iterable[str], sources: Mapping[str, SecretSource], *, folder: Path) -> Secrets:
    """Return the secrets of these names; `folder` is where relative files lie. Raises `SettingsError`, which shows no value."""
    try:
        return Secrets({name: secret_value(name, sources, folder=folder) for name in names})
    except SecretUnknown as exc:
        raise SettingsError(str(exc)) from None


class Announcer:
    """The announcer of one host, on its loop, which keeps its replies as the settings say.

    A Redis that does not answer is logged once, and tried again with each heartbeat.
    """

    def __init__(self, host: ServedModule, settings: Settings, url: str, keys: str = "") -> None:
        self._host, self._settings, self._url = host, settings, url
        host.replica_id = randomness.uuid4().hex
        self._redis = settings.redis_client(timeout_seconds=_REDIS_SECONDS)
        self._writer = AnnouncingHost(self._redis, settings, hosts_seal(keys))
        self._counter = 0
        self._ahead: float | None = None  # of Redis's clock, before this machine's monotonic one
        self._announced: Mapping[str, Any] | None = None
        self._digest = ""
        self._has_changed = asyncio.Event()
        self._is_away = False

    def check(self) -> None:
        """Have a heartbeat written at once if the host's tools have changed. Takes no time."""
        if self._announced is not self._host.tools:
            self._has_changed.set()

    async def keep(self) -> None:
        """Announce the host until cancelled."""
        while True:
            self._has_changed.clear()
            await self._announce_or_log()
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._has_changed.wait()

    async def leave(self) -> int:
        """Announce the host's end. Returns how many others serve its module, 0 if unknown. Raises nothing."""
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                return await self._writer.leave(self._host.name, self._host.replica_id)
        except (FleetUnavailable, TimeoutError) as exc:
            _log.warning("The fleet learns within seconds that %s has ended: %s", self._host.name, exc or "no answer")
            return 0
        finally:
            await self._redis.aclose()

    async def _announce_or_log(self) -> None:
        try:
            await self._announce()
        except FleetUnavailable as exc:
            if not self._is_away:
                _log.warning("%s is not announced: %s", self._host.name, exc)
            self._is_away = True
        except Exception:  # noqa: BLE001 - a defect of ours: a module that is gone would be worse
            if not self._is_away:
                _log.exception("%s is not announced", self._host.name)
            self._is_away = True
        else:
            if self._is_away:
                _log.info("%s is announced again.", self._host.name)
            self._is_away = False

    async def _announce(self) -> None:
        if self._ahead is None:
            self._ahead = await self._writer.now() - machine_clock.monotonic()
        said, now = await self._written()
        if abs(said.at - now) > _OFF_SECONDS:  # this machine was suspended, or Redis's clock was set
            await self._written()

    async def _written(self) -> tuple[Announcement, float]:
        self._counter += 1
        tools = self._host.tools
        if tools is not self._announced:
            self._digest = manifest_digest(self._host.manifest)
        said = Announcement(
            module=self._host.name,
            id=self._host.replica_id,
            url=self._url,
            digest=self._digest,
            has_shared_store=self._settings.host_replies_in_redis,
            at=machine_clock.monotonic() + (self._ahead or 0.0),
            counter=self._counter,
            slow=self._host.name in self._settings.slow_modules,
            timeout_seconds=self._settings.module_timeouts.get(self._host.name),
        )
        now = await self._writer.announce(said)
        self._announced, self._ahead = tools, now - machine_clock.monotonic()
        return said, now


def announcer_of(host: ServedModule, settings: Settings, *, address: str, port: int, url: str | None) -> Announcer:
    """Return the announcer of a host that listens there, and that others reach at `url`. `settings` name a Redis.

    Raises `SettingsError` for an address that other machines cannot reach, and for a missing or invalid key.
    """
    keys = os.environ.get(ANNOUNCE_VARIABLE, "")
    if not keys and settings.signing_key is not None:
        raise SettingsError(
            f"A host has no use for TOOLFLEET_SIGNING_KEY: it needs {ANNOUNCE_VARIABLE} instead, which "
            f"`toolfleet modules key {host.name} --announce` prints; or start it with --no-announce."
        )
    if url is None:
        if address in _EVERYWHERE:
            raise SettingsError(
                f"Workers cannot call a host at {address or 'no address'}: say with --announce-url where others reach it, such as "
                f"http://this-machine:{port}; or start it with --no-announce."
            )
        url = f"http://{f'[{address}]' if ':' in address else address}:{port}"
    if not is_http_url(url):
        raise SettingsError(f"--announce-url must be an http:// or https:// URL with a host, and not {url[:200]!r}.")
    return Announcer(host, settings, url, keys)


def manifest_digest(manifest: ModuleManifest) -> str:
    """Return a digest of a module's tools: the same for the same tools, in every process, and in any order."""
    tools = [tool.model_dump(mode="json", exclude_none=True) for tool in manifest.tools]
    text = json.dumps(sorted(tools, key=lambda tool: str(tool["name"])), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class HostMetrics:
    """The metrics of one host that serves `module`."""

    def __init__(self, recorder: Recorder, module: str) -> None:
        self.recorder = recorder
        self._module = module

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return the app, wrapped so that its requests are counted."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            clock = asyncio.get_running_loop().time
            began_at, status = clock(), _CUT_OFF

            async def sending(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = str(message["status"])
                await send(message)

            try:
                await app(scope, receive, sending)
            finally:
                self.recorder.count(metric_families.HOST_REQUESTS, (self._module, status))
                if scope["path"] == _TIMED:
                    self.recorder.observe(metric_families.HOST_REQUEST_SECONDS, (self._module,), clock() - began_at)

        return counted

    async def sample(self) -> None:
        """Note how late the loop is, until cancelled."""
        from toolfleet_tasks.operations.process_metrics import ProcessSampler

        await ProcessSampler(self.recorder).keep()


@contextmanager
def _host_metrics(settings: Settings | None, module: str) -> Generator[HostMetrics | None]:
    """Answer for them at the settings' port, if these name one; else there are none. Raises `SettingsError` without the library."""
    if settings is None or settings.metrics_port is None:
        yield None
        return
    from toolfleet_tasks.operations.process_metrics import MetricsEndpoint

    recorder = metrics.start()
    endpoint = MetricsEndpoint(settings, Exposition(recorder).text)
    endpoint.start()
    try:
        yield HostMetrics(recorder, module)
    finally:
        endpoint.close()
        metrics.stop()


def check_host_name(name: str, *, option: str | None = None) -> str:
    """Return the name if a hosted module can have it. `option` is the command's option for another name. Raises `SettingsError`."""
    if not is_module_name(name) or name in RESERVED:
        other = "" if option is None else f" with {option}"
        raise SettingsError(f"{name[:80]!r} is no name for a module: give it another one{other}.")
    return name


class ChangeNotice:
    """Has the fleet's workers ask for the tools again. Without the fleet's Redis they do so at their next probe."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def __call__(self) -> None:
        """Tell the fleet that a host's tools have changed. Raises nothing."""
        if self._settings.redis_url is None:
            return
        try:
            async with self._settings.redis_client(timeout_seconds=_REDIS_SECONDS) as redis:
                await RequestedProbes(redis, self._settings.keys).request(seconds=_PROBE_SECONDS)
        except (FleetUnavailable, OSError) as exc:
            _log.warning("The fleet learns of the change at its next look: %s", exc)


class _HostServer(uvicorn.Server):
    """Announces the host while it listens, and serves for a moment longer if other hosts take over."""

    def __init__(self, config: uvicorn.Config, announcer: Announcer | None, metrics: HostMetrics | None) -> None:
        super().__init__(config)
        self._announcer = announcer
        self._metrics = metrics
        self._sampling: asyncio.Task[None] | None = None
        self._announcing: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _spare_the_collector()
        if self._metrics is not None:
            self._sampling = asyncio.create_task(self._metrics.sample(), name="toolfleet-metrics")
        if self._announcer is not None:
            self._announcing = asyncio.create_task(self._announcer.keep(), name="toolfleet-announcer")

    async def on_tick(self, counter: int) -> bool:
        if self._announcer is not None:
            self._announcer.check()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._announcer is not None and self._announcing is not None:
            self._announcing.cancel()
            await asyncio.wait([self._announcing])
            if await self._announcer.leave() and not self.force_exit:
                await asyncio.sleep(_OTHERS_SECONDS)
        if self._sampling is not None:
            self._sampling.cancel()
        await super().shutdown(sockets)


def _spare_the_collector() -> None:
    """Keep Python from going over everything that a host has, again and again, for cycles that calls hardly leave.

    Measured with calls of an MCP server that does nothing: a fifth of the host's time.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def serve_host(
    host: ServedModule,
    address: str,
    port: int,
    *,
    announced_by: Settings | None = None,
    url: str | None = None,
    metered_by: Settings | None = None,
) -> int:
    """Serve it in the foreground. Returns the exit code.

    It is announced to the fleet that `announced_by` names, if it names a Redis, at `url`, or where it listens; there it also
    keeps the replies of calls, if hosts are to share them. It has the metrics that `metered_by` asks for. Its app must not
    have been used before. Raises `SettingsError` where nothing can listen, and where it cannot be announced so.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(name)s: %(message)s", stream=sys.stderr)
    for name in ("httpx", "watchfiles"):  # which tell of each request, and of each change
        logging.getLogger(name).setLevel(logging.WARNING)
    hide_process()  # its tools are this user's processes, too: they must not read its key from its environment
    with listening_socket(address, port) as listener, _host_metrics(metered_by, host.name) as metrics:
        port = listener.getsockname()[1]
        announcer = None
        if announced_by is not None and announced_by.redis_url is not None:
            announcer = announcer_of(host, announced_by, address=address, port=port, url=url)
            if announced_by.host_replies_in_redis:  # there, too: who is known there has the same store
                host.replies = RedisReplies(
                    str(announced_by.redis_url), prefix=announced_by.key_prefix, master=announced_by.sentinel_master
                )
        _log.info("%s is served at http://%s:%d", host.name, address, port)
        app = host.app if metrics is None else metrics.around(host.app)
        server = _HostServer(_config_of(app, address, port), announcer, metrics)
        server.run(sockets=[listener])
        return 0 if server.started else 1


def _config_of(app: ASGIApp, address: str, port: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=address,
        port=port,
        http=JoinedHttpProtocol,
        loop="asyncio",  # its processes for tools get their sockets from this one
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # nothing here asks whose address a request comes from
        lifespan="on",
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
