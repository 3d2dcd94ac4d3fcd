"""Everything of a run that is alive: Redis, perhaps RabbitMQ, modules, workers, beat, the core, agents; and the watch over those that must not end."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from chaos.faults.proxy import Proxy
from chaos.plan import AGENTS, CORES, MODULES, QUICK, RECONCILING, WORKERS, Plan, settings_for
from chaos.processes import agent, core, job_agent, module, news_reader
from chaos.processes.programs import Program
from chaos.records.acts import make_table
from support.clocks import WallClock, libfaketime
from support.programs.shortened import shortened
from support.servers.plain_http import PLAIN
from support.servers.rabbitmq import RabbitMq, rabbitmq
from support.servers.redis_faults import FaultyRedis, faulty_redis, faulty_redis_with_a_clock
from support.streams.tcp_proxy import TcpProxy, tcp_proxy
from support.worker_process import READY as WORKER_READY
from support.worker_process import TESTS
from toolfleet_cli.local.environment import beat_command, environment_of, worker_command
from toolfleet_cli.local.redis_server import free_port
from toolfleet_registry.settings import Settings

CLOCKED = f"worker-{WORKERS - 1}"
"""The worker that has a clock of its own, where libfaketime is installed."""

_WATCH_SECONDS = 0.1
_BEAT_READY = "beat: Starting"
_JOBS_SHARE = 0.85  # of the load's time: the last ones have as long to end in as the last calls


@dataclass
class Stage:
    """`proxies` and `programs` by name. `ended_alone`: workers and beats that ended without anybody's doing, with their last words.

    `spares`: workers that only some faults start. `refusals` counts those that did not start where none may, `not_refused` has
    the last words of those that did.
    """

    plan: Plan
    folder: Path
    redis: FaultyRedis
    settings: Settings
    proxies: dict[str, Proxy] = field(default_factory=dict)
    modules: list[Program] = field(default_factory=list)
    workers: list[Program] = field(default_factory=list)
    agents: list[Program] = field(default_factory=list)
    beats: list[Program] = field(default_factory=list)
    cores: list[Program] = field(default_factory=list)
    spares: dict[str, Program] = field(default_factory=dict)
    ended_alone: list[str] = field(default_factory=list)
    refusals: int = 0
    not_refused: list[str] = field(default_factory=list)
    redis_clock: WallClock | None = None
    worker_clock: WallClock | None = None
    rabbitmq: RabbitMq | None = None
    rabbitmq_proxies: dict[str, TcpProxy] = field(default_factory=dict)
    redis_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    rabbitmq_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _kept: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    @property
    def servers(self) -> tuple[Program, ...]:
        """All that runs until the end."""
        return (*self.beats, *self.workers, *self.cores, *self.modules)

    @property
    def redis_port(self) -> int:
        return urlsplit(self.redis.url).port or 6379

    def settings_of(self, name: str) -> Settings:
        """The settings of a process that reaches Redis, and RabbitMQ, through the proxies of that name."""
        own = {"redis_url": f"redis://127.0.0.1:{self.proxies[name].port}/0"}
        if self.rabbitmq is not None:
            there, through = (f":{port}/" for port in (self.rabbitmq.port, self.rabbitmq_proxies[name].port))
            own["broker_url"] = self.rabbitmq.url.replace(there, through)
        return self.settings.model_copy(update=own)

    async def add_proxies(self, name: str) -> None:
        """Put something between a process of that name and Redis, and RabbitMQ."""
        self.proxies[name] = Proxy(self.redis_port)
        await self.proxies[name].start()
        if self.rabbitmq is not None:
            self.rabbitmq_proxies[name] = self._kept.enter_context(tcp_proxy(self.rabbitmq.port))

    async def remove_proxies(self) -> None:
        for proxy in self.proxies.values():
            await proxy.aclose()
        await asyncio.to_thread(self._kept.close)

    def worker_behind(self, port: int) -> Program | None:
        """Whose connection to Redis, or to a module, has this port at the far end."""
        for worker in self.workers:
            if port in self.proxies[worker.name].ports:
                return worker
        return next((worker for worker in self.workers if worker.has_connection_from(port)), None)

    def core_of(self, pid: int) -> Program | None:
        """The process of the core that has this id."""
        return next((core for core in self.cores if core.process is not None and core.pid == pid), None)

    def beat(self, name: str) -> Program:
        env = environment_of(self.settings_of(name) if name in self.proxies else self.settings)
        return Program(name, beat_command(), _BEAT_READY, self.folder, env)

    async def crash_next(self, name: str) -> None:
        """Have a module end at its next effect; raises `httpx.HTTPError` if it is not there."""
        async with httpx.AsyncClient(trust_env=False, timeout=2, verify=PLAIN) as client:
            await client.post(f"{self.settings.module_services[name]}/crash")

    async def watch(self) -> None:
        """Start again what has ended: modules and the core, which may crash, and the others, which may not."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for program in self.servers:
                if not program.lock.locked():
                    self.revive(program)

    def revive(self, program: Program) -> None:
        """Start it again if it has ended by itself; only a module and a core may."""
        if program.process is None or program.process.poll() is None:
            return
        if program not in self.modules and program not in self.cores:
            code = program.process.returncode
            self.ended_alone.append(f"{program.name} ended with {code}:\n{program.said()[-2000:]}")
        program.start()

    @contextlib.asynccontextmanager
    async def alone(self, program: Program) -> AsyncGenerator[None]:
        """Hold a program that is up, for something to be done to it."""
        async with program.lock:
            self.revive(program)
            await program.is_up()
            yield

    @contextlib.asynccontextmanager
    async def without_starts(self) -> AsyncGenerator[None]:
        """No worker is started meanwhile, and to Redis happens nothing else."""
        async with contextlib.AsyncExitStack() as held:
            for program in (*self.spares.values(), *self.workers):  # whoever needs several takes them in this order
                await held.enter_async_context(program.lock)
            await held.enter_async_context(self.redis_lock)
            yield


