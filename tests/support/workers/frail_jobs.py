"""A worker that moves jobs and dies on the way, with a real Redis behind it, and a module that notes what it runs."""

import asyncio
import time
from typing import Any

from redis.asyncio import Redis

from support.waiting import PATIENCE_SECONDS
from support.workers.job_racers import job_records
from toolfleet_registry.contracts import Caller, Conversation, PublishedCall, ToolCall, ToolResult
from toolfleet_registry.contracts.jobs import ENDED, JobSpec, Poll, WakeupRequest
from toolfleet_registry.errors import FleetError
from toolfleet_registry.settings import Settings
from toolfleet_tasks.jobs import state_machine
from toolfleet_tasks.jobs.engine import JobCallState, JobEngine
from toolfleet_tasks.jobs.records import Found, JobChange, JobRecords
from toolfleet_tasks.messages import json_text

LEASE_SECONDS = 0.05
POLL = Poll(tool_name="works.state", arguments={"id": {"$from": "id"}}, interval_seconds=0.01)


class Died(BaseException):
    """The worker is killed here."""


class Moments:
    """Counts what a worker does to the outside, and has it die at the `fatal`-th: before that, or just after."""

    def __init__(self, fatal: int | None, *, is_after: bool = False) -> None:
        self.fatal, self.is_after, self.count = fatal, is_after, 0

    async def at(self, work: Any) -> Any:
        self.count += 1
        is_fatal = self.count == self.fatal
        if is_fatal and not self.is_after:
            work.close()
            raise Died
        done = await work
        if is_fatal:
            raise Died
        return done


class FrailRecords:
    """A job's records, of which each change is a moment to die at."""

    def __init__(self, records: JobRecords, moments: Moments) -> None:
        self._records, self._moments = records, moments

    def sealed(self, text: str) -> str:
        return self._records.sealed(text)

    async def read(self, job_id: str) -> Found | None:
        return await self._records.read(job_id)

    async def move(self, job: Found, change: JobChange) -> Found | None:
        moved: Found | None = await self._moments.at(self._records.move(job, change))
        return moved


class Ledger:
    """What a module would see: each call id is executed once, and its result stands in the ledger's record."""

    def __init__(
        self, redis: "Redis", moments: Moments, results: list[ToolResult], refusals: "list[ToolResult | FleetError]"
    ) -> None:
        self._redis, self._moments, self._results, self._refusals = redis, moments, results, refusals
        self.executed: list[tuple[str, Any]] = []
        self.tries: list[str] = []
        self.unknown: list[ToolResult] = []
        self.standing: JobCallState | None = None
        self.seconds, self.is_lost = 30.0, False

    async def __call__(self) -> "Ledger":
        return self

    async def prepare(
        self, spec: JobSpec, call: ToolCall, call_id: str, *, deadline_at: float | None = None
    ) -> PublishedCall | ToolResult:
        if self.unknown:
            return self.unknown.pop(0)
        return PublishedCall(
            call_id=call_id,
            tool_name=call.tool_name,
            arguments=call.arguments,
            user_id=None,
            caller=Caller(),
            effect="read",
            limit_seconds=1,
            published_at=time.time(),
            deadline_at=deadline_at or time.time() + self.seconds,
            job_id=spec.job_id,
        )

    async def publish(
        self, call: PublishedCall, spec: JobSpec | None = None, *, first_step: int | None = None
    ) -> ToolResult | JobCallState | None:
        del spec, first_step
        answer: ToolResult | None = await self._moments.at(self._published(call))
        return self.standing or answer

    def unpublished(self, call: PublishedCall, result: ToolResult) -> ToolResult:
        return result

    async def _published(self, call: PublishedCall) -> ToolResult | None:
        self.tries.append(call.call_id)
        if call.call_id in dict(self.executed):
            return None
        if self._refusals:
            refusal = self._refusals.pop(0)
            if isinstance(refusal, Exception):
                raise refusal
            return refusal
        if self.standing is not None or self.is_lost:
            return None
        self.executed.append((call.call_id, call.arguments))
        text = json_text.dump(self._results[min(len(self.executed), len(self._results)) - 1])
        await self._redis.hset(f"toolfleet:call:{call.call_id}", mapping={"state": "done", "result": text})
        await self._redis.expire(f"toolfleet:call:{call.call_id}", 60)
        return None


def make_spec(**fields: Any) -> JobSpec:
    wishes: tuple[WakeupRequest | ToolCall, ...] = ("resume_conversation", ToolCall(tool_name="works.ship"))
    wanted: dict[str, Any] = {
        "start": ToolCall(tool_name="works.begin"),
        "poll": POLL,
        "on_complete": wishes,
        "created_at": time.time(),
        "deadline_at": time.time() + 60,
        "conversation": Conversation(conversation_id="c"),
        **fields,
    }
    return JobSpec(job_id="j", caller=Caller(), **wanted)


def ok(value: Any) -> ToolResult:
    return ToolResult.ok("works.state", value)


BEGUN, RUNNING, DONE = ok({"id": 7}), ok({"status": "running"}), ok({"status": "completed"})


def mover_of(records: Any, ledger: Any, settings: Settings, *, lease_seconds: float) -> JobEngine:
    """With stand-ins for what is around it."""
    return JobEngine(records, ledger, settings, lease_seconds=lease_seconds, on_end=lambda: None)


async def live(
    redis: "Redis", url: str, moments: Moments, results: list[ToolResult], **more: Any
) -> tuple[Found, Ledger]:
    """A whole life of a job: ticks, and for each call that has ended an evaluation, until it has ended."""
    settings = Settings(redis_url=url)
    async with job_records(url) as records:
        spec = make_spec(**more.get("spec", {}))
        place = state_machine.first_place(spec, now=time.time(), jitter=0)
        assert isinstance(await records.create(spec, place, limit=9), Found)
        ledger = Ledger(redis, moments, results, more.get("refusals", []))
        frail: Any = FrailRecords(records, moments)
        mover = mover_of(frail, ledger, settings, lease_seconds=LEASE_SECONDS)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                job = await records.get("j")
                assert job is not None
                if job.place.state in ENDED:
                    return job, ledger
                await one_turn(records, mover, has_evaluations=more.get("has_evaluations", True))
                await asyncio.sleep(0.005)


async def one_turn(records: JobRecords, mover: JobEngine, *, has_evaluations: bool = True) -> None:
    """What is due, and what the last call came to."""
    try:
        for found in (await records.claim(count=5, lease_seconds=LEASE_SECONDS))[0]:
            await mover.go_on(found)
        if has_evaluations and (job := await records.read("j")) is not None:
            await mover.evaluate(job)
    except Died:  # another worker goes on
        pass
