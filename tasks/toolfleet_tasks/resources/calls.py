"""Lists calls that have ended, tells what happened to one, counts them by time, and forgets what they were asked and answered."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

from pydantic import Field, RootModel

from toolfleet_registry.access import has_role
from toolfleet_registry.errors import FleetError, InvalidQuestion, NoSuchEntry
from toolfleet_registry.policy.call_faults import LONGEST, sees_calls_of
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.artifacts import forget_artifacts
from toolfleet_tasks.ledger.contents import forget_contents
from toolfleet_tasks.operations.call_index import CallCharts, CallField, CallFilter, CallIndex, FoundCalls
from toolfleet_tasks.operations.call_story import CallStory
from toolfleet_tasks.resources.operation import AnswerModel, OperationRequest, QueryModel, no_cursor, operation

_NAME = 256  # characters of one
_HOUR_MS = 3_600_000

_Moment = Annotated[int, Field(ge=0, le=2**53)]
_LIST = "/operations/calls"


class ChosenCalls(QueryModel):
    """A filter of calls."""

    module: str | None = Field(None, max_length=_NAME, description="Only this module's.")
    tool: str | None = Field(None, max_length=_NAME, description="Only this tool's, by its full name.")
    user: str | None = Field(None, max_length=_NAME, description="Only this user's.")
    conversation: str | None = Field(None, max_length=_NAME, description="Only this conversation's, by its id.")
    outcome: str | None = Field(None, max_length=_NAME, description="Only those with this outcome.")
    error: str | None = Field(None, max_length=_NAME, description="Only those with this error code.")
    since: _Moment | None = Field(None, description="Only those that ended then or later, in ms since the epoch.")
    until: _Moment | None = Field(None, description="Only those that ended before, in ms since the epoch.")

    @property
    def filter(self) -> CallFilter:
        """As the index takes it."""
        return CallFilter(
            self.module, self.tool, self.user, self.outcome, self.error, self.since, self.until, self.conversation
        )


class CallQuery(ChosenCalls):
    """A query for a page of filtered calls."""

    limit: int = Field(50, ge=1, le=500, description="How many a page has.")
    cursor: str | None = Field(None, max_length=64, description="The `next` of the page before.")


class CallValueQuery(QueryModel):
    """A query for completions of a value."""

    field: CallField = Field(description="Whose values.")
    prefix: str = Field("", max_length=_NAME, description="How they begin, whatever their case.")
    limit: int = Field(20, ge=1, le=100, description="How many at most.")


class CallChartQuery(ChosenCalls):
    """A query for counts of filtered calls: without `since` those of the last hour."""

    steps: int = Field(60, ge=1, le=1_000, description="How many steps of the same length there are.")


class CallPage(RootModel[FoundCalls]):
    """Some calls, the latest first."""


class ShownCall(RootModel[CallStory]):
    """The history of a call."""


class CountedCalls(RootModel[CallCharts]):
    """How calls went by time."""


class CallValue(AnswerModel):
    """A value of a field."""

    value: str
    """The value."""
    calls: int
    """How many calls have it."""


class CallValues(AnswerModel):
    """Values of a field."""

    values: list[CallValue]
    """The most frequent first."""


class UserQuery(QueryModel):
    """The user whose calls they are."""

    user_id: str = Field(min_length=1, max_length=LONGEST, description="Of this user's.")


class ForgottenContents(AnswerModel):
    """The result of removing the kept arguments and results of calls."""

    calls: int
    """The number of calls that had any."""
    artifacts: int | None = None
    """The number of large results that were deleted from the store, if there is one."""


class ArtifactQuery(UserQuery):
    """The user's artifacts to delete."""

    id: str | None = Field(None, min_length=1, max_length=_NAME, description="Only this one; by default all.")


@operation("GET", _LIST, role="viewer", answers="The latest first.")
async def list_calls(asked: OperationRequest[None, CallQuery]) -> CallPage:
    """List calls that have ended."""
    query = asked.query
    async with _index(asked) as index:
        try:
            return CallPage(await index.find(query.filter, before=query.cursor, count=query.limit))
        except ValueError:
            raise no_cursor() from None


