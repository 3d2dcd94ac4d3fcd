"""What lives in the simulation beside the calls of agents. How many there are of each kind, a plan says."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from celery import chain, group
from celery.canvas import Signature
from kombu.exceptions import OperationalError
from redis import Redis

from bed import clock
from bed.fleet import Bed, Gateway
from bed.site import Site
from chaos.approvals.cases import AGENTS, Case, make_cases
from chaos.approvals.checks import check_cases
from chaos.approvals.players import Players
from chaos.checks.call_checks import AT_MOST, OTHER, Evidence, Violation
from chaos.checks.job_checks import check_jobs
from chaos.checks.job_evidence import JobEvidence
from chaos.gateways.checks import check_intentions
from chaos.gateways.clients import Client, Intention, intentions
from chaos.plan import LEASE_SECONDS, effect_of
from chaos.processes.agent import Agent, endings_of
from chaos.processes.core import Core
from chaos.processes.job_agent import JobAgent
from chaos.records.acts import read_acts
from chaos.records.job_notes import notes_of, read_notes, read_records
from chaos.records.journal import Journal
from chaos.records.outcomes import read_endings
from simulation.plan import Fault, Life, Plan
from toolfleet import Caller, FleetUnavailable, ToolCall, ToolFleet, ToolResult
from toolfleet_registry.errors import FleetError
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.webhooks import receiver

_PATIENCE_SECONDS = 1.0  # for a member that is to die at a write and makes none

T = TypeVar("T")

RETURNING = 9
"""The number of the agent that dies."""

_FORGOTTEN_SECONDS = 0.05, 2.0
_LOST_CLAIMS = "No call is executed again but for claims that Redis has forgotten"
_NEVER_EXCUSED = {
    _LOST_CLAIMS,
    "Every awaited call gave exactly one result",
    "No call ended later than its deadline and the margin",
}
_RECORD = re.escape(Keys().call(""))
_OPEN = re.compile(rf"^{_RECORD}(\S+):")
_CLAIM = re.compile(rb"\$4\r\nHSET\r\n\$\d+\r\n" + _RECORD.encode() + rb"(\S+)\r\n\$5\r\ntoken\r\n")
_LINKS, _LINK_SECONDS = 3, 60.0
_AGAIN_SECONDS = 0.5
_RETURNED = "returned-"
_RETURNS_ALL = "An agent that comes back has each of its calls end once"
_CANVAS_CALLER = Caller(user_id="weaver", permission="user", allowed_modules="*")
_RETURNING_CALLER = Caller(user_id="returning", permission="user", allowed_modules="*")

Found = Mapping[str, list[Violation]]
"""What does not hold, by the names of the checks."""


async def die(site: Site, fault: Fault) -> None:
    """Kill a member at the write that a fault says; at once, if it makes none."""
    dead = site.die_at(fault.write, fault.part)
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await dead.wait()
    except TimeoutError:
        site.kill()


class Part:
    """One kind of life, of which a plan wants `count`."""

    settings: Mapping[str, Any] = {}
    """What the whole fleet is given for it."""

    def __init__(self, count: int, plan: Plan, folder: Path, bed: Bed) -> None:
        self._count, self._plan, self._folder, self._bed = count, plan, folder, bed

    async def open(self) -> None:
        """Start what is there before the fleet."""

    async def live(self) -> None:
        """Do all of it, while the faults happen, and return when it has ended."""
        raise NotImplementedError

    async def strike(self, fault: Fault) -> bool:
        """Kill a member and start it again, if this is its fault. Returns whether it was."""
        del fault
        return False

    def judge(self, evidence: Evidence, look: Redis, frozen: Sequence[tuple[float, float]]) -> Found:
        """Return what does not hold. `frozen`: from when to when Redis was."""
        raise NotImplementedError

    def excuses(self, violation: Violation) -> bool:
        """Return whether what another check has found may be, because of what this part does."""
        del violation
        return False


class Returning:
    """A member that works until it is done: in a process of its own, and if that dies in the next one."""

    def __init__(self, bed: Bed, name: str, work: Callable[[ToolFleet], Awaitable[None]]) -> None:
        self._bed, self._name, self._work = bed, name, work
        self._site: Site | None = None
        self._has_died = asyncio.Event()
        self._away_seconds = 0.0

    async def run(self) -> None:
        """Return when its work is done."""
        while True:
            self._has_died.clear()
            self._site = self._bed.site(self._name)
            working = self._site.start(self._run())
            dead = asyncio.create_task(self._has_died.wait())
            await asyncio.wait({working, dead}, return_when=asyncio.FIRST_COMPLETED)
            dead.cancel()
            if working.done():
                self._site = None
                return working.result()
            await asyncio.sleep(self._away_seconds)

    async def strike(self, fault: Fault) -> bool:
        """Kill it, if it works and is not about to die."""
        site = self._site
        if site is None or site.dies_at is not None or site.is_dead:
            return False
        await die(site, fault)
        self._away_seconds = fault.seconds / 4
        self._has_died.set()
        return True

    async def _run(self) -> None:
        async with ToolFleet(settings=self._bed.settings) as fleet:
            await self._work(fleet)


class Jobs(Part):
    """Jobs of every shape, and the core that acts on the news of their ends."""

    async def open(self) -> None:
        """Implements `Part.open`."""
        receiver.LEASE_SECONDS = float(LEASE_SECONDS)  # what the dead have left is soon free
        self._core, url = await self._serve_core(0)
        self._port = int(url.rpartition(":")[2])
        self.settings = {"core_url": url}

    async def live(self) -> None:
        """Implements `Part.live`."""
        fleet = await self._bed.agent()
        await JobAgent(fleet, self._plan.seed, notes_of(self._folder)).make(self._count, within=self._plan.seconds)

    async def strike(self, fault: Fault) -> bool:
        """Implements `Part.strike`."""
        if fault.kind != "kill_core" or self._core.is_dead or self._core.dies_at is not None:
            return False
        await die(self._core, fault)
        await asyncio.sleep(fault.seconds / 4)
        self._core, _ = await self._serve_core(self._port)
        return True

    def judge(self, evidence: Evidence, look: Redis, frozen: Sequence[tuple[float, float]]) -> Found:
        """Implements `Part.judge`."""
        left = JobEvidence(
            notes=read_notes(notes_of(self._folder)),
            records=read_records(look),
            acts=read_acts(self._folder, look),
            journal=evidence.journal,
            stored=evidence.stored,
            expected=self._count,
            unstored=frozen,
        )
        return check_jobs(left)

    async def _serve_core(self, port: int) -> tuple[Site, str]:
        return await self._bed.serve_app("core", _Core(self._bed.redis.url, self._folder), port)


class Approvals(Part):
    """Calls that people have to approve, and a process of agents and people that dies: then the next one goes on with them."""

    settings: Mapping[str, Any] = {"agents": AGENTS}

    async def open(self) -> None:
        """Implements `Part.open`."""
        self._dice = Random(f"approvals {self._plan.seed}")
        self._cases = make_cases(self._count, self._dice)
        self._over = set[str]()
        self._players = Returning(self._bed, "players", self._play)

    async def live(self) -> None:
        """Implements `Part.live`."""
        self._began_at = clock.monotonic()
        await self._players.run()

    async def strike(self, fault: Fault) -> bool:
        """Implements `Part.strike`."""
        return fault.kind == "kill_agent" and await self._players.strike(fault)

    def judge(self, evidence: Evidence, look: Redis, frozen: Sequence[tuple[float, float]]) -> Found:
        """Implements `Part.judge`."""
        del look, frozen
        return check_cases(self._cases, evidence.journal)

    async def _play(self, fleet: ToolFleet) -> None:
        players = Players([fleet], self._dice)

        async def one(number: int, case: Case) -> None:
            due = self._began_at + number / self._count * self._plan.seconds
            await asyncio.sleep(max(due - clock.monotonic(), 0))
            await players.play(case)
            self._over.add(case.ref)

        await asyncio.gather(*(one(*each) for each in enumerate(self._cases) if each[1].ref not in self._over))


class Returns(Part):
    """Calls of an agent that dies, and comes back: it makes each under its key, until it has noted the call's end."""

    async def open(self) -> None:
        """Implements `Part.open`."""
        self.endings = endings_of(self._folder, RETURNING)
        self._agent = Returning(self._bed, "agent", self._call)

    async def live(self) -> None:
        """Implements `Part.live`."""
        self._began_at = clock.monotonic()
        await self._agent.run()

    async def strike(self, fault: Fault) -> bool:
        """Implements `Part.strike`."""
        return fault.kind == "kill_agent" and await self._agent.strike(fault)

    def judge(self, evidence: Evidence, look: Redis, frozen: Sequence[tuple[float, float]]) -> Found:
        """Implements `Part.judge`; the checks of all calls are the others'."""
        del look, frozen
        refs = Counter(ending.ref for ending in evidence.endings if ending.ref.startswith(_RETURNED))
        wrong = [f"{self._count} were to be asked for, and {len(refs)} ended"] if len(refs) != self._count else []
        wrong += [f"{ref} ended {count} times for its agent" for ref, count in refs.items() if count > 1]
        return {_RETURNS_ALL: [Violation(_RETURNS_ALL, text) for text in wrong]}

    async def _call(self, fleet: ToolFleet) -> None:
        over = {ending.ref for ending in read_endings(self.endings)}
        agent = _ReturningAgent(RETURNING, fleet, self._plan.seed, self.endings)
        dues = [self._began_at + number / self._count * self._plan.seconds for number in range(self._count)]
        await agent.make_again(dues, over)


