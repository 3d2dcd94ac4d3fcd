"""Plays one plan in the bed, and says what did not hold."""

import asyncio
import gc
import hashlib
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import web

from bed import clock, replaced, trace
from bed.fleet import Worker, open_bed
from bed.loop import VirtualLoop
from bed.network import Link
from bed.redis import VirtualRedis
from bed.site import Site
from chaos.checks.call_checks import Evidence, check_calls
from chaos.checks.job_checks import step_ids, then_ids
from chaos.checks.leftovers import is_quiet, left_in, stored_results
from chaos.plan import MODULES, settings_for
from chaos.processes.agent import Agent, endings_of
from chaos.processes.module import Module
from chaos.records.append_only_file import written_results
from chaos.records.job_notes import read_records
from chaos.records.journal import read_journal
from chaos.records.outcomes import read_endings
from simulation.life import PARTS, RETURNING, Part, die
from simulation.plan import Fault, Plan, Verdict

_AGENTS = 2
_MORNING = datetime(2030, 1, 2, 10, tzinfo=UTC).timestamp()
_QUIET_SECONDS = 10.0  # more than leases last; then until Redis has nothing more to do
_LONGEST_REST = 60
_LAST_SECONDS = 3.0  # for workers, to do what beat has sent last


def play(plan: Plan, folder: Path) -> Verdict:
    """Run a plan on a loop and with a Redis of its own. Ids, and the order of what is ready at once, come from its seed."""
    clock.begin(_MORNING)
    gc.disable()  # it would close connections, now in this run and then in that
    replaced.seed(plan.seed)
    # Its file shows the results of jobs' calls, which jobs drop once they have had them.
    options = {"activerehashing": "no", "appendonly": "yes", "appendfsync": "always"}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    redis = VirtualRedis(folder, *words, expires_actively=False)
    loop = VirtualLoop(Random(f"order {plan.seed}"))
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            verdict = runner.run(_Scene(plan, folder).play(redis))
    finally:
        redis.close()
    verdict.digest += f" {trace.digest()}"
    return verdict


