"""Whatever happens in whatever order: a call has one result, is not begun too often, and claims no more than is known.

Workers claim calls that are delivered again and again, crash, freeze, lose answers and send again, while others take their
calls over, callers take them back, and Redis loses its data. What they may conclude is checked after each step.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis import Redis

from support.published_call import published
from support.servers.gated_connection import Gate, GatedConnection
from support.waiting import PATIENCE_SECONDS
from support.workers.ledgers import ENDING, SUCCESS, TOOL, TURNED_AWAY, attempt, claimed_state, failed
from toolfleet_registry.contracts import PublishedCall, RetryTerms, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.ledger import parameters
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.ledger.ledger import Ledger, NotClaimed
from toolfleet_tasks.ledger.retry import decide, most_attempts, settled
from toolfleet_tasks.messages import fleet_results, json_text
from toolfleet_tasks.results.stored import text_of

WORKERS, ROOM, OPEN = 3, 3, 4
LIMITS: dict[str, Any] = {"module_concurrency": {"research": ROOM}}
NOT_SENT = attempt(Outcome.NOT_SENT, "module_unreachable", "none")
UNKNOWN = attempt(Outcome.UNKNOWN, "timed_out")
FAILED = attempt(Outcome.FAILED)
ACTED, IDLE = (SUCCESS, FAILED, UNKNOWN), (NOT_SENT, TURNED_AWAY, FAILED, UNKNOWN)
"""What a worker may see of an attempt that had its effect, and of one that had not."""
NOT_NOW = {"full", "away", "queued"}

numbers, flags = st.integers(0, 11), st.booleans()
losses = st.sampled_from([False, False, False, True])
retries = st.sampled_from([None, None, RetryTerms(max_retries=0), RetryTerms(max_retries=3)])
kinds = st.tuples(st.sampled_from(["once", None, "read", "idempotent"]), retries)
_ids = itertools.count()


@dataclass
class Bench:
    """Workers, the agent last, on one event loop for all examples."""

    runner: asyncio.Runner
    look: Redis
    lines: list[GatedConnection]
    ledgers: list[Ledger]


@contextmanager
def bench(url: str) -> Generator[Bench]:
    with (
        asyncio.Runner() as runner,
        Redis.from_url(url, decode_responses=True) as look,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(parameters, "BREAKER_FAILURES", 3)

        async def start() -> tuple[list[GatedConnection], list[Ledger]]:
            lines = [GatedConnection(connection_factory(url), name=f"worker-{number}") for number in range(WORKERS + 1)]
            settings = Settings(redis_url=url, **LIMITS)
            for line in lines:
                line.start()
                await line.connected()
            return lines, [Ledger(line, settings, writes_results=True) for line in lines]

        async def stop() -> None:
            for line, ledger in zip(lines, ledgers, strict=True):
                await ledger.claims.aclose()
                await line.aclose()

        lines, ledgers = runner.run(start())
        try:
            yield Bench(runner, look, lines, ledgers)
        finally:
            runner.run(stop())


@dataclass(eq=False)
class Held:
    """A claim in the hands of a worker. `acted`: whether its attempt had its effect. `is_over`: nobody is at it any more."""

    call: "Called"
    worker: int
    claim: Claim
    acted: bool
    is_over: bool = False
    is_closed: bool = False
    has_run_out: bool = False
    was_frozen: bool = False
    follows: ToolResult | None = None

    @property
    def is_live(self) -> bool:
        return not self.is_over and not self.has_run_out


@dataclass(eq=False)
class Called:
    """A call as the test knows it. `effects`: how often it had its effect. `is_lost`: Redis, which had `data_id`, has lost it."""

    call: PublishedCall
    data_id: str
    held: list[Held] = field(default_factory=list)
    effects: int = 0
    times_run_out: int = 0
    stored: str | None = None
    is_lost: bool = False

    @property
    def begun(self) -> list[Held]:
        return [held for held in self.held if held.claim.granted == "go"]


@dataclass(eq=False)
class Pending:
    """Something whose answer was lost, and what follows when it has come."""

    gate: Gate
    task: "asyncio.Task[Any]"
    then: Callable[[Any], None]


class LedgerMachine(RuleBasedStateMachine):
    """What may happen."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        self.calls: list[Called] = []
        self.pending: list[Pending] = []
        self.wrongly_lost: list[Held] = []
        self.taken_back = 0

    @initialize(kinds=st.lists(kinds, min_size=1, max_size=4))
    def begin(self, kinds: list[Any]) -> None:
        self.bench.look.delete(Keys().running("research"), Keys().breaker("research"))
        self.bench.look.set(Keys().data_id, "at first")
        for kind in kinds:
            self.publish(kind)

    @precondition(lambda self: len(self._open()) < OPEN)
    @rule(kind=kinds)
    def publish(self, kind: Any) -> None:
        """A further call."""
        data_id = str(self.bench.look.get(Keys().data_id))
        self.calls.append(Called(published(call_id=f"call-{next(_ids)}", effect=kind[0], retry=kind[1]), data_id))

    @rule(call=numbers, worker=numbers, acted=flags, loses=losses)
    def deliver(self, call: int, worker: int, acted: bool, loses: bool) -> None:
        """The broker gives a call to a worker, perhaps not for the first time."""
        called, number = self._call(call), worker % WORKERS
        if called.is_lost:  # so were its messages
            return
        ledger, run_out = self.bench.ledgers[number], called.times_run_out

        def then(answer: Claim | NotClaimed) -> None:
            self._told(called, number, acted, answer, was_frozen=called.times_run_out > run_out)

        self._do(number, lambda: ledger.claim(called.call), then, loses)

    @rule(call=numbers, acted=flags)
    def deliver_twice(self, call: int, acted: bool) -> None:
        """To two workers at once, as brokers do."""
        for worker in range(2):
            self.deliver(call, worker, acted, loses=False)

    @precondition(lambda self: self._running())
    @rule(held=numbers, kind=numbers, loses=losses)
    def end_attempt(self, held: int, kind: int, loses: bool) -> None:
        """An attempt ends, also one that is late, and the worker does what the table says."""
        running = self._running()
        one = running[held % len(running)]
        kinds = ACTED if one.acted else IDLE
        ended, claim = kinds[kind % len(kinds)], one.claim
        usual: dict[str, Any] = {"seconds_left": 60, "longest_delay": 30, "jitter": 0, "terms": claim.call.retry}
        follows = decide(ended, claim.call.effect, attempts=claim.attempts, so_far=claim.so_far, **usual)
        if follows.delay is None:
            self._finish(one, follows.result, ended, loses)
            return
        one.is_over, one.follows = True, follows.result
        one.is_closed = not self._is_superseded(one)
        ledger, state = self.bench.ledgers[one.worker], follows.result.effect_state
        self._do(one.worker, lambda: ledger.close(claim, ended, seconds=0, so_far=state), lambda _: None, loses)

    @precondition(lambda self: self._closed())
    @rule(held=numbers, loses=losses)
    def retry_is_not_published(self, held: int, loses: bool) -> None:
        """Whoever has closed an attempt ends the call after all."""
        closed = self._closed()
        one = closed[held % len(closed)]
        assert one.follows is not None
        self._finish(one, one.follows, None, loses)

    @precondition(lambda self: self._settling())
    @rule(held=numbers, loses=losses)
    def settle(self, held: int, loses: bool) -> None:
        """A call that must not be run is ended."""
        settling = self._settling()
        one = settling[held % len(settling)]
        self._finish(one, settlement(one.claim), None, loses)

    @precondition(lambda self: self._alive())
    @rule(held=numbers, lets_go=flags)
    def crash(self, held: int, lets_go: bool) -> None:
        """By an exception, or with its whole worker; the attempt is never closed."""
        alive = self._alive()
        one = alive[held % len(alive)]
        one.is_over = True
        claims = self.bench.ledgers[one.worker].claims
        claims.drop(one.claim)
        if lets_go:
            self._run(self._settled(claims._let_go(one.claim)))

    @precondition(lambda self: self._running_out())
    @rule(call=numbers)
    def lease_runs_out(self, call: int) -> None:
        """Whoever is at the call is frozen, or dead."""
        calls = self._running_out()
        self._run_out(calls[call % len(calls)])

    def _run_out(self, called: Called) -> None:
        look = self.bench.look
        record = Keys().call(called.call.call_id)
        if look.hexists(record, "lease"):
            look.hset(record, "lease", 1)
        look.zadd(Keys().running("research"), {called.call.call_id: 1}, xx=True)
        called.times_run_out += 1
        for held in called.held:
            held.has_run_out = held.was_frozen = True

    @precondition(lambda self: self._alive())
    @rule(worker=numbers)
    def renew(self, worker: int) -> None:
        """A worker begins all its leases anew; those that it has not lost, it has again."""
        number = worker % WORKERS
        self.bench.ledgers[number].claims._renew()
        self._run(self._settled(self.bench.lines[number].send("PING")))
        for held in self._alive():
            if held.worker == number:
                held.has_run_out = False

    @precondition(lambda self: 3 * self.taken_back < len(self.calls))
    @rule(call=numbers, kind=numbers, loses=losses)
    def end_from_outside(self, call: int, kind: int, loses: bool) -> None:
        """At its deadline, by its caller, by Celery, or because nobody knows whether it was published."""
        self.taken_back += 1
        calls, ledger = self._open() or self.calls, self.bench.ledgers[-1]
        called = calls[call % len(calls)]
        end = ledger.end if kind % 2 else ledger.withdraw

        async def operation() -> str | None:
            return await end(called.call, ENDING, data_id=called.data_id)

        if loses:
            self.pending.append(self._run(self._answer_lost(operation, lambda stored: self._ended(called, stored))))
        else:
            self._ended(called, self._run(operation()))

    @staticmethod
    async def _answer_lost(operation: Callable[[], Awaitable[Any]], then: Callable[[Any], None]) -> Pending:
        """The agent itself asks again, on its next connection."""
        gate = Gate()
        await operation()

        async def again() -> Any:
            await gate.opened.wait()
            return await operation()

        return Pending(gate, asyncio.ensure_future(again()), then)

    @precondition(lambda self: self._is_away())
    @rule()
    def module_is_back(self) -> None:
        """Somebody has looked, and calls are let in one after the other."""
        now = int(time.time() * 1000)
        half_open: dict[Any, Any] = {"open_until": 1, "half_at": now, "let_in_at": now, "pause": 60_000, "tokens": 2}
        self.bench.look.hset(Keys().breaker("research"), mapping=half_open)

    @precondition(lambda self: self.pending)
    @rule(number=numbers)
    def send_again(self, number: int) -> None:
        """A worker that has lost an answer is connected again."""
        pending = self.pending.pop(number % len(self.pending))
        pending.gate.opened.set()
        pending.then(self._run(pending.task))

    @invariant()
    def each_call_has_one_result(self) -> None:
        """It never changes, and says no more of its effect than what happened."""
        for called in self.calls:
            stored = self._stored(called)
            if called.stored is not None:
                assert stored == called.stored
            called.stored = stored
            if stored is not None and not called.is_lost:
                state = claimed_state(called.call, stored)
                assert called.effects == 0 or state != "none"
                assert called.effects > 0 or state != "done"

    @invariant()
    def nothing_is_done_too_often(self) -> None:
        """What nobody has called harmless to repeat happens once at most, everything else as often as it may be tried."""
        for called in self.calls:
            if not called.is_lost:
                most = most_attempts(called.call.retry)
                assert len(called.begun) <= most
                assert called.effects <= (most if called.call.effect in {"read", "idempotent"} else 1)

    @invariant()
    def nobody_is_interrupted_without_a_reason(self) -> None:
        """Who still has a call is not told that it was lost."""
        assert self.wrongly_lost == []

    def _told(self, called: Called, worker: int, acted: bool, answer: Claim | NotClaimed, *, was_frozen: bool) -> None:
        """A worker is told whether it has a call; `was_frozen`: so long after it was given it that the lease had run out."""
        stored = self._stored(called)
        if isinstance(answer, NotClaimed):
            is_end = answer.reason == "done"
            assert (answer.result == stored) if is_end else (stored is None or answer.reason in NOT_NOW)
            return
        held = Held(called, worker, answer, acted and answer.granted == "go", was_frozen=was_frozen)
        if not called.is_lost:
            assert stored is None
            assert not any(other.is_live for other in called.held)
        if answer.granted == "go":
            harmless = called.call.effect in {"read", "idempotent"}
            assert called.is_lost or harmless or all(earlier.is_closed for earlier in called.begun)
            called.effects += acted
            # One that was frozen, and is at it again, has lost its place.
            steady = [one for call in self.calls for one in call.begun if one.is_live and not one.was_frozen]
            assert called.is_lost or was_frozen or sum(not one.call.is_lost for one in steady) < ROOM
        called.held.append(held)
        answer.on_lost = lambda: self._lose(held)
        self.bench.ledgers[worker].claims._held[answer.token] = answer

    def _lose(self, held: Held) -> None:
        """A worker hears that others have its call, or that it has closed it itself and lost the answer."""
        if not held.is_over:
            self.wrongly_lost += [held] if not self._is_superseded(held) else []
            held.is_over = True

    def _finish(self, held: Held, result: ToolResult, ended: Attempt | None, loses: bool) -> None:
        held.is_over, held.is_closed, held.follows = True, True, None
        ledger, was_superseded = self.bench.ledgers[held.worker], self._is_superseded(held)

        def then(text: str | None) -> None:
            stored = self._stored(held.call)
            if text is not None:
                assert not was_superseded or held.call.is_lost
                assert stored is not None
                assert text_of(stored) == text == json_text.dump(result)
            else:
                assert was_superseded or held.call.is_lost

        self._do(held.worker, lambda: ledger.finish(held.claim, result, attempt=ended), then, loses)

    def _ended(self, called: Called, stored: str | None) -> None:
        assert stored == (None if stored is None else self._stored(called))
        if called.is_lost and stored is not None and called.effects:
            assert claimed_state(called.call, stored) != "none"

    def _is_superseded(self, held: Held) -> bool:
        """Whether the ledger has given the call to others, or has its end."""
        token, closed, state = self.bench.look.hmget(Keys().call(held.claim.call.call_id), ["token", "closed", "state"])
        if state == "done":
            return self.bench.look.hget(Keys().call(held.claim.call.call_id), "by") != held.claim.token
        return token not in {None, held.claim.token} or (token is None and closed not in {None, held.claim.token})

    def teardown(self) -> None:
        """At last every call ends: whoever was at it is dead, and its message is delivered until it has its result."""
        while self.pending:
            self.send_again(0)
        for called in self.calls:
            self._run_out(called)
        for called, _ in itertools.product(self.calls, range(6)):  # its attempts, and what ends these
            self.bench.look.delete(Keys().breaker("research"))
            answer = self._run(self.bench.ledgers[0].claim(called.call))
            if isinstance(answer, Claim) and answer.granted != "go":
                self._run(self.bench.ledgers[0].finish(answer, settlement(answer)))
            self._run_out(called)
        assert all(self._stored(called) is not None for called in self.calls)
        for ledger in self.bench.ledgers:
            ledger.claims._held.clear()

    def _call(self, number: int) -> Called:
        """Most often one that nobody is at, and that has not ended."""
        idle = [called for called in self._open() if not any(held.is_live for held in called.held)]
        calls = (number % 4 and idle) or self.calls
        return calls[number % len(calls)]

    def _open(self) -> list[Called]:
        return [called for called in self.calls if called.stored is None and not called.is_lost]

    def _running_out(self) -> list[Called]:
        records, look = Keys().call, self.bench.look
        return [called for called in self._open() if look.hexists(records(called.call.call_id), "lease")]

    def _is_away(self) -> bool:
        return bool(self.bench.look.hexists(Keys().breaker("research"), "open_until"))

    def _alive(self) -> list[Held]:
        return [held for called in self.calls for held in called.held if not held.is_over]

    def _running(self) -> list[Held]:
        return [held for held in self._alive() if held.claim.granted == "go"]

    def _settling(self) -> list[Held]:
        return [held for held in self._alive() if held.claim.granted != "go"]

    def _closed(self) -> list[Held]:
        return [held for called in self.calls for held in called.held if held.follows is not None]

    def _stored(self, called: Called) -> str | None:
        return cast("str | None", self.bench.look.get(Keys().result(called.call.call_id)))

    def _do(
        self, worker: int, operation: Callable[[], Awaitable[Any]], then: Callable[[Any], None], loses: bool
    ) -> None:
        """Do it, and have `then` get the answer: at once, or after it was lost and sent again."""
        if not loses:
            then(self._run(operation()))
            return

        async def lost() -> Pending:
            gate = self.bench.lines[worker].gate = Gate()
            task = asyncio.ensure_future(operation())
            await gate.lost.wait()
            return Pending(gate, task, then)

        self.pending.append(self._run(lost()))

    def _run(self, work: Awaitable[Any]) -> Any:
        return self.bench.runner.run(self._settled(work))

    @staticmethod
    async def _settled(work: Awaitable[Any]) -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await work


