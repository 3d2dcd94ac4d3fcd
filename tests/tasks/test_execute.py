"""A claimed call between its claim and its attempt: what a worker finds out there, and what it may not run any more."""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Ignore
from redis.asyncio import Redis

from support.ledgers import SUCCESS, begun, taken, worker_ledger
from support.published_call import published
from support.waiting import wait_until
from toolfleet_registry.contracts import PublishedCall, Terms
from toolfleet_registry.keys import Keys
from toolfleet_registry.outcomes import Attempt
from toolfleet_tasks import endings
from toolfleet_tasks.bridge import limits
from toolfleet_tasks.execute import _Execution
from toolfleet_tasks.ledger import Ledger
from toolfleet_tasks.results import read_stored

CALL = published(user_id="ada", effect="once", deadline_at=time.time() + 3600)  # however long other tests take before
TWICE = Terms(daily_limit=2)
KEY = Keys().limit("ada", CALL.tool_name)


async def nothing() -> None:
    return


@dataclass
class Runner:
    """Knows `known` terms, once `before` is over; `ran` has what it was given to run."""

    known: Terms | None = None
    before: Callable[[], Awaitable[object]] = nothing
    ran: list[PublishedCall] = field(default_factory=list)

    async def terms(self, call: PublishedCall) -> Terms | None:
        await self.before()
        return self.known

    async def run(self, call: PublishedCall, *, seconds: float) -> Attempt:
        self.ran.append(call)
        return SUCCESS

    async def reconcile(self, call: PublishedCall, *, seconds: float) -> Attempt | None:
        return None


@pytest.fixture
async def ledger(redis_url: str, fast_mode: None) -> AsyncIterator[Ledger]:
    async with worker_ledger(redis_url, visibility_timeout=2) as ledger:
        yield ledger


async def run(ledger: Ledger, runner: Runner, call: PublishedCall = CALL) -> Any:
    """Claim and run it. Its task is Celery's, of which an execution needs no more than this."""
    app = SimpleNamespace(runner=runner, settings=ledger._settings)
    task: Any = SimpleNamespace(app=app, request=SimpleNamespace(hostname="celery@here"), limits=limits)
    claim = await begun(ledger, call)
    with ledger.claims.holding(claim):
        execution = _Execution(task, ledger, claim)
        text = await execution.run()
    return execution, read_stored(text, call.tool_name) if text.startswith("{") else None


async def audit_line(redis: Redis) -> dict[str, Any]:
    entries: Any = await redis.xrange(Keys().audit)
    ((_, entry),) = entries
    line: dict[str, Any] = json.loads(entry["line"])
    return line


@pytest.mark.parametrize("known", [None, TWICE], ids=["unlimited", "limited"])
async def test_a_call_that_is_taken_back_before_its_attempt_is_not_run(
    ledger: Ledger, redis_url: str, redis: Redis, known: Terms | None
) -> None:
    """Its worker was looking up the tool's terms: it hears of it all the same, and counts nothing."""
    async with worker_ledger(redis_url) as agent:

        async def take_back() -> None:
            await agent.end(CALL, endings.taken_back(CALL), trust_absence=True)
            await wait_until(lambda: not ledger.claims._held, "the worker hears of it")

        runner = Runner(known, take_back)
        with pytest.raises(Ignore):
            await run(ledger, runner)

    assert runner.ran == []
    assert await redis.exists(KEY) == 0


async def test_a_call_over_its_limit_was_not_tried(ledger: Ledger, redis: Redis) -> None:
    """Nothing was attempted, the audit says, and who has refused it."""
    for name in ("a", "b"):
        await taken(ledger, CALL.model_copy(update={"call_id": name}), TWICE)
    runner = Runner(TWICE)
    await run(ledger, runner)
    line = await audit_line(redis)

    assert runner.ran == []
    assert (line["outcome"], line["attempts"], line["decisions"]["limits"]) == ("refused", 0, "denied")


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
