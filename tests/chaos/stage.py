"""Everything of a run that is alive: Redis, modules, workers, beat, agents; and the watch over those that must not end."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from chaos import agent, module
from chaos.plan import AGENTS, MODULES, WORKERS, Plan, settings_for
from chaos.programs import Program
from chaos.proxy import Proxy
from support.redis_faults import FaultyRedis, faulty_redis
from support.worker_process import READY as WORKER_READY
from support.worker_process import TESTS
from toolfleet_registry.settings import Settings
from toolfleet_workers.commands import beat_command, worker_command
from toolfleet_workers.environment import environment_of
from toolfleet_workers.ports import free_port

_WATCH_SECONDS = 0.1
_BEAT_READY = "beat: Starting"


@dataclass
class Stage:
    """`proxies` and `programs` by name. `ended_alone`: workers and beats that ended without anybody's doing, with their last words."""

    plan: Plan
    folder: Path
    redis: FaultyRedis
    settings: Settings
    proxies: dict[str, Proxy] = field(default_factory=dict)
    modules: list[Program] = field(default_factory=list)
    workers: list[Program] = field(default_factory=list)
    agents: list[Program] = field(default_factory=list)
    beats: list[Program] = field(default_factory=list)
    ended_alone: list[str] = field(default_factory=list)
    redis_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    @property
    def redis_port(self) -> int:
        return urlsplit(self.redis.url).port or 6379

    def settings_of(self, name: str) -> Settings:
        """The settings of a process that reaches Redis through the proxy of that name."""
        return self.settings.model_copy(update={"redis_url": f"redis://127.0.0.1:{self.proxies[name].port}/0"})

    def worker_behind(self, port: int) -> Program | None:
        """Whose connection to Redis, or to a module, has this port at the far end."""
        for worker in self.workers:
            if port in self.proxies[worker.name].ports:
                return worker
        return next((worker for worker in self.workers if worker.has_connection_from(port)), None)

    def beat(self, name: str) -> Program:
        env = environment_of(self.settings)
        return Program(name, beat_command(), _BEAT_READY, self.folder, env)

    async def crash_next(self, name: str) -> None:
        """Have a module end at its next effect; raises `httpx.HTTPError` if it is not there."""
        async with httpx.AsyncClient(trust_env=False, timeout=2) as client:
            await client.post(f"{self.settings.module_services[name]}/crash")

    async def watch(self) -> None:
        """Start again what has ended: modules, which may crash, and the others, which may not."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            for program in (*self.modules, *self.workers, *self.beats):
                if not program.lock.locked():
                    self.revive(program)

    def revive(self, program: Program) -> None:
        """Start it again if it has ended by itself; only a module may."""
        if program.process is None or program.process.poll() is None:
            return
        if program not in self.modules:
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
async def stage(plan: Plan, folder: Path) -> AsyncGenerator[Stage]:
    """Build everything up, agents last; the load begins with them."""
    services = {name: f"http://127.0.0.1:{free_port()}" for name in MODULES}
    with faulty_redis(folder / "redis") as redis:
        here = Stage(plan, folder, redis, settings_for(redis.url, services))
        try:
            await _build(here)
            yield here
        finally:
            for program in (*here.agents, *here.beats, *here.workers, *here.modules):
                await asyncio.to_thread(program.stop)
            for proxy in here.proxies.values():
                await proxy.aclose()


async def _build(here: Stage) -> None:
    for name, url in here.settings.module_services.items():
        command = [sys.executable, "-m", module.__name__, name, str(urlsplit(url).port), str(here.journal)]
        here.modules.append(Program(name, command, module.READY, here.folder, {"PYTHONPATH": _python_path()}))
    for number in range(WORKERS):
        env = environment_of(await _proxied(here, f"worker-{number}"))
        here.workers.append(Program(f"worker-{number}", _worker(f"worker-{number}"), WORKER_READY, here.folder, env))
    here.beats.append(here.beat("beat"))
    programs = (*here.modules, *here.workers, *here.beats)
    for program in programs:
        program.start()
    for program in programs:
        await program.is_up()


async def start_agents(here: Stage) -> None:
    """Let the load begin."""
    for number in range(AGENTS):
        name = f"agent-{number}"
        env = {**environment_of(await _proxied(here, name)), "PYTHONPATH": _python_path()}
        share = here.plan.calls // AGENTS + (number < here.plan.calls % AGENTS)
        words = [number, share, here.plan.load_seconds, here.plan.seed, here.folder]
        command = [sys.executable, "-m", agent.__name__, *map(str, words)]
        here.agents.append(Program(name, command, agent.READY, here.folder, env))
        here.agents[-1].start()
    for program in here.agents:
        await program.is_up()


async def _proxied(here: Stage, name: str) -> Settings:
    here.proxies[name] = Proxy(here.redis_port)
    await here.proxies[name].start()
    return here.settings_of(name)


def _worker(name: str) -> list[str]:
    """By a name of its own: the usual one has the id of the process that starts it."""
    *command, _ = worker_command("all")
    return [*command, f"{name}@%h"]


def _python_path() -> str:
    return os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
