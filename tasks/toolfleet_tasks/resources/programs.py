"""Lists, shows and cancels programs: those of all users, and a caller's own."""

from pydantic import Field

from toolfleet_registry.contracts import Caller
from toolfleet_registry.contracts.names import RUN_PROGRAM
from toolfleet_registry.contracts.programs import ToolProgram
from toolfleet_registry.policy.call_faults import LONGEST, sees_calls_of
from toolfleet_tasks.client.fleet import fleet_settings
from toolfleet_tasks.client.session import worker_session
from toolfleet_tasks.resources.jobs import OfUserQuery
from toolfleet_tasks.resources.operation import AnswerModel, OperationRequest, QueryModel, absent, operation

_ALL, _ONE = "/operations/programs", "/operations/programs/{program_id}"


class OperatedProgramQuery(QueryModel):
    """A query for programs of all users."""

    user_id: str | None = Field(None, max_length=LONGEST, description="Only those of this user.")
    ended: bool = Field(False, description="Whether those that are over are listed, too.")
    limit: int = Field(100, ge=1, le=1_000, description="How many at most.")


class ProgramQuery(OfUserQuery):
    """A query for programs."""

    ended: bool = Field(True, description="Whether those that are over are listed, too.")
    limit: int = Field(100, ge=1, le=1_000, description="How many at most.")


class ProgramList(AnswerModel):
    """Programs, without their calls."""

    programs: list[ToolProgram]
    """The newest first; of all users those that are due next first."""
    count: int
    """How many these are."""


@operation("GET", _ALL, role="viewer", answers="Those that are due next first.")
async def list_all_programs(asked: OperationRequest[None, OperatedProgramQuery]) -> ProgramList:
    """List the programs of all users."""
    query = asked.query
    async with worker_session(fleet_settings(settings=asked.settings)) as session:
        if query.user_id is None:
            return _listed(await session.programs.list_all(ended=query.ended, limit=query.limit))
        return _listed(await session.programs.list(query.user_id, ended=query.ended, limit=query.limit))


@operation("GET", _ONE, role="viewer", answers="The program.", problems=(404,))
async def get_any_program(asked: OperationRequest[None, None]) -> ToolProgram:
    """Return a program of any user, with its calls."""
    async with worker_session(fleet_settings(settings=asked.settings)) as session:
        return _there(await session.programs.get(asked.path["program_id"], None, of_any=True))


@operation("DELETE", _ONE, role="operator", answers="The program as it is now.", problems=(404,))
async def cancel_any_program(asked: OperationRequest[None, None]) -> ToolProgram:
    """Have a program of any user end, without a wake-up."""
    program_id, settings = asked.path["program_id"], fleet_settings(settings=asked.settings)
    async with worker_session(settings) as session, asked.change("program_cancelled", program_id) as change:
        program = await session.programs.cancel(program_id, None, of_any=True)
        change.refusal = "There is no such program." if program is None else None
    return _there(program)


@operation("GET", "/programs", role="none", answers="The newest first.")
async def list_programs(asked: OperationRequest[None, ProgramQuery]) -> ProgramList:
    """List the caller's programs."""
    query, caller, fleet = asked.query, asked.operator.caller_for(asked.query.user_id), await asked.fleet()
    if not sees_calls_of(caller, RUN_PROGRAM):
        return _listed([])
    return _listed(await fleet.programs.list(caller, ended=query.ended, limit=query.limit))


@operation("GET", "/programs/{program_id}", role="none", answers="The program.", problems=(404,))
async def get_program(asked: OperationRequest[None, OfUserQuery]) -> ToolProgram:
    """Return one of the caller's programs, with its calls."""
    return _there(await (await asked.fleet()).programs.get(asked.path["program_id"], _caller(asked)))


@operation("DELETE", "/programs/{program_id}", role="none", answers="The program as it is now.", problems=(404,))
async def cancel_program(asked: OperationRequest[None, OfUserQuery]) -> ToolProgram:
    """Have a program end, without a wake-up; one that has ended stays as it is."""
    return _there(await (await asked.fleet()).programs.cancel(asked.path["program_id"], _caller(asked)))


def _caller(asked: OperationRequest[None, OfUserQuery]) -> Caller:
    """Return the caller, who sees programs as calls of the tool that makes them. Raises `NoSuchEntry`."""
    caller = asked.operator.caller_for(asked.query.user_id)
    if not sees_calls_of(caller, RUN_PROGRAM):
        raise absent("program")
    return caller


def _listed(programs: list[ToolProgram]) -> ProgramList:
    return ProgramList(programs=programs, count=len(programs))


def _there(program: ToolProgram | None) -> ToolProgram:
    if program is None:
        raise absent("program")
    return program