@contextlib.asynccontextmanager
async def stage(plan: Plan, folder: Path) -> AsyncGenerator[Stage]:
    """Build everything up, agents last; the load begins with them."""
    services = {name: f"http://127.0.0.1:{free_port()}" for name in MODULES}
    core_url = f"http://127.0.0.1:{free_port()}" if plan.jobs and plan.has_core else None
    with _rabbitmq(plan, folder / "rabbitmq") as broker, _redis(folder / "redis") as (redis, clock):
        own = WallClock(folder) if clock else None
        settings = settings_for(redis.url, services, core_url, broker.url if broker else None)
        here = Stage(plan, folder, redis, settings, redis_clock=clock, worker_clock=own, rabbitmq=broker)
        try:
            await _build(here)
            yield here
        finally:
            for program in (*here.agents, *here.servers, *here.spares.values()):
                await asyncio.to_thread(program.stop)
            await here.remove_proxies()


@contextlib.contextmanager
def _rabbitmq(plan: Plan, folder: Path) -> Generator[RabbitMq | None]:
    if not plan.on_rabbitmq:
        yield None
        return
    folder.mkdir(exist_ok=True)
    with rabbitmq(folder) as broker:
        yield broker


@contextlib.contextmanager
def _redis(folder: Path) -> Generator[tuple[FaultyRedis, WallClock | None]]:
    """With a clock that can be set, if libfaketime is installed."""
    if libfaketime():
        with faulty_redis_with_a_clock(folder) as found:
            yield found
    else:
        with faulty_redis(folder) as redis:
            yield redis, None


async def _build(here: Stage) -> None:
    for name, url in here.settings.module_services.items():
        command = [sys.executable, "-m", module.__name__, name, str(urlsplit(url).port), str(here.journal)]
        here.modules.append(Program(name, command, module.READY, here.folder, {"PYTHONPATH": _python_path()}))
    for number in range(WORKERS):
        here.workers.append(await _make_worker(here, f"worker-{number}"))
    nowhere = {**here.settings.module_services, RECONCILING: f"http://127.0.0.1:{free_port()}"}
    here.spares["worker-cut-off"] = await _make_worker(here, "worker-cut-off", module_services=nowhere)
    here.spares["worker-refused"] = await _make_worker(here, "worker-refused")
    await _proxied(here, "beat")
    here.beats.append(here.beat("beat"))
    make_table(here.folder)
    for number in range(CORES if here.plan.jobs else 0):
        here.cores.append(await _core(here, f"core-{number}"))
    for program in here.servers:
        program.start()
    for program in here.servers:
        await program.is_up()


async def start_agents(here: Stage) -> None:
    """Let the load begin."""
    for number in range(AGENTS):
        name = f"agent-{number}"
        env = {**environment_of(await _proxied(here, name)), "PYTHONPATH": _python_path()}
        caller_limit = here.plan.calls // AGENTS + (number < here.plan.calls % AGENTS)
        words = [number, caller_limit, here.plan.load_seconds, here.plan.seed, here.folder]
        command = [sys.executable, "-m", agent.__name__, *map(str, words)]
        here.agents.append(Program(name, command, agent.READY, here.folder, env))
    if here.plan.jobs:
        name = "job-agent"
        env = {**environment_of(await _proxied(here, name)), "PYTHONPATH": _python_path()}
        words = [here.plan.jobs, here.plan.load_seconds * _JOBS_SHARE, here.plan.seed, here.folder]
        command = [sys.executable, "-m", job_agent.__name__, *map(str, words)]
        here.agents.append(Program(name, command, job_agent.READY, here.folder, env))
    for program in here.agents:
        program.start()
    for program in here.agents:
        await program.is_up()


async def _proxied(here: Stage, name: str) -> Settings:
    await here.add_proxies(name)
    return here.settings_of(name)


async def _make_worker(here: Stage, name: str, **more: object) -> Program:
    settings = (await _proxied(here, name)).model_copy(update=more)
    env = {**environment_of(settings), "PYTHONPATH": _python_path()}
    if name == CLOCKED and here.worker_clock is not None:
        env |= here.worker_clock.env
    return Program(name, _worker(name), WORKER_READY, here.folder, env)


async def _core(here: Stage, name: str) -> Program:
    """Or, without HTTP, what reads the news in its place."""
    url = here.settings.core_url
    program, first = (news_reader, name) if url is None else (core, str(urlsplit(url).port))
    env = {**environment_of(await _proxied(here, name)), "PYTHONPATH": _python_path()}
    command = [sys.executable, "-m", program.__name__, first, str(here.folder)]
    return Program(name, command, program.READY, here.folder, env)


def _worker(name: str) -> list[str]:
    """By a name of its own: the usual one has the id of the process that starts it."""
    *command, _ = worker_command("all")
    return shortened([*command, f"{name}@%h"], QUICK)


def _python_path() -> str:
    return os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
