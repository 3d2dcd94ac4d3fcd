"""What a test in virtual time asks for: a fleet whose members come, go and die."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from celery import beat, signals
from celery.signals import beat_init
from celery.worker import state
from starlette.types import ASGIApp

from bed import clock
from bed.network import Link
from bed.redis import VirtualRedis
from bed.site import Site
from support import module_server
from support.gateways.gateway_process import ServedGateway
from support.module_server import ModuleServer
from toolfleet import ToolFleet
from toolfleet_cli.local.redis_server import LOOPBACK
from toolfleet_gateway.auth.own_secrets import generate_key
from toolfleet_gateway.gateway import serve_gateway
from toolfleet_registry.access import new_key_text
from toolfleet_registry.config.host_settings import McpSpec
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_registry.system.process import listening_socket
from toolfleet_tasks.app import make_app
from toolfleet_tasks.control import beat as fleet_beat
from toolfleet_tasks.control.celery_worker import FleetWorker
from toolfleet_tasks.greenlet_bridge import Bridge
from toolfleet_workers.pool.bootsteps import AnsweredProbes, LoopWatchdog, health_of
from toolfleet_workers.worker_app import make_worker_app


async def _tick(server: Any) -> None:
    """Implements uvicorn's `main_loop`, which does so ten times a second: that would cost a test most of its time."""
    while not await server.on_tick(0):  # noqa: ASYNC110 - a signal handler ends it
        await asyncio.sleep(1)


uvicorn.Server.main_loop = _tick  # type: ignore[assignment, method-assign]
beat_init.disconnect(fleet_beat._answer_probes)  # probes are answered by threads, as the workers' are
_PATIENCE_SECONDS = 3600.0
_TICK_SECONDS = 0.02  # Celery wakes 10 ms before a task is due, and would look ten times until then


class Worker:
    """What `celery worker` runs, in a site of its own."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.site = Site(name)
        self._settings = settings
        self._worker: Any = None
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when it takes calls."""
        self._running = self.site.start(self._run())
        while not (self._worker is not None and health_of(self._worker.app).is_prepared):
            await asyncio.sleep(0.01)
            if self._running.done():
                self._running.result()
                raise RuntimeError("the worker has ended")

    @property
    def holds_calls(self) -> bool:
        """Whether it has taken calls that have not ended."""
        return bool(self.site.celery.get("active") or self.site.celery.get("reserved"))

    def kill(self) -> None:
        """End it as SIGKILL does."""
        self.site.kill()

    def dies_at(self, write: int, part: float = 1.0) -> asyncio.Event:
        """Have it die at a write, counted from now, of which `part` leaves it. Returns an event that is set then."""
        return self.site.die_at(write, part)

    @property
    def restarts(self) -> int:
        """How often its consumer has begun again and takes calls."""
        consumer = self._worker.consumer
        count: int = consumer.restart_count
        return count if consumer.task_consumer is not None else -1

    async def lose_connection(self) -> None:
        """Have a connection of Celery's own break."""
        await self.site.start(self._lose_connection())

    async def _lose_connection(self) -> None:
        def fail() -> None:
            raise ConnectionResetError

        self._worker.consumer.call_soon(fail)

    async def reset_remote_control(self) -> None:
        """Have its remote control begin again, on another channel, as Celery does when that fails."""
        await self.site.start(self._reset_remote_control())

    async def _reset_remote_control(self) -> None:
        (step,) = (each for each in self._worker.consumer.steps if hasattr(each, "box"))
        self._worker.consumer.call_soon(step.box.reset)

    async def tell_to_end(self) -> None:
        """Send it SIGTERM: running calls may end."""
        await self.site.start(self._tell_to_end())

    async def stop(self) -> None:
        """Tell it to end, and wait until it has ended."""
        assert self._running is not None
        await self.tell_to_end()
        await asyncio.wait([self._running])
        self.site.kill()  # what is left ends with its process

    async def _tell_to_end(self) -> None:
        signals.worker_shutting_down.send(sender=self.site.host, sig="SIGTERM", how="Warm", exitcode=0)
        state.should_stop = 0
        self._worker.pool.hub_loop.wake()

    async def _run(self) -> None:
        with suppress(SystemExit):
            await Bridge(self._work)

    def _work(self) -> None:
        app = make_worker_app(self._settings)
        app.steps["worker"] -= {LoopWatchdog, AnsweredProbes}  # they watch a process, from threads
        self._worker = _Worker(app=app, hostname=self.site.host, loglevel="CRITICAL", quiet=True)
        self._worker.start()


@dataclass(frozen=True)
class Gateway(ServedGateway):
    """A gateway that takes requests, in a site of its own."""

    site: Site


class _Worker(FleetWorker):
    def install_platform_tweaks(self, worker: Any) -> None:
        """Leave the test's signals alone."""


class _Scheduler(fleet_beat.FleetScheduler):
    def tick(self, *args: Any, **options: Any) -> float:
        """Implements Celery's. Code takes no time in the bed: where Celery looks again at once it would never be later."""
        return max(super().tick(*args, **options), _TICK_SECONDS)


