"""One run: a fleet as on machines of its own, calls at a steady rate, connections that are cut, and a look each minute."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from redis.asyncio import Redis

from chaos.processes.programs import Program
from soak.load import Load
from soak.mcp_load import McpLoad
from soak.rest_load import RestLoad
from support.gateways.gateway_process import READY as GATEWAY_READY
from support.modules.module_process import module_process
from support.programs.shortened import TESTS, shortened
from support.worker_process import READY
from toolfleet import ToolFleet
from toolfleet_cli.local.environment import beat_command, environment_of, gateway_command, worker_command
from toolfleet_cli.local.redis_server import free_port, redis_server
from toolfleet_registry.access import COMMAND_LINE, KeyDraft
from toolfleet_registry.api_keys import ApiKeys
from toolfleet_registry.settings import Settings

WORKERS = GATEWAYS = 2
_PEOPLE = 4
# As short as a run needs to show that what is kept goes away: its last half has no more than the one before.
_KEPT_SECONDS = 30
_CONSTANTS = {"toolfleet_tasks.calls.begun_calls.RESULT_KEPT_SECONDS": _KEPT_SECONDS}
_LOOKS = 60


@dataclass(frozen=True)
class Plan:
    """How many minutes, calls a second of an agent, and requests a second of gateways' clients over REST and over MCP."""

    minutes: float
    rate: float
    seed: int
    rest_rate: float = 20
    mcp_rate: float = 20


@dataclass(frozen=True)
class Sample:
    """What a process held at a moment: `seconds` since the load's begin, bytes of memory of its own, descriptors, threads."""

    seconds: float
    memory: int
    descriptors: int
    threads: int


@dataclass
class Ran:
    """What a run came to. `samples` by process; `redis` has its memory and keys at each look; `trouble`: who ended by itself."""

    plan: Plan
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    redis: list[tuple[float, int, int]] = field(default_factory=list)
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    trouble: list[str] = field(default_factory=list)


async def run(plan: Plan, folder: Path) -> Ran:
    """Do it; logs lie in `folder`."""
    ran, seconds = Ran(plan), plan.minutes * 60
    with redis_server(folder / "redis") as url, module_process() as owls:
        settings = Settings(
            redis_url=url,
            module_services={"owls": owls.server.url},
            refresh_interval_seconds=30,
            result_ttl_seconds=_KEPT_SECONDS,
        )
        ports = [free_port() for _ in range(GATEWAYS)]
        urls, keys = [f"http://127.0.0.1:{port}" for port in ports], _keys(settings)
        async with (
            _programs(settings, ports, folder) as programs,
            ToolFleet(settings=settings) as fleet,
            RestLoad(urls, keys, plan.seed) as rest,
            McpLoad(urls, keys, plan.seed) as mcp,
            _redis(url) as redis,
        ):
            load = Load(fleet, plan.seed)
            looking = asyncio.create_task(_look(ran, programs, redis, seconds))
            gateways = rest.run(plan.rest_rate, seconds), mcp.run(plan.mcp_rate, seconds)
            await asyncio.gather(load.run(plan.rate, seconds), *gateways)
            await looking
            ran.ends = load.ends + rest.ends + mcp.ends
            ran.trouble = [f"{it.name} has ended:\n{it.said()[-2000:]}" for it in programs if _has_ended(it)]
    return ran


def _keys(settings: Settings) -> list[str]:
    """The keys of some people who may call everything."""
    with contextlib.closing(ApiKeys.of(settings)) as keys:
        people = [
            KeyDraft(user_id=f"rest-{number}", permission="owner", allowed_modules="*") for number in range(_PEOPLE)
        ]
        return [keys.create(one, COMMAND_LINE).text for one in people]


@asynccontextmanager
async def _programs(settings: Settings, ports: Sequence[int], folder: Path) -> AsyncGenerator[list[Program]]:
    env = {**environment_of(settings), "PYTHONPATH": str(TESTS)}
    command, last = worker_command("all")[:-1], "@%h"
    names = [f"worker-{number}" for number in range(WORKERS)]
    programs = [Program(name, [*command, name + last], READY, folder, env) for name in names]
    programs += [
        Program(f"gateway-{number}", shortened(gateway_command(port), _CONSTANTS), GATEWAY_READY, folder, env)
        for number, port in enumerate(ports)
    ]
    programs.append(Program("beat", beat_command(), "beat: Starting", folder, env))
    try:
        for program in programs:
            program.start()
        for program in programs:
            await program.is_up()
        yield programs
    finally:
        for program in programs:
            await asyncio.to_thread(program.stop)


@asynccontextmanager
async def _redis(url: str) -> AsyncGenerator[Redis]:
    async with Redis.from_url(url, decode_responses=True) as redis:
        yield redis


async def _look(ran: Ran, programs: list[Program], redis: Redis, seconds: float) -> None:
    """Look at everybody again and again; after each look a worker's connections are cut."""
    watched = {program.name: psutil.Process(program.pid) for program in programs} | {"agent": psutil.Process()}
    began_at = time.monotonic()
    for number in range(_LOOKS):
        await asyncio.sleep(max(began_at + (number + 1) * seconds / _LOOKS - time.monotonic(), 0))
        passed = time.monotonic() - began_at
        _note(ran.samples, watched, passed)
        info: Mapping[str, int] = await redis.info("memory")
        ran.redis.append((passed, info["used_memory"], await redis.dbsize()))
        await _cut(redis, watched[f"worker-{number % WORKERS}"])


def _note(samples: dict[str, list[Sample]], watched: Mapping[str, psutil.Process], passed: float) -> None:
    for name, process in watched.items():
        if process.is_running():
            found = Sample(passed, _own_memory(process.pid), process.num_fds(), process.num_threads())
            samples.setdefault(name, []).append(found)


def _own_memory(pid: int) -> int:
    """Bytes that are in no file: what can leak."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


async def _cut(redis: Redis, process: psutil.Process) -> None:
    """Have Redis close all connections of a process."""
    if not process.is_running():
        return
    own = {f"{one.laddr.ip}:{one.laddr.port}" for one in process.net_connections("tcp") if one.raddr}
    for client in await redis.client_list():
        if client["addr"] in own:
            await redis.client_kill_filter(addr=client["addr"])


def _has_ended(program: Program) -> bool:
    return program.process is None or program.process.poll() is not None
