"""Keeps a worker from calls of modules that it cannot reach: leaves their queues to others, and looks until it can.

A worker's own trouble is its own: descriptors, ports, routes and names that it lacks say nothing of a module, and that it cannot
connect counts for the fleet only when no other worker can. Where nobody else takes the calls, it goes on.

The breaker is a hash:

- `failures`: calls in a row that were sent and not answered; `by:<worker>`: when a worker last found that it cannot connect
- `open_until` (ms): nobody begins a call before; when it is over, one process looks whether the module is there: `probe`, which
  has until `probe_until` for that; `failed_by`: who has looked last, in vain; `pause` (ms): how long it was left alone the last time
- `why`: for which reason it was opened by workers that cannot connect, as `policy.hints` has them
- `unready_since`: since when it says, whenever it is looked at, that it cannot serve now
- `half_at`: since when it is half-open; `tokens`: how many calls may begin now; `let_in_at`: when the last one did; `passed`: how
  many were answered since; `relapsed`: that one was not, and had it open again

Times are the server's, in ms, and handed in. Where its clock was set back, a time lies further ahead than it can: nothing is
waited for then. The hash expires when its failures are long ago.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from redis.exceptions import ResponseError

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.attempts import Health
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.redis.script import Script
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock, machine_clock, randomness
from toolfleet_registry.system.loggers import get_logger
from toolfleet_registry.system.process import this_process
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.aio import end
from toolfleet_tasks.ledger import parameters
from toolfleet_tasks.ledger.claims import Claim, NotClaimed
from toolfleet_tasks.ledger.ledger import Ledger
from toolfleet_tasks.messages.ids import kept_seconds
from toolfleet_tasks.presence import read_notes
from toolfleet_tasks.queues import lane_of, queue_of
from toolfleet_tasks.redis_connection import (
    PipelinedConnection,
    RedisConnectionClosed,
    RedisConnectionLost,
    run_durably,
)
from toolfleet_tasks.scripts import PATIENCE_MS, SLOTS_COUNT_SECONDS, script
from toolfleet_tasks.transport.leases import FetchedClaims
from toolfleet_tasks.worker_runtime import Runner, WorkerRuntime
from toolfleet_workers.runner import CallRunner

log = get_logger(__name__)

_PROBE_SECONDS = 2.0
_LOCK_SECONDS = _PROBE_SECONDS + 1  # that no other process probes: one that has died meanwhile is replaced then

UNREADY_SECONDS = 30.0
"""A module that says for so long that it cannot serve now is tried nevertheless: its `/health` may mean something else."""

_VERDICTS = {Health.WELL: "well", Health.UNKNOWN: "none", Health.NOT_READY: "unready"}

_FIRST_SECONDS, _GROWTH = 0.1, 1.5  # between two looks of a worker's own; then up to `BREAKER_SECONDS`
_JITTER = 0.2  # seconds, or as large a part of a pause: workers that failed together look one after the other
_RECOVERY_SECONDS = 1.0  # between two looks whether the breaker of a module that is back is closed
_POLL_SECONDS = 10.0  # for one look: Redis may be away
_SHORT_SECONDS = 2.0  # calls wait for a module that is away for so long, as admission control has them
_QUEUE_LENGTH = 200  # calls of a module that wait for their turn here, of which each has a slot
# Between two questions of the call that is first, and until a call comes again that found no place.
_ASK_SECONDS, _FULL_QUEUE_SECONDS = 0.03, 0.3
_PASS_SECONDS = 0.1  # until a call comes back for another worker; jittered
_STUCK_SECONDS = 5.0  # that no worker takes messages from a queue: until then the others may be busy
_GO_ON_SECONDS = 30.0  # that a worker without a substitute continues
# From its publishing on, a call is put off for others no longer: perhaps no other worker gets it.
_REST_SECONDS = 30.0

_UNREACHED = script("breaker/unreached")
"""Returns for how many ms the breaker is open, or 0."""

_REACHED = script("breaker/reached")

_ASK = script("breaker/ask")
"""Returns what to do (`probe`, `open`, `closed` or `half`), and for how many ms."""

_PROBED = script("breaker/probed")
"""Returns as `_UNREACHED`."""


class Finding(Enum):
    """The result of checking a module."""

    WELL = "well"
    """This worker may begin calls, as far as the breaker lets it."""
    OPEN = "open"
    """Its breaker is, and decides about its calls."""
    AWAY = "away"
    """This worker cannot connect to it, and others may."""
    BLOCKED = "blocked"
    """This worker cannot connect to anything new: it is its own trouble."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One look at a module. `seconds`: how long its breaker is open, if it is; `is_closed`: whether it surely is."""

    finding: Finding
    seconds: float = 0
    is_closed: bool = False


