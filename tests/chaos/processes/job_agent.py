"""An agent that makes jobs of every shape: `python -m chaos.processes.job_agent JOBS SECONDS SEED FOLDER`, settings from the environment.

Makes them spread over the time, cancels some, and writes down what it was told. It does not wait for their ends.
"""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from chaos.checks.job_rounds import CRON
from chaos.plan import BEHAVIOURS, EFFECTS, LONGEST_JOB_SECONDS, LOOK, MODULES
from chaos.records.job_notes import JobNote, notes_of
from toolfleet import Caller, Conversation, FleetUnavailable, Job, Poll, Schedule, ToolCall, ToolFleet
from toolfleet_registry.contracts.jobs import Completion, JobRefused

READY = "job agent ready"
MADE = "jobs made:"
CONVERSATIONS = 40
THEN = "-then"
"""Ends the `ref` of a call that a job's end makes."""

RECURRING = "recurring"

_USERS = 12
_TRY_SECONDS = 20.0  # with a silent Redis in between
_PAUSE_SECONDS = 0.3
_CANCEL_CHANCE = 0.15
_MINUTE = 60
_SHAPES = {"started and polled": 40, "started": 10, "polled": 25, "reminder": 15, "started later": 10, RECURRING: 5}
_ENDS = {"completed": 66, "failed": 16, "never": 12, "broken": 6}
_WISHES: dict[tuple[str, ...], int] = {
    ("resume_conversation",): 40,
    ("notify",): 12,
    ("resume_conversation", "notify"): 15,
    ("call",): 15,
    ("resume_conversation", "call"): 18,
}

T = TypeVar("T")


class JobAgent:
    """Makes jobs with a fleet, by its own dice."""

    def __init__(self, fleet: ToolFleet, seed: int, notes: Path) -> None:
        self._fleet = fleet
        self._dice = random.Random(f"{seed} jobs")
        self._file = notes.open("a")
        self._busy: set[asyncio.Task[None]] = set()

    async def make(self, jobs: int, *, within: float) -> None:
        """Make so many jobs, spread over so many seconds; returns when all have been made, and some cancelled."""
        began_at = time.monotonic()
        for number in range(jobs):
            due = began_at + number / jobs * within
            await asyncio.sleep(max(due - time.monotonic(), 0))
            left = began_at + within - time.monotonic()
            self._spawn(self._one(number, random.Random(self._dice.getrandbits(64)), left))
        if self._busy:
            await asyncio.wait(self._busy)
        self._file.close()
        print(MADE, jobs, flush=True)  # noqa: T201 - for who started us

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def _one(self, number: int, dice: random.Random, left: float) -> None:
        (shape,) = dice.choices(list(_SHAPES), list(_SHAPES.values()))
        (ends,) = dice.choices(list(_ENDS), list(_ENDS.values()))
        ref = f"job-{number}-{dice.getrandbits(32):08x}"
        seconds = LONGEST_JOB_SECONDS if dice.random() < 0.7 else dice.uniform(3, LONGEST_JOB_SECONDS)
        if shape == RECURRING:  # several rounds, if there is time
            seconds = max(seconds, min(left, dice.uniform(60, 200)))
            if _MINUTE - time.time() % _MINUTE > seconds - 1:  # such a one would be refused
                shape = "reminder"
        caller = Caller(user_id=f"jobber-{dice.randrange(_USERS)}", permission="user", allowed_modules="*")
        note = JobNote(ref=ref, shape=shape, ends=ends, asked_at=time.time(), seconds=seconds)
        note = await self._ask(note, _wish(ref, shape, ends, seconds, dice), caller)
        if note.job_ids and dice.random() < _CANCEL_CHANCE:
            await asyncio.sleep(dice.uniform(0, 6))
            note = await self._cancel(note, caller)
        self._file.write(note.model_dump_json() + "\n")
        self._file.flush()

    async def _ask(self, note: JobNote, wish: dict[str, Any], caller: Caller) -> JobNote:
        """Only a wish with a key is one that can be asked for again; some are, though it was heard."""
        start: ToolCall | None = wish["start"]
        has_key = start is not None and start.idempotency_key is not None
        ids, is_twice = list[str](), bool(wish.pop("twice"))
        try:
            for _ in range(2 if has_key and is_twice else 1):
                job = await _until_answered(lambda: self._fleet.jobs.start(**wish, caller=caller), again=has_key)
                ids.append(job.job_id)
        except JobRefused as exc:
            return note.model_copy(
                update={"refused": str(exc.result.error_code), "error": str(exc), "job_ids": tuple(ids)}
            )
        except Exception as exc:  # noqa: BLE001 - what it may raise is checked afterwards
            return note.model_copy(update={"error": _named(exc), "job_ids": tuple(ids)})
        return note.model_copy(update={"job_ids": tuple(ids)})

    async def _cancel(self, note: JobNote, caller: Caller) -> JobNote:
        update: dict[str, Any] = {"is_cancelled": True}
        try:
            job: Job | None = await _until_answered(
                lambda: self._fleet.jobs.cancel(note.job_ids[0], caller), again=True
            )
            update["cancelled"] = None if job is None else job.state
        except Exception as exc:  # noqa: BLE001 - as above
            update["cancel_error"] = _named(exc)
        return note.model_copy(update=update)


