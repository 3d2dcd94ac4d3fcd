"""A claimed call between its claim and its attempt: what a worker finds out there, and what it may not run any more."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Ignore
from redis.asyncio import Redis

from support.published_call import published
from support.waiting import wait_until, wait_until_equal
from support.workers.held_messages import STORE, open_leases
from support.workers.ledgers import SUCCESS, attempt, begun, claimed, holding, refused, run_out, taken, worker_ledger
from toolfleet_registry.contracts import Effect, PublishedCall, Terms
from toolfleet_registry.contracts.attempts import Attempt, Health, Lease, Outcome, Standing, StatusMissing
from toolfleet_registry.directory.known_modules import KnownModules
from toolfleet_registry.redis.keys import Keys
from toolfleet_tasks import worker_runtime
from toolfleet_tasks.greenlet_bridge import limits
from toolfleet_tasks.ledger.claims import Claim
from toolfleet_tasks.ledger.ledger import ANY_DATA, Ledger
from toolfleet_tasks.messages import fleet_results
from toolfleet_tasks.results.stored import read_stored
from toolfleet_workers.execution import execute
from toolfleet_workers.execution.execute import Execution
from toolfleet_workers.execution.health_checks import checks_of
from toolfleet_workers.runner import RunTicket

pytestmark = pytest.mark.usefixtures("same_day")

CALL = published(user_id="ada", effect="once", deadline_at=time.time() + 3600)  # however long other tests take before
TWICE = Terms(daily_limit=2)
KEY = Keys().limit("ada", CALL.tool_name)


async def nothing() -> None:
    return


@dataclass
class Runner:
    """Knows `known` terms, once `before` is over; `ran` has what it was given to run, and how each attempt `ends`.

    While the module is `asked` what became of a call, that is done. `retries`: what it says of itself.
    """

    known: Terms | None = None
    before: Callable[[], Awaitable[object]] = nothing
    ran: list[PublishedCall] = field(default_factory=list)
    ends: Attempt | None = SUCCESS
    asked: Callable[[], Awaitable[object]] = nothing
    retries: bool = False

    def ticket(self, call: PublishedCall) -> None:
        return None

    async def decide(self, call: PublishedCall) -> RunTicket:
        await self.before()
        return RunTicket(terms=self.known)

    async def run(self, call: PublishedCall, *, seconds: float, lease: Lease, ticket: RunTicket | None) -> Attempt:
        self.ran.append(call)
        if self.ends is None:
            raise TimeoutError
        return self.ends

    def retries_undeclared(self, tool_name: str) -> bool:
        return self.retries

    def replica_for(self, call: PublishedCall) -> str:
        return ""

    async def reconcile(self, call: PublishedCall, *, seconds: float, lease: Lease) -> Attempt | None:
        await self.asked()
        return None

    async def status(
        self, call: PublishedCall, handle: str, *, seconds: float, lease: Lease, cancel: bool = False
    ) -> Standing:
        return StatusMissing()

    async def probe(self, module: str, *, seconds: float) -> Health:
        return Health.WELL


@pytest.fixture(autouse=True)
async def here(redis_url: str) -> AsyncIterator[worker_runtime.WorkerRuntime]:
    """The runtime of the worker that runs the calls."""
    yield worker_runtime.start(asyncio.get_running_loop(), broker=redis_url)
    await worker_runtime.stop()


@pytest.fixture
async def ledger(redis_url: str) -> AsyncIterator[Ledger]:
    async with worker_ledger(redis_url, visibility_timeout=2) as ledger:
        yield ledger


async def run(ledger: Ledger, runner: Runner, call: PublishedCall = CALL) -> Any:
    """Claim and run it. Its task is Celery's, of which an execution needs no more than this."""
    task = task_of(ledger, runner)
    claim = await begun(ledger, call)
    with holding(ledger.claims, claim):
        execution = Execution(task, ledger, claim, await runner.decide(call))
        text = await execution.run()
    return execution, read_stored(text, call.tool_name) if text.startswith("{") else None


def task_of(ledger: Ledger, runner: Runner) -> Any:
    known = KnownModules(ledger._settings)
    app = SimpleNamespace(runner=runner, settings=ledger._settings, tracing=None, modules=known, keep_artifacts=None)
    request = SimpleNamespace(hostname="celery@here")
    return SimpleNamespace(app=app, request=request, limits=limits, is_followed=False, links=None)


async def executed(task: Any, ledger: Ledger, call: PublishedCall, known: execute.Known) -> str:
    claim = await checks_of(task.app, ledger).claim(call, deaths=0)
    if isinstance(claim, Claim):
        return await execute.claimed(task, ledger, claim, known)
    return await execute.unclaimed(task, ledger, call, claim, deaths=0)


