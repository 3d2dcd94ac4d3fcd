"""Whatever happens in whatever order: unless the ledger says that a call is scattered, all that was done of it was done where it says.

So whoever is there can say that nothing was. Workers claim, move, act, end, die and are frozen, and Redis loses a record.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from redis import Redis

from support.published_call import published
from support.workers.ledgers import TURNED_AWAY, attempt, worker_ledger
from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.attempts import LeaseOver, Outcome
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.ledger.ledger import Ledger

UNKNOWN = attempt(Outcome.UNKNOWN, "timed_out")
_ids = itertools.count()

numbers = st.integers(0, 5)
places = st.sampled_from(["", "a", "b", "c"])
"""Processes; "" is the one address of a module that has no several ones, or a worker that knows of none."""
effects = st.sampled_from(["read", "read", "once"])


@dataclass(eq=False)
class Held:
    """A claim in a worker's hands. `acted`: its attempt has had an effect. `is_frozen`: others may have the call."""

    ledger: Ledger
    claim: Claim
    acted: bool = False
    is_frozen: bool = False


@dataclass(eq=False)
class Called:
    """A call, who is at it, and where it had an effect."""

    call: PublishedCall
    held: list[Held] = field(default_factory=list)
    acted_at: set[str] = field(default_factory=set)
    deliveries: int = 0

    @property
    def record(self) -> str:
        return Keys().call(self.call.call_id)


class ReplicaMachine(RuleBasedStateMachine):
    """One call after the other, with two workers."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, Any]], Any], ledgers: list[Ledger], look: Redis) -> None:
        super().__init__()
        self.run, self.ledgers, self.look = run, ledgers, look
        self.called = self.new("read")

    def new(self, effect: Any) -> Called:
        return Called(published(call_id=f"call-{next(_ids)}", effect=effect))

    @precondition(lambda self: self.called.deliveries > 4)
    @rule(effect=effects)
    def publish(self, effect: Any) -> None:
        """Another call; what becomes of the one before is nobody's business any more."""
        self.called = self.new(effect)

    @rule(worker=numbers, place=places)
    def deliver(self, worker: int, place: str) -> None:
        """A worker asks for the call, and would have it done there."""
        called, ledger = self.called, self.ledgers[worker % 2]
        called.deliveries += 1
        claim = self.run(ledger.claim(called.call, replica=place))
        if not isinstance(claim, Claim):
            return
        self.check(claim)
        if claim.granted == "go":
            called.held.append(Held(ledger, claim))
        else:  # it asks the process that is named, and dies over that
            self.look.hset(called.record, "lease", 0)

    @precondition(lambda self: self.called.held)
    @rule(held=numbers, place=places)
    def move(self, held: int, place: str) -> None:
        """The process could not be reached: also where the worker was frozen meanwhile, and others have the call."""
        one = self.one(held)
        if one.acted:
            return
        before = one.claim.replica
        try:
            self.run(one.claim.move(place))
        except LeaseOver:
            assert one.is_frozen
            assert one.claim.replica == before
        else:
            self.check(one.claim)

    @precondition(lambda self: self.called.held)
    @rule(held=numbers)
    def act(self, held: int) -> None:
        """The process that the claim names has done it. A frozen worker sends nothing."""
        one = self.one(held)
        if not one.is_frozen:
            one.acted = True
            self.called.acted_at.add(one.claim.replica)

    @precondition(lambda self: self.called.held)
    @rule(held=numbers)
    def end(self, held: int) -> None:
        """The attempt ends, and another may follow; it may do so though it has done nothing."""
        one = self.one(held)
        ended = UNKNOWN if one.acted or one.claim.so_far != "none" else TURNED_AWAY
        state = ended.result.effect_state
        self.run(one.ledger.close(one.claim, ended, seconds=0, so_far=state))
        self.called.held.remove(one)

    @precondition(lambda self: self.called.held)
    @rule(held=numbers)
    def freeze(self, held: int) -> None:
        """Its lease is over; it may wake up, or be dead."""
        one = self.one(held)
        one.is_frozen = True
        if self.look.hget(self.called.record, "token") == one.claim.token:
            self.look.hset(self.called.record, "lease", 1)

    @precondition(lambda self: len(self.called.held) == 1 and not self.called.held[0].is_frozen)
    @rule()
    def lose_record(self) -> None:
        """Redis comes back without it, and its worker renews its lease."""
        (one,) = self.called.held
        claims = one.ledger.claims
        claims._held[one.claim.token] = one.claim
        self.look.delete(self.called.record)
        self.run(self.renewed(one.ledger))
        claims.drop(one.claim)

    async def renewed(self, ledger: Ledger) -> None:
        ledger.claims._renew()
        await ledger.connection.execute("PING")  # answered after it

    def one(self, number: int) -> Held:
        return self.called.held[number % len(self.called.held)]

    def check(self, claim: Claim) -> None:
        """What the claim says of where the call is, holds."""
        if not claim.is_scattered:
            assert self.called.acted_at <= {claim.replica}


@pytest.mark.parametrize(
    "examples",
    [
        pytest.param(8, marks=pytest.mark.timeout(400)),
        pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_whatever_happens_a_call_is_where_the_ledger_says(redis_url: str, examples: int) -> None:
    """The same examples each time: what fails, fails again."""
    with asyncio.Runner() as runner, Redis.from_url(redis_url, decode_responses=True) as look:
        opened = [worker_ledger(redis_url) for _ in range(2)]
        ledgers = [runner.run(each.__aenter__()) for each in opened]
        try:
            run_state_machine_as_test(
                cast("type[ReplicaMachine]", lambda: ReplicaMachine(runner.run, ledgers, look)),
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=40,
                    derandomize=True,
                    database=None,
                    deadline=None,
                    phases=(Phase.explicit, Phase.generate),
                    suppress_health_check=(HealthCheck.too_slow, HealthCheck.filter_too_much),
                ),
            )
        finally:
            for each in opened:
                runner.run(each.__aexit__(None, None, None))