@operation("DELETE", f"{_LIST}/contents", role="admin", answers="Of how many calls they were kept.")
async def forget_call_contents(asked: OperationRequest[None, UserQuery]) -> ForgottenContents:
    """Remove the arguments and results that are kept of a user's calls, its artifacts among them."""
    settings, user_id = asked.settings, asked.query.user_id
    async with (
        settings.redis_client() as redis,
        asked.change("contents_forgotten", user_id) as change,
    ):
        change.facts["calls"] = count = await forget_contents(redis, settings.keys, user_id)
        if settings.artifact_store is None:
            return ForgottenContents(calls=count)
        change.facts["artifacts"] = artifacts = await forget_artifacts(settings, user_id)
    return ForgottenContents(calls=count, artifacts=artifacts)


@operation("DELETE", f"{_LIST}/artifacts", role="admin", answers="How many there were.")
async def delete_artifacts(asked: OperationRequest[None, ArtifactQuery]) -> ForgottenContents:
    """Delete artifacts of a user: large results that are kept in the store."""
    ids = () if asked.query.id is None else (asked.query.id,)
    async with asked.change("contents_forgotten", asked.query.user_id) as change:
        change.facts["artifacts"] = count = await forget_artifacts(asked.settings, asked.query.user_id, ids)
    return ForgottenContents(calls=0, artifacts=count)


@operation("GET", f"{_LIST}/values", role="viewer", answers="The most frequent first.")
async def complete_call_field(asked: OperationRequest[None, CallValueQuery]) -> CallValues:
    """List the values that a field of the calls has."""
    query = asked.query
    async with _index(asked) as index:
        values = await index.values(query.field, query.prefix, count=query.limit)
    return CallValues(values=[CallValue(value=name, calls=calls) for name, calls in values])


@operation("GET", f"{_LIST}/charts", role="viewer", answers="Step by step.")
async def count_calls(asked: OperationRequest[None, CallChartQuery]) -> CountedCalls:
    """Count calls by when and how they ended, with percentiles of their times."""
    query = asked.query
    until = round(fleet_clock.now() * 1000) if query.until is None else query.until
    since = max(until - _HOUR_MS, 0) if query.since is None else query.since
    if since >= until:
        raise InvalidQuestion("`until` has to be after `since`.")
    async with _index(asked) as index:
        return CountedCalls(await index.charts(query.filter, since=since, until=until, steps=query.steps))


@operation(
    "GET", f"{_LIST}/{{call_id}}", role="viewer", is_for_owner=True, answers="What is known of it.", problems=(404,)
)
async def show_call(asked: OperationRequest[None, None]) -> ShownCall:
    """Tell what happened to a call, with its attempts and its times."""
    operator, caller = asked.operator, asked.operator.caller
    async with _index(asked) as index:
        story = await index.story(
            asked.path["call_id"],
            user_id=None if caller is None else caller.user_id,
            sees_all=has_role(operator.maker.role, "admin"),
            sees_tool=lambda name: caller is not None and sees_calls_of(caller, name),
            requested_at=lambda: _requested_at(asked),
        )
    if story is None or story.contents is None:  # its own user sees what is kept of it
        operator.require("viewer")
    if story is None:
        raise NoSuchEntry("Nobody knows such a call, or it ended too long ago.")
    return ShownCall(story)


async def _requested_at(asked: OperationRequest[None, None]) -> float | None:
    """Return when (ms) people were asked about a call, as far as that is kept and can be read here."""
    with suppress(FleetError):
        found = await (await asked.fleet()).approvals.show(asked.path["call_id"])
        return found.request.requested_at * 1000
    return None


@asynccontextmanager
async def _index(asked: OperationRequest[Any, Any]) -> AsyncGenerator[CallIndex]:
    """Return the index that a gateway keeps; elsewhere the audit is read for this one request."""
    if asked.calls is not None:
        yield asked.calls
        return
    async with CallIndex.of(asked.settings) as index:
        await index.read_all()
        yield index