async def audit_line(redis: Redis) -> dict[str, Any]:
    entries: Any = await redis.xrange(Keys().audit)
    ((_, entry),) = entries
    line: dict[str, Any] = json.loads(entry["line"])
    return line


@pytest.mark.parametrize("known", [None, TWICE], ids=["unlimited", "limited"])
async def test_a_call_that_is_taken_back_before_its_claim_is_not_run(
    ledger: Ledger, redis_url: str, redis: Redis, known: Terms | None
) -> None:
    """Its worker was looking up the tool's terms: it hears of it all the same, and counts nothing."""
    async with worker_ledger(redis_url) as agent:

        async def take_back() -> None:
            await agent.end(CALL, fleet_results.taken_back(CALL), data_id=ANY_DATA)

        runner = Runner(known, take_back)
        task = task_of(ledger, runner)
        assert "cancelled" in await executed(task, ledger, CALL, await runner.decide(CALL))

    assert runner.ran == []
    assert await redis.exists(KEY) == 0


async def test_a_call_that_is_taken_back_before_its_attempt_is_not_run(
    ledger: Ledger, redis_url: str, redis: Redis
) -> None:
    """Its worker has claimed it, and is at its limits."""
    async with worker_ledger(redis_url) as agent:

        async def take_back() -> None:
            await agent.end(CALL, fleet_results.taken_back(CALL), data_id=ANY_DATA)
            await wait_until(lambda: not ledger.claims._held, "the worker hears of it")

        runner = Runner(TWICE, take_back)
        with pytest.raises(Ignore):
            await run(ledger, runner)

    assert runner.ran == []
    assert await redis.exists(KEY) == 0


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_call_whose_lease_is_over_is_run_only_if_it_is_still_held(
    ledger: Ledger, redis_url: str, redis: Redis, is_taken: bool
) -> None:
    """Its worker stood still before the attempt: it asks, and where others have the call, nothing is run."""
    async with worker_ledger(redis_url) as other:

        async def stand_still() -> None:
            (claim,) = ledger.claims._held.values()
            claim.begin_by = (0, 0)
            await run_out(redis)
            if is_taken:
                await claimed(other, CALL)

        runner = Runner(None, stand_still)
        if is_taken:
            with pytest.raises(Ignore):
                await run(ledger, runner)
        else:
            await run(ledger, runner)
        ledger.claims._held.clear()

    assert runner.ran == ([] if is_taken else [CALL])


async def test_a_call_over_its_limit_was_not_tried(ledger: Ledger, redis: Redis) -> None:
    """Nothing was attempted, the audit says, and who has refused it."""
    for name in ("a", "b"):
        await taken(ledger, CALL.model_copy(update={"call_id": name}), TWICE)
    runner = Runner(TWICE)
    await run(ledger, runner)
    line = await audit_line(redis)

    assert runner.ran == []
    assert (line["outcome"], line["attempts"], line["decisions"]["limits"]) == ("refused", 0, "denied")


async def test_a_call_that_nobody_knows_was_not_tried(ledger: Ledger, redis: Redis) -> None:
    """It ends as busy, unless an attempt before may have done something."""
    runner = Runner()
    claim = await begun(ledger, CALL)
    with holding(ledger.claims, claim):
        await Execution(task_of(ledger, runner), ledger, claim, fleet_results.not_known(CALL.tool_name, 4)).run()
    line = await audit_line(redis)

    assert runner.ran == []
    assert (line["error_code"], line["attempts"], line["decisions"]["permission"]) == ("busy", 0, "not_known")


@pytest.mark.parametrize(
    ("known", "travelled", "sent", "noted"),
    [
        (None, None, {}, {}),
        (TWICE, None, {}, {"limits": "allowed"}),
        # A class without a budget limits nothing, here or at all.
        (Terms(cost="cheap"), None, {}, {}),
        (None, Terms(cost="cheap"), {}, {}),
        # Whoever published it has not asked its gate, or knew of none.
        (Terms(requires_gate=True), None, {}, {"gate": "missing"}),
        (Terms(requires_gate=True), None, {"gate": "none"}, {"gate": "none"}),
        (Terms(requires_gate=True), None, {"gate": "allowed"}, {"gate": "allowed"}),
    ],
)
async def test_what_was_looked_up_is_noted(
    ledger: Ledger,
    redis: Redis,
    known: Terms | None,
    travelled: Terms | None,
    sent: dict[str, str],
    noted: dict[str, str],
) -> None:
    """And nothing that nobody has decided."""
    call = CALL.model_copy(update={"terms": travelled, "decisions": sent})
    await run(ledger, Runner(known), call)
    line = await audit_line(redis)

    assert (line["attempts"], line["decisions"]) == (1, {**noted, "published": "yes"})