class Prober:
    """Probes modules for one worker, over the connection to the Redis of the results.

    One process of the whole fleet at a time probes a module with an open breaker, by `GET /health` and never by a
    user's call.
    """

    def __init__(
        self,
        connection: PipelinedConnection,
        settings: Settings,
        runner: Runner,
        *,
        known: KnownModules | None = None,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._runner = runner
        self._known = KnownModules(settings) if known is None else known
        self._unready_since: dict[str, float] = {}
        self.reasons: dict[str, str] = {}  # by module: why a call could not connect to it, the last time
        self._longest_ms = round(parameters.BREAKER_SECONDS * 1000)
        self._worker = this_process().name  # as it notes its slots

    async def probe(self, module: str, *, is_unreached: bool) -> ProbeResult:
        """Look at a module. `is_unreached`: this worker could not connect to it.

        Takes a few seconds at most while Redis answers. Raises `RedisConnectionClosed` and `ResponseError`.
        """
        others = await self._others(module)
        answer = await self._run(_ASK, module, probe_ms=round(_LOCK_SECONDS * 1000), has_others=int(bool(others)))
        what = answer[0].decode()
        if what == "open":
            return ProbeResult(Finding.OPEN, answer[1] / 1000)
        if what == "probe":
            return await self._probe_for_all(module)
        if is_unreached:
            return await self._probe_for_itself(module, others)
        return ProbeResult(Finding.WELL, is_closed=what == "closed")

    def forget(self, module: str) -> None:
        """Stop probing a module: its next answer is new."""
        self._unready_since.pop(module, None)
        self.reasons.pop(module, None)

    async def _others(self, module: str) -> list[str]:
        """The other live workers of the module's lane."""
        key, since = (
            self._settings.keys.slots(lane_of(module, self._known.settings)),
            fleet_clock.now() - SLOTS_COUNT_SECONDS,
        )
        notes: list[bytes] = await self._connection.execute("ZRANGEBYSCORE", key, round(since), "+inf")
        return [worker.name for worker in read_notes(notes) if worker.name != self._worker]

    async def _probe_for_all(self, module: str) -> ProbeResult:
        health = await self._runner.probe(module, seconds=_PROBE_SECONDS)
        log.info("module_probed", module=module, health=health)
        verdict, bearable_ms = _VERDICTS.get(health, "away"), round(UNREADY_SECONDS * 1000)
        longest_ms = self._longest_ms
        open_ms = await self._run(_PROBED, module, verdict=verdict, longest_ms=longest_ms, bearable_ms=bearable_ms)
        if health is Health.WELL:
            return ProbeResult(Finding.WELL)
        # Of one that is tried though it is not ready, the next look finds that the breaker lets calls in.
        return ProbeResult(Finding.BLOCKED) if health is Health.UNKNOWN else ProbeResult(Finding.OPEN, open_ms / 1000)

    async def _probe_for_itself(self, module: str, others: list[str]) -> ProbeResult:
        health = await self._health(module)
        if health is Health.UNKNOWN:
            return ProbeResult(Finding.BLOCKED)
        if health is Health.WELL:
            await self._run(_REACHED, module)
            return ProbeResult(Finding.WELL)
        return await self._unreached(module, others)

    async def _unreached(self, module: str, others: list[str]) -> ProbeResult:
        live, why = [self._worker, *others], self.reasons.get(module, "")
        open_ms = await self._run(_UNREACHED, module, longest_ms=self._longest_ms, why=why, live=live)
        return ProbeResult(Finding.OPEN, open_ms / 1000) if open_ms else ProbeResult(Finding.AWAY)

    async def _health(self, module: str) -> Health:
        """Return this worker's finding; it remembers for itself since when a module is not ready, as the breaker does for all."""
        health = await self._runner.probe(module, seconds=_PROBE_SECONDS)
        if health is not Health.NOT_READY:
            self._unready_since.pop(module, None)
            return health
        since = self._unready_since.setdefault(module, machine_clock.monotonic())
        return Health.WELL if machine_clock.monotonic() - since >= UNREADY_SECONDS else health

    async def _run(self, script: Script, module: str, **args: Any) -> Any:
        breaker = self._settings.keys.breaker(module)
        return await run_durably(
            self._connection, script, script.parameters(breaker=breaker, worker=self._worker, **args)
        )


@dataclass(eq=False)
class _Watch:
    """A module being probed. `tail`: the next message of its queue."""

    module: str
    is_unreached: bool
    pause: float = _FIRST_SECONDS
    tail: bytes | None = None
    tail_since: float = 0.0
    goes_on_until: float = 0.0
    since: float = 0.0


@dataclass(eq=False)
class _Queue:
    """Calls of one module that wait for their turn."""

    module: str
    count: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class HealthChecks:
    """A worker's, on its loop, from the first trouble with a module until it is over."""

    def __init__(
        self,
        here: WorkerRuntime,
        settings: Settings,
        runner: CallRunner,
        ledger: Ledger,
        known: KnownModules | None = None,
    ) -> None:
        self._here = here
        self._settings = settings
        self._ledger = ledger
        self._runner = runner
        self._prober = Prober(ledger.connection, settings, runner, known=known)
        self._watches: dict[str, _Watch] = {}
        self._recovering: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._queues: dict[str, _Queue] = {}
        self.troubles = self._watches, self._queues
        """The modules in trouble and their queues; both are empty while there are none. Callers only read them."""
        here.settle.append(self.aclose)
        if settings.broker == settings.redis_url:
            here.part(FetchedClaims).enable(
                ledger.connection,
                record_key=settings.keys.call,
                lease_ms=ledger.claims.lease_ms,
                may_claim=lambda: not (self._watches or self._queues),
                worker=lambda: ledger.tokens.worker,
                record_seconds=kept_seconds(None, settings),
            )

    async def claim(self, call: PublishedCall, *, deaths: int | None) -> Claim | NotClaimed:
        """Ask the ledger for a call, unless another worker had better take it. `deaths` as the ledger takes it.

        A call of a module that is just back waits here for its turn, if not too many do.
        """
        if self._queues and (connection := self._queues.get(_module(call))) is not None:
            return await self._queue_up(connection, call, deaths)
        claim = await self._claim(call, deaths)
        if isinstance(claim, NotClaimed) and claim.reason == "queued":
            module = _module(call)
            return await self._queue_up(self._queues.setdefault(module, _Queue(module)), call, deaths)
        return claim

    async def missed(self, call: PublishedCall, why: str = "") -> None:
        """Note that no connection could be made to the call's module, and `why`, if that is known: its queue is left alone, and probes start."""
        module = _module(call)
        self._prober.reasons[module] = why
        watch = self._watches.get(module)
        if watch is None:
            self._here.resting.rest(queue_of(module))
            self._start(_Watch(module, is_unreached=True))
        elif not watch.is_unreached:  # it was looked at for others' sake
            watch.is_unreached = True

    def doubt(self, call: PublishedCall) -> None:
        """The call's module has not answered: its breaker may be open by now, and no call may come to it again."""
        self._recover(_module(call))

    async def aclose(self) -> None:
        """ProbeResult no more."""
        await end(list(self._tasks))

    async def _claim(self, call: PublishedCall, deaths: int | None) -> Claim | NotClaimed:
        if self._watches and self._leaves(call):
            return NotClaimed("away", rest_seconds=_PASS_SECONDS)
        can_reach, replica = not self._watches or self._can_reach(call), self._runner.replica_for(call)
        claim = await self._ledger.claim(call, deaths=deaths, can_reach=can_reach, replica=replica)
        if _is_away(claim) and _module(call) not in self._watches:
            self._start(_Watch(_module(call), is_unreached=False, pause=0))
        return claim

    async def _queue_up(self, connection: _Queue, call: PublishedCall, deaths: int | None) -> Claim | NotClaimed:
        """Queue up, first come, first served: the first waiter asks repeatedly, and the others do not ask."""
        if connection.count >= _QUEUE_LENGTH:
            return NotClaimed("queued", rest_seconds=_FULL_QUEUE_SECONDS)
        connection.count += 1
        try:
            async with connection.turn:
                while _is_queued(claim := await self._claim(call, deaths)):  # noqa: ASYNC110 - it is Redis who knows
                    await asyncio.sleep(_ASK_SECONDS)  # answers that other workers get make room, too
                return claim
        finally:
            connection.count -= 1
            if not connection.count:
                self._queues.pop(connection.module, None)

    def _leaves(self, call: PublishedCall) -> bool:
        """Return whether the call should be put off, for another worker to take it."""
        if queue_of(_module(call)) not in self._here.resting:
            return False
        return fleet_clock.now() < call.published_at + _REST_SECONDS

    def _can_reach(self, call: PublishedCall) -> bool:
        watch = self._watches.get(_module(call))
        return watch is None or not watch.is_unreached or self._here.loop.time() < watch.goes_on_until

    def _start(self, watch: _Watch) -> None:
        self._watches[watch.module], watch.since = watch, self._here.loop.time()
        self._begin(self._keep_probing(watch), watch.module)

    def _begin(self, work: Coroutine[Any, Any, None], module: str) -> None:
        task = self._here.loop.create_task(work, name=f"toolfleet-health-{module}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_probing(self, watch: _Watch) -> None:
        log.info("module_watched", module=watch.module, is_unreached=watch.is_unreached)
        try:
            while True:
                await asyncio.sleep(watch.pause + randomness.random() * _JITTER * min(watch.pause, 1))  # spreads load
                if await self._is_over(watch):
                    break
        except RedisConnectionClosed:
            return
        except Exception:  # a worker that leaves a queue alone for ever would go unnoticed
            log.exception("module_not_watched", module=watch.module)
        finally:
            del self._watches[watch.module]
            self._prober.forget(watch.module)
            self._here.resting.end(queue_of(watch.module))
        log.info("module_watched_no_more", module=watch.module)
        self._recover(watch.module)

    def _recover(self, module: str) -> None:
        if module not in self._recovering and not self._here.loop.is_closed():
            self._recovering.add(module)
            self._begin(self._keep_recovering(module), module)

    async def _keep_recovering(self, module: str) -> None:
        """Probe now and then, in addition to calls, until the module's breaker is closed: without calls nothing else closes it."""
        result = ProbeResult(Finding.OPEN)
        try:
            while not result.is_closed:
                await asyncio.sleep(max(result.seconds, _RECOVERY_SECONDS) * (1 + randomness.random() * _JITTER))
                result, _ = await self._found(_Watch(module, is_unreached=False))
        except RedisConnectionClosed:
            return
        finally:
            self._recovering.discard(module)

    async def _found(self, watch: _Watch) -> tuple[ProbeResult, bool]:
        """Return the result of a probe, and whether no worker takes the module's calls."""
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                is_stuck = watch.is_unreached and await self._is_stuck(watch)
                return await self._prober.probe(watch.module, is_unreached=watch.is_unreached), is_stuck
        except RedisConnectionClosed:
            raise
        except (TimeoutError, RedisConnectionLost, ResponseError) as exc:  # Redis is away; there are no calls meanwhile
            log.warning("module_not_looked_at", module=watch.module, error=str(exc))
            return ProbeResult(Finding.AWAY), False

    async def _is_over(self, watch: _Watch) -> bool:
        result, is_stuck = await self._found(watch)
        if result.finding is Finding.WELL:
            return True
        self._follow(watch, result, is_stuck=is_stuck)
        return False

    def _follow(self, watch: _Watch, result: ProbeResult, *, is_stuck: bool) -> None:
        queue = queue_of(watch.module)
        if result.finding is Finding.OPEN:
            watch.pause = max(result.seconds, _FIRST_SECONDS)
            ends_at = self._here.loop.time() + result.seconds + _PROBE_SECONDS
            if result.seconds <= _SHORT_SECONDS and ends_at <= watch.since + PATIENCE_MS / 1000:
                self._here.resting.rest(queue)  # its calls wait where it costs nothing
            else:
                self._here.resting.end(queue)  # the breaker refuses them
            return
        watch.is_unreached = True
        watch.pause = min(max(watch.pause, _FIRST_SECONDS) * _GROWTH, parameters.BREAKER_SECONDS)
        if is_stuck:
            watch.goes_on_until = self._here.loop.time() + _GO_ON_SECONDS
        if self._here.loop.time() < watch.goes_on_until:
            self._here.resting.end(queue)
        else:
            self._here.resting.rest(queue)

    async def _is_stuck(self, watch: _Watch) -> bool:
        """Return whether no worker takes messages from the module's queue, though there are some."""
        queue, now = queue_of(watch.module), self._here.loop.time()
        if not self._settings.has_redis_broker or queue not in self._here.resting:
            return False
        tail = await self._here.to_broker().execute("LINDEX", self._settings.keys.queue(queue), -1)
        if tail is None or tail != watch.tail:
            watch.tail, watch.tail_since = tail, now
        return now - watch.tail_since >= _STUCK_SECONDS if tail is not None else False


def checks_of(app: Any, ledger: Ledger) -> HealthChecks:
    """Return the health checks of this worker's loop; `app` is a worker's."""
    return worker_runtime.here().part(HealthChecks, app.settings, app.runner, ledger, app.modules)


def _is_queued(claim: Claim | NotClaimed) -> bool:
    return isinstance(claim, NotClaimed) and claim.reason == "queued"


def _is_away(claim: Claim | NotClaimed) -> bool:
    return claim.reason == "away" if isinstance(claim, NotClaimed) else claim.granted == "open"


def _module(call: PublishedCall) -> str:
    return call.tool_name.partition(".")[0]