class Bed:
    """A fleet over one Redis.

    Attributes:
        given: The settings of all its members; a member may be given more. A test may set some before it starts members.
        key: What all its gateways were given.

    """

    def __init__(self, redis: VirtualRedis, stack: AsyncExitStack) -> None:
        self.redis, self._stack = redis, stack
        self.given: dict[str, Any] = {"redis_url": redis.url, "module_services": {}}
        self.key = new_key_text().text  # one of its own would not be made where the registry has keys
        self._members = 0
        self._mortal: list[Site] = []

    @property
    def settings(self) -> Settings:
        """Return the settings of its members."""
        return self.with_settings()

    def with_settings(self, **more: object) -> Settings:
        """Return the settings of a member that is given more than the others."""
        return Settings(**{**self.given, **more})

    async def worker(self, **settings: object) -> Worker:
        """Start one more, and wait until it takes calls."""
        worker = Worker(self.with_settings(**settings), self._name("worker"))
        self._stack.callback(_kill, worker.site)
        self._mortal.append(worker.site)
        await worker.start()
        return worker

    async def beat(self, **settings: object) -> Site:
        """Start Celery's beat, with the product's scheduler."""
        site = self.site("beat")
        self._mortal.append(site)
        app = make_app(self.with_settings(**settings), stores_results=False)
        service = beat.Service(app, scheduler_cls=_Scheduler)

        async def run() -> None:
            await Bridge(service.start)

        site.start(run())
        return site

    async def agent(self, **settings: object) -> ToolFleet:
        """Open an agent's side, in the test's own process."""
        return await self._stack.enter_async_context(ToolFleet(settings=self.with_settings(**settings)))

    async def serve(self, *modules: ModuleServer, port: int = 0) -> Site:
        """Serve modules, and have all who come later know them. Returns the site of the last one.

        `port`: where one that was killed was before.
        """
        for module in modules:
            site = self.site(module.name)
            await site.start(module_server.start(module, port))
            self.given["module_services"] = {**self.given["module_services"], module.name: module.url}
        return site

    async def serve_app(self, name: str, app: ASGIApp, port: int = 0) -> tuple[Site, str]:
        """Serve any app. Returns its site and its URL."""
        site = self.site(name)

        async def serve() -> str:
            listener = listening_socket(LOOPBACK, port)
            server = uvicorn.Server(uvicorn.Config(app, log_config=None))
            serving = asyncio.create_task(server.serve([listener]))
            while not server.started:
                await asyncio.sleep(0.01)
                if serving.done():
                    serving.result()
            return f"http://{LOOPBACK}:{listener.getsockname()[1]}"

        return site, await site.start(serve())

    async def host_mcp(self, name: str, app: ASGIApp, **spec: object) -> Site:
        """Serve the app of an MCP server, and its tools as a module. Returns the server's site."""
        from toolfleet_cli.hosting.mcp import mcp_host  # most tests need nothing of all that it loads

        site, url = await self.serve_app(f"{name}-server", app)
        described = McpSpec.model_validate({"url": f"{url}/mcp", "trusted": True, **spec})
        host = mcp_host(self.settings, described, name=name, beside=Path.cwd())
        _, self.given["module_services"][name] = await self.serve_app(name, host.app)
        await until(lambda: host.tools, "it has listed its tools")
        return site

    async def gateway(self, port: int = 0, *, leave_seconds: float = 0, **settings: object) -> "Gateway":
        """Start a gateway, and wait until it takes requests. `port`: where one that was killed was before."""
        site, ready = self.site("gateway"), asyncio.Event()
        self._mortal.append(site)
        given = self.with_settings(**settings)

        async def serve() -> int:
            listener = listening_socket(LOOPBACK, port)
            at: int = listener.getsockname()[1]
            key = generate_key(self.key)
            serving = asyncio.create_task(
                serve_gateway(given, listener, generated=key, ready=ready.set, leave_seconds=leave_seconds)
            )
            await asyncio.wait([serving, asyncio.create_task(ready.wait())], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            return at

        try:
            return Gateway(f"http://{LOOPBACK}:{await site.start(serve())}", self.key, site)
        except Exception:
            _kill(site)  # its port is free again
            raise

    async def link(self, port: int) -> Link:
        """Make a connection to a server that can be disturbed: hand its URL to the member that shall suffer."""
        link, site = Link(port), self.site("link")
        site.carries = True
        await site.start(link.open())
        return link

    def site(self, name: str) -> Site:
        """Make a process for code of the test's own, such as a core that dies."""
        site = Site(self._name(name))
        self._stack.callback(_kill, site)
        return site

    def kill_members(self) -> None:
        """Kill every worker, beat and gateway. Agents and modules stay."""
        for site in self._mortal:
            _kill(site)

    def ask(self, *command: Any) -> Any:
        """Ask Redis."""
        with self.redis.client() as client:
            return client.execute_command(*command)

    def _name(self, role: str) -> str:
        self._members += 1
        return f"{role}{self._members}"


@asynccontextmanager
async def open_bed(redis: VirtualRedis) -> AsyncGenerator[Bed]:
    """Open a bed with an empty Redis and no member yet, in the morning."""
    clock.move_to_morning()
    fleet_clock.clock.forget()
    async with AsyncExitStack() as stack:
        bed = Bed(redis, stack)
        bed.ask("FLUSHALL")
        try:
            yield bed
        finally:
            redis.thaw()  # where a test has failed meanwhile


async def until(condition: Callable[[], object], what: str, *, step: float = 0.05) -> None:
    """Return as soon as a condition holds; it is looked at every `step` seconds."""
    ends_at = clock.monotonic() + _PATIENCE_SECONDS
    while not (found := condition()) or (isinstance(found, Awaitable) and not await found):
        assert clock.monotonic() < ends_at, f"waited {_PATIENCE_SECONDS} s in vain: {what}"
        await asyncio.sleep(step)


async def pass_time(seconds: float, *, step: float = 0.1) -> None:
    """Let time pass in steps: waits of Redis's own, such as `BRPOP`'s, end with the step in which they are over, not with all of it."""
    for _ in range(round(seconds / step)):
        await asyncio.sleep(step)


def _kill(site: Site) -> None:
    if not site.is_dead:
        site.kill()