class _Scene:
    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._folder = plan, folder
        self._verdict = Verdict()
        self._workers: list[Worker] = []
        self._links: list[Link] = []
        self._modules: dict[str, Site] = {}
        self._ports: dict[str, int] = {}
        self._faults: set[asyncio.Task[None]] = set()
        self._frozen: list[tuple[float, float]] = []
        self._parts: list[Part] = []
        self._mortal = asyncio.Semaphore(plan.workers)  # one for each worker that lives and is not about to die

    async def play(self, redis: VirtualRedis) -> Verdict:
        began_at = clock.monotonic()
        async with open_bed(redis) as self._bed:
            for name in MODULES:
                await self._serve(name)
            services = {name: f"http://127.0.0.1:{port}" for name, port in self._ports.items()}
            self._bed.given = settings_for(redis.url, services, None).model_dump(exclude_unset=True)
            await self._open_parts()
            for number in range(self._plan.workers):
                self._links.append(await self._bed.link(redis.port))
                self._workers.append(await self._worker(number))
            self._beat = await self._bed.beat()
            agents = [await self._agent(number) for number in range(_AGENTS)]
            faults = asyncio.create_task(self._break())
            calls = self._plan.calls // _AGENTS
            made = [asyncio.create_task(agent.make(calls, within=self._plan.seconds)) for agent in agents]
            made += [asyncio.create_task(part.live()) for part in self._parts]
            await faults
            for agent in agents:
                agent.stop()
            await asyncio.wait(made)
            self._verdict.violations += [f"All ends well: {one.exception()!r}" for one in made if one.exception()]
            await self._end()
            self._judge(sum(agent.made for agent in agents) + self._plan.life.get("returns", 0))
        self._verdict.virtual_seconds = clock.monotonic() - began_at
        return self._verdict

    async def _open_parts(self) -> None:
        for kind, count in self._plan.life.items():
            if count:
                self._verdict.life[kind] += count
                self._parts.append(part := PARTS[kind](count, self._plan, self._folder, self._bed))
                await part.open()
                self._bed.given |= part.settings

    async def _serve(self, name: str) -> None:
        """Serve a module, again at the same port."""
        site = self._modules[name] = self._bed.site(name)

        async def serve() -> int:
            app = _Module(name, self._folder / "journal").app()
            runner = web.AppRunner(app, handler_cancellation=False, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self._ports.get(name, 0), reuse_address=True).start()
            port: int = runner.addresses[0][1]
            return port

        self._ports[name] = await site.start(serve())

    async def _worker(self, number: int) -> Worker:
        return await self._bed.worker(redis_url=self._links[number].redis_url)

    async def _agent(self, number: int) -> "_Agent":
        fleet = await self._bed.agent()
        return _Agent(number, fleet, self._plan.seed, endings_of(self._folder, number))

    async def _break(self) -> None:
        began_at = clock.monotonic()
        for fault in self._plan.faults:
            await asyncio.sleep(max(began_at + fault.at - clock.monotonic(), 0))
            task = asyncio.create_task(self._happen(fault))
            self._faults.add(task)
            task.add_done_callback(self._on_over)
        await asyncio.sleep(max(began_at + self._plan.seconds - clock.monotonic(), 0))
        if self._faults:
            await asyncio.wait(self._faults)

    def _on_over(self, fault: asyncio.Task[None]) -> None:
        self._faults.discard(fault)
        exc = None if fault.cancelled() else fault.exception()
        if exc is not None:  # such as that of a member that could not be started again
            self._verdict.violations.append(f"All faults happen: {exc!r}")

    async def _happen(self, fault: Fault) -> None:
        self._verdict.faults[fault.kind] += 1
        await self._disturb(self._links[fault.member], fault)
        match fault.kind:
            case "kill_worker":
                await self._kill_worker(fault)
            case "kill_beat":
                await self._kill_beat(fault)
            case "kill_module":
                name = MODULES[fault.member % len(MODULES)]
                if not self._modules[name].is_dead:
                    self._verdict.kills += 1
                    self._modules[name].kill()
                    await asyncio.sleep(fault.seconds / 4)
                    await self._serve(name)
            case "freeze":
                since = clock.wall()
                self._bed.redis.freeze()
                await asyncio.sleep(fault.seconds / 2)
                self._bed.redis.thaw()
                self._frozen.append((since, clock.wall()))
            case "pause":
                worker = self._workers[fault.member]
                worker.site.pause()
                await asyncio.sleep(fault.seconds)
                if not worker.site.is_dead:
                    worker.site.resume()
            case "repeat":
                self._repeat(f"tools.{MODULES[fault.member % len(MODULES)]}")
            case "kill_core" | "kill_agent" | "kill_gateway":
                await self._strike(fault)
            case _:
                pass

    async def _kill_beat(self, fault: Fault) -> None:
        """Kill beat, unless it is dead already: then two would come in its place, and one of them would never end."""
        if not self._beat.is_dead:
            self._verdict.kills += 1
            self._beat.kill()
            await asyncio.sleep(fault.seconds)
            self._beat = await self._bed.beat()

    async def _strike(self, fault: Fault) -> None:
        """Have the first part that has such a member lose it. Which is the first, the fault says."""
        first = fault.member % max(len(self._parts), 1)
        for part in [*self._parts[first:], *self._parts[:first]]:
            if await part.strike(fault):
                self._verdict.kills += 1
                return

    async def _disturb(self, link: Link, fault: Fault) -> None:
        """Disturb a worker's connections to Redis."""
        match fault.kind:
            case "cut":
                link.cut()
            case "late":
                await self._during(link, "late_seconds", fault.seconds / 10, fault.seconds)
            case "lost_requests" | "lost_answers":
                await self._during(link, f"loses_{fault.kind.removeprefix('lost_')}", True, fault.seconds)
                link.cut()
            case _:
                pass

    async def _kill_worker(self, fault: Fault) -> None:
        """Kill a worker at a write; if it is about to die already, the next one that is not, as soon as there is one."""
        async with self._mortal:
            order = [(fault.member + number) % len(self._workers) for number in range(len(self._workers))]
            place = next(number for number in order if self._workers[number].site.dies_at is None)
            worker = self._workers[place]
            await die(worker.site, fault)
            self._verdict.kills += 1
            self._verdict.in_flight += worker.holds_calls
            await asyncio.sleep(fault.seconds / 20)
            self._workers[place] = await self._worker(place)

    @staticmethod
    async def _during(link: Link, name: str, value: Any, seconds: float) -> None:
        before = getattr(Link, name)
        setattr(link, name, value)
        await asyncio.sleep(seconds)
        setattr(link, name, before)

    def _repeat(self, queue: str) -> None:
        """Have a queue's next message delivered twice."""
        if self._bed.redis.is_frozen:
            return
        if (message := self._bed.ask("LINDEX", queue, -1)) is not None:
            self._bed.ask("RPUSH", queue, message)

    async def _end(self) -> None:
        """Wait until the last calls, whoever awaits them, are over."""
        await asyncio.sleep(_QUIET_SECONDS)
        with self._bed.redis.client() as look:
            for _ in range(_LONGEST_REST):
                if is_quiet(look):
                    break
                await asyncio.sleep(1)
        self._beat.kill()
        await asyncio.sleep(_LAST_SECONDS)

    def _judge(self, expected: int) -> None:
        agents = [*range(_AGENTS), RETURNING]
        endings = [ending for number in agents for ending in read_endings(endings_of(self._folder, number))]
        journal = read_journal(self._folder / "journal")
        call_ids = sorted({end.call_id for end in endings if end.call_id} | set(journal.by_call))
        with self._bed.redis.client() as look:
            records = read_records(look)
            steps = step_ids(records)
            call_ids = sorted({*call_ids, *steps, *then_ids(records)})
            stored = written_results(self._folder, steps) | stored_results(look, call_ids)
            evidence = Evidence(endings, journal, expected, stored)
            checks = [check_calls(evidence), left_in(look)]
            checks += [dict(part.judge(evidence, look, self._frozen)) for part in self._parts]
        self._verdict.calls = len(endings)
        self._verdict.violations += [
            f"{each.check}: {each.text}"
            for found in checks
            for texts in found.values()
            for each in texts
            if not any(part.excuses(each) for part in self._parts)
        ]
        told = [
            f"{end.ref} {end.way} {end.result and (end.result.error_code, end.result.effect_state)}" for end in endings
        ]
        done = [f"{entry.mark} {entry.ref} {entry.tool}" for entry in journal.entries]
        self._verdict.digest = hashlib.sha256("\n".join([*told, *done]).encode()).hexdigest()[:16]


class _Module(Module):
    """The module of the chaos tests, without the tools whose schemas take long: code takes no time here."""

    offers_hostile = False


class _Agent(Agent):
    """The agent of the chaos tests, told by its own methods instead of by signals."""

    @property
    def made(self) -> int:
        """How many calls it has made."""
        return self._made + self._made_at_once

    def stop(self) -> None:
        """Make no more than was planned."""
        self._is_enough.set()
