"""Builds two gateways up with workers, modules and a Redis, and does faults to them."""

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from chaos.plan import LEASE_SECONDS, LIMIT_SECONDS, MODULES, QUICK
from chaos.processes import module
from chaos.processes.programs import Program
from support.clocks import WallClock
from support.gateways.gateway_process import LEAVE_SECONDS
from support.programs.shortened import shortened
from support.servers.redis_faults import FaultyRedis, faulty_redis
from support.worker_process import READY as WORKER_READY
from support.worker_process import TESTS
from toolfleet_cli.local.environment import beat_command, environment_of, worker_command
from toolfleet_cli.local.redis_server import free_port
from toolfleet_registry.access import new_key_text
from toolfleet_registry.settings import Settings

GATEWAYS, _WORKERS = 2, 2
_READY, _BEAT_READY = "toolfleet gateway ready", "beat: Starting"
_STOP_SECONDS = 25
_LOADED_SECONDS = 60
_GATEWAY_TIMES = {LEAVE_SECONDS: 0.3}
_PYTHON_PATH = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
_NO_REDIS, _AGAIN_SECONDS = "does not answer", 0.5


@dataclass
class Scene:
    """`urls` are the gateways', `key` is what they let in. `ended_alone`: what ended without anybody's doing, or not as it was told.

    `streams`: what ends a stream that a client has open. `struck` counts faults by kind, `refusals` starts of gateways at a Redis
    that did not answer: they end with that sentence, for whoever supervises them to start them again. `clocks`: of the programs that
    have one of their own, by name.
    """

    folder: Path
    redis: FaultyRedis
    settings: Settings
    key: str
    urls: list[str] = field(default_factory=list)
    gateways: list[Program] = field(default_factory=list)
    workers: list[Program] = field(default_factory=list)
    modules: list[Program] = field(default_factory=list)
    beats: list[Program] = field(default_factory=list)
    ended_alone: list[str] = field(default_factory=list)
    streams: set[Callable[[], object]] = field(default_factory=set)
    struck: Counter[str] = field(default_factory=Counter)
    clocks: dict[str, WallClock] = field(default_factory=dict)
    refusals: int = 0
    redis_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    @property
    def programs(self) -> tuple[Program, ...]:
        return (*self.gateways, *self.workers, *self.modules, *self.beats)

    def env_of(self, name: str) -> dict[str, str]:
        """What a program of the fleet is started with: its settings, and its clock if it has its own."""
        clock = self.clocks.get(name)
        return environment_of(self.settings) | {"PYTHONPATH": _PYTHON_PATH} | ({} if clock is None else clock.env)

    def look_for_ends(self) -> None:
        """Note what has ended by itself."""
        for program in self.programs:
            if program.process is not None and program.process.poll() is not None:
                self.ended_alone.append(f"{program.name} ended by itself:\n{program.said()[-2000:]}")


@contextlib.asynccontextmanager
async def scene(
    folder: Path,
    *,
    gateways: int = GATEWAYS,
    has_beat: bool = False,
    clocked: Collection[str] = (),
    more: Mapping[str, Any] = MappingProxyType({}),
) -> AsyncGenerator[Scene]:
    """Everything, up. `more`: of the fleet's settings. `clocked`: names of programs whose clocks can be set; needs libfaketime."""
    services = {name: f"http://127.0.0.1:{free_port()}" for name in MODULES}
    with faulty_redis(folder) as redis:
        settings = Settings(
            redis_url=redis.url,
            module_services=services,
            visibility_timeout=LEASE_SECONDS,
            module_timeouts=dict.fromkeys(services, LIMIT_SECONDS),
            refresh_interval_seconds=5,
            drain_seconds=10,
            **more,
        )
        here = Scene(folder, redis, settings, new_key_text().text)
        here.clocks.update({name: WallClock(folder) for name in clocked})
        _describe(here, gateways, has_beat=has_beat)
        try:
            for program in here.programs:
                program.start()
            for program in here.programs:
                await program.is_up()
            yield here
        finally:
            for program in here.programs:
                await asyncio.to_thread(program.stop)


