"""Ledgers on a real Redis, each with a line of its own as in a worker of its own, and what they are told."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from redis.asyncio import Redis

from toolfleet_registry.contracts import EffectState, ErrorCode, PublishedCall, Terms, ToolResult
from toolfleet_registry.contracts.attempts import Attempt, Outcome
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_tasks.ledger.claims import Claim, Claims
from toolfleet_tasks.ledger.ledger import Ledger, NotClaimed
from toolfleet_tasks.messages.fleet_results import CallEnding
from toolfleet_tasks.redis_connection import Part, PipelinedConnection, ignored
from toolfleet_tasks.results.stored import read_stored

RECORD, RESULT = "toolfleet:call:call-1", "celery-task-meta-call-1"
TOOL = "research.search_docs"

SUCCESS = Attempt(Outcome.SUCCESS, ToolResult.ok(TOOL, "owls"))


class RepeatingConnection(PipelinedConnection):
    """A line that loses every first answer, and sends the command again."""

    async def execute(self, *command: Part, losses: int = 0) -> Any:
        """As every line's; brings the second answer."""
        await super().execute(*command, losses=losses)
        return await super().execute(*command, losses=losses)

    def send_built(self, build: Callable[[], tuple[Part, ...]]) -> "asyncio.Future[Any]":
        """As every line's; brings the second answer."""
        super().send_built(build).add_done_callback(ignored)
        return super().send_built(build)


@asynccontextmanager
async def worker_ledger(
    url: str, *, repeats: bool = False, writes_results: bool = True, **settings: Any
) -> AsyncGenerator[Ledger]:
    """The ledger of one worker; `repeats`: every script of it but renewals runs twice."""
    line = (RepeatingConnection if repeats else PipelinedConnection)(connection_factory(url), name="worker")
    line.start()
    await line.connected()
    ledger = Ledger(line, Settings(redis_url=url, **settings), writes_results=writes_results)
    try:
        yield ledger
    finally:
        await ledger.claims.aclose()
        await line.aclose()


@contextmanager
def holding(claims: Claims, claim: Claim) -> Generator[None]:
    """Keep a claim inside, as the execution of its call does."""
    claims.hold(claim)
    try:
        yield
    finally:
        claims.leave(claim)


def attempt(
    outcome: Outcome, code: ErrorCode = "module_error", effect_state: EffectState = "unknown", **fields: Any
) -> Attempt:
    """One that failed."""
    return Attempt(outcome, failed(code, effect_state), **fields)


def failed(code: ErrorCode, effect_state: EffectState = "unknown", text: str = "it failed") -> ToolResult:
    """A failed result."""
    return ToolResult.failed(TOOL, code, text, effect_state=effect_state)


TURNED_AWAY = attempt(Outcome.TURNED_AWAY, "busy", "none")

ENDING = CallEnding(failed("expired", "none"), failed("timed_out", "none"), failed("timed_out"))
"""A deadline's, told apart by code and effect state."""


async def claimed(ledger: Ledger, call: PublishedCall) -> Claim:
    """A claim, for whatever it was granted."""
    claim = await ledger.claim(call)
    assert isinstance(claim, Claim), claim
    return claim


async def begun(ledger: Ledger, call: PublishedCall) -> Claim:
    """A claim to run an attempt."""
    claim = await claimed(ledger, call)
    assert claim.granted == "go"
    return claim


async def taken(ledger: Ledger, one: PublishedCall | Claim, terms: Terms | None) -> ToolResult | None:
    """What limits have against a call that is about to begin; without a claim, one whose record Redis has lost."""
    claim = one if isinstance(one, Claim) else Claim(one, ledger._keys_of(one), "nobody's")
    return await ledger.take(claim, terms)


async def refused(ledger: Ledger, call: PublishedCall) -> NotClaimed:
    """No claim."""
    answer = await ledger.claim(call)
    assert isinstance(answer, NotClaimed), answer
    return answer


async def run_out(redis: Redis, call_id: str = "call-1") -> None:
    """The time of a lease passes: its worker is dead, or frozen."""
    await redis.hset(f"toolfleet:call:{call_id}", "lease", 1)


def claimed_state(call: PublishedCall, stored: str) -> str:
    """What a result claims of the effect: of a reader that answered that it failed, nothing."""
    result = read_stored(stored, TOOL)
    return "" if call.effect == "read" and result.error_code == "module_error" else result.effect_state


async def close(ledger: Ledger, claim: Claim, attempt: Attempt = TURNED_AWAY) -> bool:
    """An attempt ends, and another is to follow; 12 ms."""
    return await ledger.close(claim, attempt, seconds=0.012, so_far=attempt.result.effect_state)


async def finish(ledger: Ledger, claim: Claim, attempt: Attempt = SUCCESS) -> str | None:
    """The last attempt ends; 5 ms."""
    return await ledger.finish(claim, attempt.result, attempt=attempt, seconds=0.005)