class _ReturningAgent(Agent):
    """The agent of the chaos tests, which makes the same calls whenever it is started."""

    async def make_again(self, dues: Sequence[float], over: Collection[str]) -> None:
        """Make a call at each of these times, but for those that are over."""
        making = list[Coroutine[Any, Any, object]]()
        for number, due in enumerate(dues):
            call, timeout = self._call(self._dice, name=f"{_RETURNED}{number}"), self._timeout()
            call = call.model_copy(update={"idempotency_key": f"key of {call.arguments['ref']}"})
            if call.arguments["ref"] not in over:
                making.append(self._make(call, due, timeout))
        await asyncio.gather(*making)

    async def _make(self, call: ToolCall, due: float, timeout: float) -> None:
        await asyncio.sleep(max(due - clock.monotonic(), 0))
        await self._note("keyed", call, timeout, self._run(call, _RETURNING_CALLER, timeout))


class Clients(Part):
    """Clients of a gateway that is killed, and started again at its port."""

    _gateway: Gateway | None = None

    async def live(self) -> None:
        """Implements `Part.live`."""
        began_at, dice = clock.monotonic(), Random(f"clients {self._plan.seed}")
        self._wanted = intentions(self._count, ("rest",), dice)
        self._gateway = await self._started()
        async with self._gateway.client() as http:
            client = Client(set(), [http], dice)

            async def one(number: int, wanted: Intention) -> None:
                due = began_at + number / self._count * self._plan.seconds
                await asyncio.sleep(max(due - clock.monotonic(), 0))
                await client.have_done(wanted)

            await asyncio.gather(*(one(*each) for each in enumerate(self._wanted)))

    async def strike(self, fault: Fault) -> bool:
        """Implements `Part.strike`."""
        if fault.kind != "kill_gateway" or (gateway := self._gateway) is None or gateway.site.dies_at is not None:
            return False
        await die(gateway.site, fault)
        await asyncio.sleep(fault.seconds / 4)
        self._gateway = await self._started(gateway.address[1])
        return True

    async def _started(self, port: int = 0) -> Gateway:
        """Start it, as its supervisor does: once more if it has found no Redis."""
        while True:
            with suppress(FleetError):
                return await self._bed.gateway(port)
            await asyncio.sleep(_AGAIN_SECONDS)

    def judge(self, evidence: Evidence, look: Redis, frozen: Sequence[tuple[float, float]]) -> Found:
        """Implements `Part.judge`."""
        del look, frozen
        return check_intentions(self._wanted, evidence.journal)


