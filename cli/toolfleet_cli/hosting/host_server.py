"""Serves a host over HTTP until a signal ends it, announced to the fleet meanwhile, which asks it when its tools change."""

import asyncio
import gc
import logging
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolfleet_cli.hosting.announcer import Announcer, announcer_of
from toolfleet_modules.sdk.module import ServedModule
from toolfleet_modules.sdk.serve import JoinedHttpProtocol
from toolfleet_registry.contracts.names import LOCAL, SCHEDULER, is_module_name
from toolfleet_registry.directory.requests import RequestedProbes
from toolfleet_registry.errors import FleetUnavailable, SettingsError
from toolfleet_registry.metrics import families, process_recorder
from toolfleet_registry.metrics.recorder import Exposition, Recorder
from toolfleet_registry.once.redis import RedisReplies
from toolfleet_registry.redis.servers import async_client
from toolfleet_registry.settings import Settings
from toolfleet_registry.system.listening import listening_socket
from toolfleet_registry.system.process import hide_process

_log = logging.getLogger("toolfleet.host")

_TIMED = "/execute"
_CUT_OFF = "0"  # instead of a status: there was no answer

_REDIS_SECONDS = 5.0
_PROBE_SECONDS = 10.0
_GRACE_SECONDS = 5  # for calls that run when the host is to end
_COLLECT_AFTER = (50_000, 20, 20)  # objects, then collections of the generation below
_OTHERS_SECONDS = 1.5  # for workers to send what comes to other hosts: they ask twice a second who is there


class HostMetrics:
    """The metrics of one host that serves `module`."""

    def __init__(self, recorder: Recorder, module: str) -> None:
        self.recorder = recorder
        self._module = module

    def around(self, app: ASGIApp) -> ASGIApp:
        """The app, with its requests counted."""

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
                self.recorder.count(families.HOST_REQUESTS, (self._module, status))
                if scope["path"] == _TIMED:
                    self.recorder.observe(families.HOST_REQUEST_SECONDS, (self._module,), clock() - began_at)

        return counted

    async def sample(self) -> None:
        """Note how late the loop is, until cancelled."""
        from toolfleet_tasks.metrics.sampler import ProcessSampler

        await ProcessSampler(self.recorder).keep()


@contextmanager
def _host_metrics(settings: Settings | None, module: str) -> Generator[HostMetrics | None]:
    """Answer for them at the settings' port, if these name one; else there are none. Raises `SettingsError` without the library."""
    if settings is None or settings.metrics_port is None:
        yield None
        return
    from toolfleet_tasks.metrics.endpoint import MetricsEndpoint

    recorder = process_recorder.start(most_names=settings.metrics_tools)
    endpoint = MetricsEndpoint(settings, Exposition(recorder).text)
    endpoint.start()
    try:
        yield HostMetrics(recorder, module)
    finally:
        endpoint.close()
        process_recorder.stop()


def check_host_name(name: str, *, option: str | None = None) -> str:
    """The name, if a module that is hosted can have it. `option`: of a command, by which it can have another. Raises `SettingsError`."""
    if not is_module_name(name) or name in {LOCAL, SCHEDULER}:
        other = "" if option is None else f" with {option}"
        raise SettingsError(f"{name[:80]!r} is no name for a module: give it another one{other}.")
    return name


class ChangeNotice:
    """Has the fleet's workers ask what there is now. Without its Redis they find out at their next look."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def __call__(self) -> None:
        """Tell the fleet that a host's tools have changed. Raises nothing."""
        url = self._settings.redis_url
        if url is None:
            return
        try:
            async with async_client(
                url, master=self._settings.sentinel_master, timeout_seconds=_REDIS_SECONDS
            ) as redis:
                await RequestedProbes(redis, self._settings.keys).request(seconds=_PROBE_SECONDS)
        except (FleetUnavailable, OSError) as exc:
            _log.warning("The fleet learns of the change at its next look: %s", exc)


class _HostServer(uvicorn.Server):
    """Announces the host from when it listens until it is to end, and goes on for a moment where others take over."""

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
    keeps what became of calls, if hosts are to share that. It has the metrics that `metered_by` asks for. Its app must not
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