def _describe(here: Scene, gateways: int, *, has_beat: bool) -> None:
    for name, url in here.settings.module_services.items():
        words = [name, str(urlsplit(url).port), str(here.journal)]
        command = [sys.executable, "-m", module.__name__, *words]
        here.modules.append(Program(name, command, module.READY, here.folder, {"PYTHONPATH": _PYTHON_PATH}))
    for number in range(_WORKERS):
        name = f"worker-{number}"
        *command, _ = worker_command("all")
        command = shortened([*command, f"{name}@%h"], QUICK)
        here.workers.append(Program(name, command, WORKER_READY, here.folder, here.env_of(name)))
    own = {**environment_of(here.settings), "TOOLFLEET_GATEWAY_KEY": here.key, "PYTHONPATH": _PYTHON_PATH}
    if has_beat:
        here.beats.append(Program("beat", beat_command(), _BEAT_READY, here.folder, here.env_of("beat")))
    for number in range(gateways):
        port = free_port()
        command = [sys.executable, "-m", "toolfleet_cli", "gateway", "--port", str(port)]
        command = shortened(command, _GATEWAY_TIMES)
        here.gateways.append(Program(f"gateway-{number}", command, _READY, here.folder, own))
        here.urls.append(f"http://127.0.0.1:{port}")


async def strike(kind: str, here: Scene, dice: random.Random) -> None:
    """Do one fault, and make it good again."""
    await GATEWAY_FAULTS[kind](here, dice)
    here.struck[kind] += 1


async def _kill(here: Scene, program: Program, dice: random.Random) -> None:
    async with program.lock:
        program.kill()
        await asyncio.sleep(dice.uniform(0, 1))
        await _start(here, program)


async def _stop(here: Scene, program: Program) -> None:
    async with program.lock:
        program.send_signal(signal.SIGTERM)
        code = await program.ended(seconds=_STOP_SECONDS)
        if code != 0:
            here.ended_alone.append(f"{program.name} ended with {code} on SIGTERM:\n{program.said()[-2000:]}")
            program.kill()
        await _start(here, program)


async def _start(here: Scene, program: Program) -> None:
    """Start it, as a supervisor does: a gateway that has found no Redis once more."""
    program.start()
    while True:
        try:
            return await program.is_up()
        except AssertionError:
            if program not in here.gateways or _NO_REDIS not in program.said():
                raise
        here.refusals += 1
        await asyncio.sleep(_AGAIN_SECONDS)
        program.start()


async def _kill_gateway(here: Scene, dice: random.Random) -> None:
    await _kill(here, dice.choice(here.gateways), dice)


async def _restart_gateway(here: Scene, dice: random.Random) -> None:
    await _stop(here, dice.choice(here.gateways))


async def _kill_worker(here: Scene, dice: random.Random) -> None:
    await _kill(here, dice.choice(here.workers), dice)


async def _stop_worker(here: Scene, dice: random.Random) -> None:
    await _stop(here, dice.choice(here.workers))


async def _cut_streams(here: Scene, _: random.Random) -> None:
    for cut in [*here.streams]:
        cut()


async def _restart_redis(here: Scene, dice: random.Random) -> None:
    async with here.redis_lock:
        with here.redis.restarted(has_loaded=False):
            await asyncio.sleep(dice.choice((0, 0.3, 2)))
        async with asyncio.timeout(_LOADED_SECONDS):
            while await asyncio.to_thread(here.redis.is_loading):  # noqa: ASYNC110 - nothing announces its end
                await asyncio.sleep(0.1)


async def _freeze_redis(here: Scene, dice: random.Random) -> None:
    async with here.redis_lock:
        with here.redis.frozen():
            await asyncio.sleep(dice.choice((0.5, 2, LEASE_SECONDS * 1.5)))


async def _cut_connections(here: Scene, _: random.Random) -> None:
    async with here.redis_lock:
        for kind in ("normal", "pubsub"):
            here.redis.look.client_kill_filter(_type=kind, skipme=True)


GATEWAY_FAULTS: dict[str, Callable[[Scene, random.Random], Awaitable[None]]] = {
    "gateway killed": _kill_gateway,
    "gateway restarted": _restart_gateway,
    "streams cut": _cut_streams,
    "worker killed": _kill_worker,
    "worker stopped": _stop_worker,
    "Redis restarted": _restart_redis,
    "Redis frozen": _freeze_redis,
    "connections to Redis cut": _cut_connections,
}
"""The faults, by what the report calls them."""