class Canvases(Part):
    """Chains and groups of Celery's canvas: what follows what, once each."""

    async def open(self) -> None:
        """Implements `Part.open`."""
        self._told = dict[str, ToolResult | None]()
        wanted = intentions(2 * _LINKS * self._count, ("rest",), Random(f"canvases {self._plan.seed}"))
        made = [wanted[start : start + _LINKS] for start in range(0, len(wanted), _LINKS)]
        self._chains, self._groups = made[::2], made[1::2]

    async def live(self) -> None:
        """Implements `Part.live`."""
        fleet, began_at = await self._bed.agent(), clock.monotonic()

        async def one(number: int, kind: Callable[[list[Signature]], Any], wanted: Sequence[Intention]) -> None:
            due = began_at + number / self._count * self._plan.seconds
            await asyncio.sleep(max(due - clock.monotonic(), 0))
            calls = [ToolCall(tool_name=each.tool, arguments=each.arguments) for each in wanted]
            links = [await _until_done(partial(_link, fleet, call)) for call in calls]
            canvas = kind(links)
            await _until_done(lambda: asyncio.to_thread(canvas.apply_async))  # again: a link runs once all the same
            for each, link in zip(wanted, links, strict=True):
                told = await _until_done(partial(fleet.canvas.result_of, link, timeout=2 * _LINK_SECONDS))
                self._told[each.ref] = told

        chains, groups = enumerate(self._chains), enumerate(self._groups)
        await asyncio.gather(
            *(one(number, chain, wanted) for number, wanted in chains),
            *(one(number, group, wanted) for number, wanted in groups),
        )

    def judge(self, evidence: Evidence, look: Redis, frozen: Sequence[tuple[float, float]]) -> Found:
        """Implements `Part.judge`."""
        del look, frozen
        done = evidence.journal.effects_of_ref
        links = [each for canvas in (*self._chains, *self._groups) for each in canvas]
        ended = [f"{each.ref} has no end" for each in links if self._told.get(each.ref) is None]
        once = [f"{each.ref} was executed {len(done[each.ref])} times" for each in links if len(done[each.ref]) > 1]
        pairs = [pair for wanted in self._chains for pair in pairwise(wanted)]
        order = [fault for pair in pairs if (fault := self._fault_between(*pair, evidence.journal)) is not None]
        names = {
            "Every link has an end": ended,
            "No link runs twice": once,
            "A chain goes on after a success only": order,
        }
        return {name: [Violation(name, text) for text in texts] for name, texts in names.items()}

    def _fault_between(self, first: Intention, second: Intention, journal: Journal) -> str | None:
        before, after = self._told.get(first.ref), self._told.get(second.ref)
        if before is None or after is None:
            return None  # it has no end, which is said already
        started = [entry.at for entry in journal.entries if entry.ref == second.ref]
        if started and not before.success:
            return f"{second.ref} was begun after {first.ref} had come to {before}"
        if started and min(started) < max((effect.at for effect in journal.effects_of_ref[first.ref]), default=0.0):
            return f"{second.ref} was begun before {first.ref} had happened"
        if before.success and after.error_code == "cancelled":
            return f"{second.ref} has come to {after} after the success of {first.ref}"
        return None