async def test_a_deadline_that_comes_while_the_module_is_asked_ends_the_call_as_its_worker_knows(
    ledger: Ledger, redis_url: str, redis: Redis
) -> None:
    """Its agent is told that the limit was reached, and not only that nobody answered; the audit has the same."""
    told = list[str]()
    async with worker_ledger(redis_url) as agent:

        async def deadline() -> None:
            told.append(await agent.end(CALL, fleet_results.at_deadline(CALL), data_id=ANY_DATA))

        with pytest.raises(Ignore):
            await run(ledger, Runner(ends=None, asked=deadline))
    result = read_stored(told[0], CALL.tool_name)
    line = await audit_line(redis)

    assert (result.error, result.effect_state) == ("Tool execution timed out (30s).", "unknown")
    assert result.audit is not None
    assert (result.audit.worker, result.audit.attempts) == ("celery@here", 1)
    assert (line["outcome"], line["error_code"], line["attempts"]) == ("unknown", "timed_out", 1)
    assert not await redis.hexists(Keys().call(CALL.call_id), "known")


async def test_what_is_taken_back_while_the_module_is_asked_is_cancelled(ledger: Ledger, redis_url: str) -> None:
    """What its worker knows is for whoever waits for the end."""
    told = list[str]()
    async with worker_ledger(redis_url) as agent:

        async def take_back() -> None:
            told.append(await agent.end(CALL, fleet_results.taken_back(CALL), data_id=ANY_DATA))

        with pytest.raises(Ignore):
            await run(ledger, Runner(ends=None, asked=take_back))

    assert read_stored(told[0], CALL.tool_name).error_code == "cancelled"


async def test_a_module_that_is_asked_has_its_place_free(redis_url: str, redis: Redis) -> None:
    """Its call is over as far as it is concerned; the next one need not wait for an answer."""

    async def probe() -> None:
        await wait_until_equal(lambda: redis.zcard(Keys().running("research")), 0, "its place is free")

    async with worker_ledger(redis_url, module_concurrency={"research": 1}) as ledger:
        await run(ledger, Runner(ends=None, asked=probe))

    assert (await audit_line(redis))["error_code"] == "timed_out"


@pytest.mark.parametrize(
    ("effect", "is_set", "retries", "is_retried"),
    [
        (None, False, False, False),
        (None, True, False, True),  # TOOLFLEET_RETRY_UNDECLARED
        (None, False, True, True),  # the module's own word
        ("once", True, True, False),
        ("read", True, True, False),
    ],
)
async def test_an_undeclared_tool_is_retried_where_that_is_a_habit(
    redis_url: str, effect: Effect | None, is_set: bool, retries: bool, is_retried: bool
) -> None:
    """The fleet's, or its module's."""
    async with worker_ledger(redis_url, retry_undeclared=is_set) as ledger:
        claim = await begun(ledger, CALL.model_copy(update={"effect": effect}))
        with holding(ledger.claims, claim):
            execution = Execution(task_of(ledger, Runner(retries=retries)), ledger, claim, None)
            follows = execution._decide(attempt(Outcome.FAILED))

    assert (follows.delay is not None) == is_retried


@pytest.mark.parametrize(("effect", "runs"), [("once", 0), (None, 0), ("idempotent", 1), ("read", 1)])
async def test_a_call_whose_module_goes_on_with_it_is_not_begun_again(
    ledger: Ledger, effect: Effect | None, runs: int
) -> None:
    """Its message says so, and Redis has lost the rest: it ends as unknown, unless a repeat does no harm."""
    runner, call = Runner(), CALL.model_copy(update={"effect": effect})
    task = task_of(ledger, runner)
    task.request.retries = 2
    await executed(task, ledger, call, None)
    result = read_stored((await refused(ledger, call)).result, call.tool_name)

    assert (len(runner.ran), result.effect_state) == (runs, "done" if runs else "unknown")
    assert result.audit.attempts == 1


@pytest.mark.parametrize("is_followed", [False, True])
async def test_a_message_outlives_the_end_of_a_call_that_others_follow(
    ledger: Ledger, redis: Redis, is_followed: bool
) -> None:
    """What follows it is published after its end, by another worker if this one dies. Any other one is acknowledged with its end."""
    await redis.hset(STORE.unacked, "tag", "held")
    await redis.zadd(STORE.unacked_index, {"tag": time.time()})
    task = task_of(ledger, runner := Runner())
    task.is_followed, task.pass_on = is_followed, lambda *_: None
    async with open_leases(ledger.connection) as leases:
        leases.hold(["tag"], of=())
        await execute.claimed(task, ledger, await begun(ledger, CALL), None, leases, "tag")
        held = leases.held

    assert (len(runner.ran), held == {"tag"}) == (1, is_followed)
    assert await redis.exists(STORE.unacked, STORE.unacked_index) == 2 * is_followed