def settlement(claim: Claim) -> ToolResult:
    """How a worker ends a call that it must not run."""
    result = failed("outcome_unknown")
    if claim.granted == "open":
        result = fleet_results.module_away(TOOL, claim.rest_seconds)
    elif claim.granted == "exhausted" and claim.last is not None:
        result = claim.last
    outcome = Outcome.NOT_SENT if result.effect_state == "none" else Outcome.UNKNOWN
    return settled(Attempt(outcome, result), claim.call.effect, claim.so_far)


class LosingMachine(LedgerMachine):
    """And Redis may lose all that it knew, messages included."""

    @rule()
    def redis_loses_its_data(self) -> None:
        """It comes back empty."""
        self.bench.look.flushdb()
        self.bench.look.set(Keys().data_id, f"data-{next(_ids)}")
        for called in self.calls:
            called.is_lost, called.stored = True, None


@pytest.mark.parametrize("machine", [LedgerMachine, LosingMachine])
@pytest.mark.parametrize(
    "examples",
    [
        pytest.param(15, marks=pytest.mark.timeout(400)),
        pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_whatever_happens(redis_url: str, machine: type[LedgerMachine], examples: int) -> None:
    """The same examples each time: what fails, fails again."""
    with bench(redis_url) as place:
        run_state_machine_as_test(
            cast("type[LedgerMachine]", lambda: machine(place)),
            settings=settings(
                max_examples=examples,
                stateful_step_count=60,
                derandomize=True,
                database=None,
                deadline=None,
                phases=(Phase.explicit, Phase.generate),  # to look for a shorter example takes minutes here
                suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much),
            ),
        )
