"""Whatever agents and workers do with calls, and however often: limits count exactly those that may have happened.

Calls are let in, taken back, begun, tried twice, ended by their workers and from outside, in any order that can happen,
by those who count them and by those who do not; each script may be sent twice.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from support.published_call import published
from support.schemas.examples import examples
from support.workers.ledgers import ENDING, SUCCESS, TOOL, TURNED_AWAY, RepeatingConnection, attempt
from toolfleet_registry.contracts import Effect, PublishedCall, Terms, ToolResult
from toolfleet_registry.contracts.attempts import Outcome
from toolfleet_registry.contracts.limits import CallTotal
from toolfleet_registry.redis.keys import Keys
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.admission import AdmissionControl
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger
from toolfleet_tasks.limits import Within, limits_of
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.redis_connection import PipelinedConnection

DAILY, BUDGET, DAY = 3, 4, 86_400
RUN = CallTotal(kind="run", name="a" * 32, most=DAILY)
THREAD = CallTotal(kind="thread", name="b" * 32, most=DAILY)
TERMS = Terms(daily_limit=DAILY, cost="cheap", totals=(RUN, THREAD))
WITHIN = Within("run-1", "thread-1")
KEYS = Keys()
UNKNOWN = attempt(Outcome.UNKNOWN, "timed_out")
SETTINGS = Settings(cost_budgets={"cheap": BUDGET})
NAMES = [limit.key for limit in limits_of(TOOL, "ada", TERMS, SETTINGS, WITHIN)]
ENDS = {"succeed": SUCCESS, "turn_away": TURNED_AWAY, "lose": UNKNOWN}


@dataclass
class Called:
    """A call as the test knows it. `counts`: that it must; `begun`: attempts."""

    call: PublishedCall
    counts: bool = False
    begun: int = 0
    claim: Claim | None = None
    so_far: str = "none"
    is_over: bool = False


@dataclass
class World:
    """One Redis, and who asks it: agents through the entrance, workers through a ledger."""

    line: PipelinedConnection
    ledger: Ledger
    redis: Any
    calls: list[Called] = field(default_factory=list)

    @property
    def counted(self) -> set[str]:
        return {one.call.call_id for one in self.calls if one.counts}

    async def call(self, *, bypasses: bool, effect: Effect | None) -> None:
        said: Any = {"effect": effect, "terms": None if bypasses else TERMS, "run_id": "run-1", "thread_id": "thread-1"}
        call = published(call_id=f"c{len(self.calls)}", user_id="ada", **said)
        refusal = await AdmissionControl(SETTINGS).ask(self.line, call)
        is_full = len(self.counted) >= DAILY
        assert (refusal is not None) == (is_full and not bypasses)
        self.calls.append(Called(call, counts=not bypasses and refusal is None, is_over=refusal is not None))

    async def begin(self, one: Called) -> None:
        if one.claim is not None or one.begun > 1:
            return
        claim = await self.ledger.claim(one.call)
        assert isinstance(claim, Claim)
        one.claim, one.begun = claim, one.begun + 1
        refusal = await self.ledger.take(claim, TERMS)
        assert (refusal is not None) == (not one.counts and len(self.counted) >= DAILY)
        one.counts = one.counts or refusal is None
        if refusal is not None:
            await self.end(one, refusal)

    async def end(self, one: Called, result: ToolResult) -> None:
        assert one.claim is not None
        assert await self.ledger.finish(one.claim, result)
        one.is_over, one.counts = True, one.counts and result.effect_state != "none"

    async def step(self, what: str, one: Called) -> None:
        if what == "begin":
            await self.begin(one)
        elif what in ENDS and one.claim is not None:
            result, state = ENDS[what].result, ENDS[what].result.effect_state
            await self.end(one, result.model_copy(update={"effect_state": state if state != "none" else one.so_far}))
        elif what == "retry" and one.claim is not None and one.begun == 1:
            ended = TURNED_AWAY if one.call.effect != "read" else UNKNOWN
            one.so_far = ended.result.effect_state
            assert await self.ledger.close(one.claim, ended, seconds=0, so_far=ended.result.effect_state)
            one.claim = None
        elif what in {"end", "distrust"}:
            trust = what == "end"
            await self.ledger.end(one.call, ENDING, data_id=ANY_DATA if trust else "")
            is_undone = one.claim is None and one.so_far == "none" and (trust or one.begun > 0)
            one.is_over, one.counts = True, one.counts and not is_undone
        elif what == "refuse" and not one.begun:
            await self.ledger.refuse(one.call.call_id, fleet_results.message_refused(TOOL, "it is forged"))
            one.is_over, one.counts = True, False
        elif what == "retract" and not one.begun:
            await AdmissionControl(SETTINGS).retract(self.line, one.call)
            one.is_over, one.counts = True, False

    def check(self) -> None:
        for name in NAMES:
            assert set(self.redis.zrange(name, 0, -1)) == self.counted
        held = {str(key).rpartition(":")[2] for key in self.redis.keys(KEYS.held("*"))}
        assert held == self.counted
        unbegun = {one.call.call_id for one in self.calls if one.counts and not one.begun and not one.is_over}
        assert unbegun <= set(self.redis.zrange(NAMES[0] + ":unbegun", 0, -1)) <= self.counted


STEPS = ["begin", "begin", "succeed", "turn_away", "lose", "retry", "end", "distrust", "refuse", "retract"]
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.booleans(), st.sampled_from([None, "read", "once"])),
        st.tuples(st.sampled_from(STEPS), st.integers(0, 5), st.none()),
    ),
    max_size=30,
)


async def walk(url: str, redis: Any, moves: list[Any], *, repeats: bool) -> None:
    line = (RepeatingConnection if repeats else PipelinedConnection)(connection_factory(url), name="both")
    line.start()
    await line.connected()
    world = World(line, Ledger(line, SETTINGS, writes_results=True), redis)
    try:
        for what, which, effect in moves:
            living = [one for one in world.calls if not one.is_over]
            if what == "call":
                await world.call(bypasses=bool(which), effect=effect)
            elif living:
                await world.step(what, living[int(which) % len(living)])
            world.check()
    finally:
        await world.ledger.claims.aclose()
        await line.aclose()


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=MOVES, repeats=st.booleans())
def test_limits_count_what_may_have_happened(redis_url: str, moves: list[Any], repeats: bool) -> None:
    """Never more than may be, and nothing that surely did not happen."""
    with Redis.from_url(redis_url, decode_responses=True) as redis:
        redis.flushall()
        today = int(time.time()) // DAY
        try:
            asyncio.run(walk(redis_url, redis, moves, repeats=repeats))
        except AssertionError:
            if int(time.time()) // DAY == today:  # at midnight all are free again
                raise