async def _until_answered(ask: Callable[[], Awaitable[T]], *, again: bool) -> T:
    give_up_at = time.monotonic() + _TRY_SECONDS
    while True:
        try:
            return await ask()
        except FleetUnavailable:
            if not again or time.monotonic() > give_up_at:
                raise
        await asyncio.sleep(_PAUSE_SECONDS)


def _wish(ref: str, shape: str, ends: str, seconds: float, dice: random.Random) -> dict[str, Any]:
    """What `jobs.start` is asked for; and whether twice, with one key."""
    module, now = dice.choice(MODULES), time.time()
    start = _start(ref, module, dice) if shape.startswith("started") else None
    later = now + dice.uniform(0.3, seconds / 2) if shape in {"reminder", "started later"} else None
    recurs = shape == RECURRING
    (wishes,) = dice.choices(list(_WISHES), list(_WISHES.values()))
    if recurs:
        wishes = tuple(wish for wish in wishes if wish != "call") or ("notify",)
    then = ToolCall(tool_name=f"{dice.choice(MODULES)}.once", arguments=_arguments(ref + THEN, dice))
    on_complete: list[Completion] = [then if wish == "call" else wish for wish in wishes]  # type: ignore[misc] # of those two
    has_poll = shape in {"started and polled", "polled", "started later", RECURRING}
    schedule = Schedule(cron=CRON) if recurs else None if later is None else Schedule(at=later)
    return {
        "start": start,
        "poll": _poll(ref, module, ends, dice, has_start=start is not None, recurs=recurs) if has_poll else None,
        "on_complete": on_complete,
        "conversation": Conversation(conversation_id=conversation_id(dice.randrange(CONVERSATIONS))),
        "deadline": seconds,
        "name": ref,
        "schedule": schedule,
        "twice": dice.random() < 0.3,
    }


def _start(ref: str, module: str, dice: random.Random) -> ToolCall:
    key = f"key of {ref}" if dice.random() < 0.6 else None
    tool_name = f"{module}.{dice.choice(('once', *EFFECTS))}"
    return ToolCall(tool_name=tool_name, arguments=_arguments(ref, dice), idempotency_key=key)


def _poll(ref: str, module: str, ends: str, dice: random.Random, *, has_start: bool, recurs: bool) -> Poll:
    """What recurs is over with each round's first success."""
    by_looks = dice.random() < 0.5
    ends = "never" if recurs and ends != "broken" else ends
    arguments = {
        "ref": ref,
        "ends": ends,
        "looks": dice.randint(1, 5) if by_looks else 10**6,
        "over_at": time.time() + (10**6 if by_looks else dice.uniform(0.5, 8)),
        "task": {"$from": "execution"} if has_start else "",
    }
    more: dict[str, Any] = {"max_seconds": dice.uniform(2, 8)} if ends == "never" and dice.random() < 0.3 else {}
    if recurs:
        more = {"until": None, "failed_when": None}
    return Poll(
        tool_name=f"{module}.{LOOK}",
        arguments=arguments,
        interval_seconds=dice.uniform(0.3, 2),
        backoff=dice.choice((1.0, 1.5)),
        longest_interval_seconds=3,
        **more,
    )


def _arguments(ref: str, dice: random.Random) -> dict[str, Any]:
    (first,) = dice.choices(list(BEHAVIOURS), list(BEHAVIOURS.values()))
    waits = (0, 0, 2, 20, 100, 500)
    then = first if dice.random() < 0.3 else "ok"
    return {"ref": ref, "first": first, "then": then, "before_ms": dice.choice(waits), "after_ms": dice.choice(waits)}


def _named(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"


def conversation_id(number: int) -> str:
    """Of one of the conversations in which jobs are made."""
    return f"conversation-{number}"


async def main(jobs: int, within: float, seed: int, folder: Path) -> None:
    async with ToolFleet() as fleet:
        print(READY, flush=True)  # noqa: T201 - for who started us
        await JobAgent(fleet, seed, notes_of(folder)).make(jobs, within=within)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