async def _link(fleet: ToolFleet, call: ToolCall) -> Signature:
    return await fleet.canvas.signature(call, _CANVAS_CALLER, timeout=_LINK_SECONDS)


async def _until_done(ask: Callable[[], Awaitable[T]]) -> T:
    """Do it until Redis has answered."""
    while True:
        with suppress(FleetUnavailable, OperationalError):
            return await ask()
        await asyncio.sleep(_AGAIN_SECONDS)


class Forgets(Part):
    """A Redis that forgets what it has confirmed last: those calls alone may be executed again, each as the same one."""

    async def open(self) -> None:
        """Implements `Part.open`."""
        self._lost = list[bytes]()
        self._dice = Random(f"forgets {self._plan.seed}")
        self._moments = sorted(self._dice.uniform(0, self._plan.seconds) for _ in range(self._count))

    async def live(self) -> None:
        """Implements `Part.live`."""
        began_at, redis = clock.monotonic(), self._bed.redis
        for moment in self._moments:
            await asyncio.sleep(max(began_at + moment - clock.monotonic(), 0))
            since = redis.written_bytes
            await asyncio.sleep(self._dice.uniform(*_FORGOTTEN_SECONDS))
            while redis.is_frozen:  # noqa: ASYNC110 - nothing announces its end
                await asyncio.sleep(_AGAIN_SECONDS)
            self._lost.append(redis.forget(since))

    def judge(self, evidence: Evidence, look: Redis, frozen: Sequence[tuple[float, float]]) -> Found:
        """Implements `Part.judge`."""
        del look, frozen
        journal = evidence.journal
        lost = {call_id for call_id in journal.by_call if self._has_lost(call_id)}
        self._intentions = {entry.ref.removesuffix(OTHER) for call_id in lost for entry in journal.by_call[call_id]}
        again = list[Violation]()
        for call_id, effects in evidence.journal.effects.items():
            most = AT_MOST[effect_of(effects[0].tool)] + self._claims[call_id]
            if len(effects) > most:
                text = f"{effects[0].tool} {call_id}: executed {len(effects)} times, with {self._claims[call_id]} lost"
                again.append(Violation(_LOST_CLAIMS, text, call_id))
        return {_LOST_CLAIMS: again}

    def excuses(self, violation: Violation) -> bool:
        """Implements `Part.excuses`: a call that Redis has forgotten may have another end, come again, or stay open."""
        if violation.check in _NEVER_EXCUSED:
            return False
        named = _OPEN.search(violation.text)
        call_id = violation.call_id or (named[1] if named else None)
        is_lost = call_id is not None and self._has_lost(call_id)
        return is_lost or (violation.ref or "").removesuffix(OTHER) in self._intentions

    def _has_lost(self, call_id: str) -> bool:
        return any(call_id.encode() in lost for lost in self._lost)

    @cached_property
    def _claims(self) -> Counter[str]:
        """How many claims of each call were forgotten."""
        return Counter(found.decode() for lost in self._lost for found in _CLAIM.findall(lost))


class _Core(Core):
    """The core of the chaos tests, with all of its acts in Redis: SQLite has a clock of its own."""

    async def _act(self, path: str, headers: dict[str, str], body: bytes, *, in_sql: bool) -> None:
        del in_sql
        await super()._act(path, headers, body, in_sql=False)


PARTS: Mapping[Life, type[Part]] = {
    "jobs": Jobs,
    "approvals": Approvals,
    "returns": Returns,
    "clients": Clients,
    "canvases": Canvases,
    "forgets": Forgets,
}
