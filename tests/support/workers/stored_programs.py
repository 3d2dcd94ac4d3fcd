"""Programs that are stored, without a worker that runs them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from toolfleet_registry.contracts import Caller, Conversation, ToolCall
from toolfleet_registry.contracts.jobs import JobSpec
from toolfleet_registry.contracts.names import RUN_PROGRAM
from toolfleet_registry.contracts.programs import ProgramCall
from toolfleet_registry.redis.servers import connection_factory
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.programs import ProgramPosition, ProgramRecords, StoredProgram, WaitingCall, state_of
from toolfleet_tasks.redis_connection import PipelinedConnection

SIGNING_KEY = "0123456789abcdef0123456789abcdef"
SOURCE = "return await owls__echo(text='a')"


def program_settings(redis_url: str, **settings: Any) -> Settings:
    """The settings of a fleet that runs programs."""
    return Settings(**{"redis_url": redis_url, "programs": True, "signing_key": SIGNING_KEY, **settings})


@asynccontextmanager
async def program_records(
    settings: Settings, kind: type[PipelinedConnection] = PipelinedConnection
) -> AsyncGenerator[ProgramRecords]:
    """The records over a line of their own."""
    line = kind(connection_factory(str(settings.redis_url)), name="programs")
    line.start()
    await line.connected()
    try:
        yield ProgramRecords(line, settings)
    finally:
        await line.aclose()


def program_spec(program_id: str, *, user_id: str = "ada", source: str = SOURCE, seconds: float = 3600) -> JobSpec:
    """What a program is to do."""
    now = fleet_clock.now()
    return JobSpec(
        job_id=program_id,
        caller=Caller(user_id=user_id, permission="user", allowed_modules="*"),
        user_id=user_id,
        conversation=Conversation(conversation_id="nest"),
        start=ToolCall(tool_name=RUN_PROGRAM, arguments={"source": source}),
        created_at=now,
        deadline_at=now + seconds,
    )


async def stored_program(
    records: ProgramRecords, program_id: str = "program-a", *, limit: int = 100, **facts: Any
) -> StoredProgram:
    """A program before its first step; its caller waits for a minute."""
    now = fleet_clock.now()
    place = ProgramPosition(state="waiting", step=0, due_at=round(now + 30, 3), call_until=round(now + 60, 3))
    made = await records.create(program_spec(program_id, **facts), place, limit=limit)
    assert isinstance(made, StoredProgram)
    return made


async def waiting_program(
    records: ProgramRecords, program_id: str = "program-a", *, calls: int = 1, snapshot: str = "AA==", **facts: Any
) -> StoredProgram:
    """A program that waits for its first calls."""
    program = await stored_program(records, program_id, **facts)
    numbers = tuple(range(1, calls + 1))
    place = program.place.model_copy(update={"step": 1, "waits": numbers, "calls": calls})
    until = fleet_clock.now() + 60
    waiting = [
        WaitingCall(number=each, monty_id=each, tool_name="owls.echo", arguments={}, until=until) for each in numbers
    ]
    state = state_of(program, 1, (14, snapshot), waiting, [made_call(program, each, "waiting") for each in numbers])
    moved = await records.move(program, place, due_at=until, state=state)
    assert moved is not None
    return replace(moved, state=None)  # as another worker reads it


def made_call(program: StoredProgram, number: int, state: Any) -> ProgramCall:
    """A call of a program, as its record lists it."""
    return ProgramCall(number=number, tool_name="owls.echo", call_id=program.call_id(number), state=state)
