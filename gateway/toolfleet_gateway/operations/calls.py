"""Lists calls that have ended, shows what happened to one, and counts them by time, for operators."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, RootModel
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer
from toolfleet_gateway.http.problems import invalid_request, not_found
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.operations.actors import actor_of
from toolfleet_gateway.roles import needing, require_role
from toolfleet_registry.policy.identities import LONGEST
from toolfleet_registry.time import fleet_clock
from toolfleet_tasks.operations.calls.call_charts import CallCharts
from toolfleet_tasks.operations.calls.call_filter import CallField, CallFilter
from toolfleet_tasks.operations.calls.call_index import CallIndex, FoundCalls
from toolfleet_tasks.operations.calls.call_story import CallStory

_NAME = 256  # characters of one
_HOUR_MS = 3_600_000

_Moment = Annotated[int, Field(ge=0, le=2**53)]
_LIST = "/operations/calls"


class ChosenCalls(BaseModel):
    """A filter of calls."""

    model_config = ConfigDict(extra="forbid")

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


class CallValueQuery(BaseModel):
    """A query for completions of a value."""

    model_config = ConfigDict(extra="forbid")

    field: CallField = Field(description="Whose values.")
    prefix: str = Field("", max_length=_NAME, description="How they begin, whatever their case.")
    limit: int = Field(20, ge=1, le=100, description="How many at most.")


class CallChartQuery(ChosenCalls):
    """A query for counts of filtered calls: without `since` those of the last hour."""

    steps: int = Field(60, ge=1, le=1_000, description="How many steps of the same length there are.")


class CallPage(RootModel[FoundCalls]):
    """Some calls, the latest first."""


class ShownCall(RootModel[CallStory]):
    """What happened to a call."""


class CountedCalls(RootModel[CallCharts]):
    """How calls went by time."""


class CallValue(BaseModel):
    """A value of a field."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    value: str
    """The value."""
    calls: int
    """How many calls have it."""


class CallValues(BaseModel):
    """Values of a field."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    values: list[CallValue]
    """The most frequent first."""


class UserQuery(BaseModel):
    """The user whose calls they are."""

    model_config = ConfigDict(extra="forbid")

    user_id: str = Field(min_length=1, max_length=LONGEST, description="Of this user's.")


class ForgottenContents(BaseModel):
    """The result of removing the kept arguments and results of calls."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    calls: int
    """The number of calls that had any."""


class OperatedCalls:
    """Answers about the calls of a fleet's index."""

    def __init__(self, index: CallIndex) -> None:
        self._index = index

    def routes(self) -> list[AnyRoute]:
        """Reading calls needs the role `viewer`. Arguments and results, where they are kept, are for admins and the call's own user."""
        return [
            Route(
                method="GET",
                path=_LIST,
                name="listCalls",
                summary="Which calls have ended, and how; for viewers",
                handle=needing("viewer", self._listed),
                query=CallQuery,
                answers={200: Answer("The latest first.", CallPage)},
                tag="operations",
            ),
            *self._summaries(),
            Route(
                method="GET",
                path=f"{_LIST}/{{call_id}}",
                name="showCall",
                summary="What happened to a call, its attempts and its times; for viewers, and for the call's own user",
                handle=self._shown,
                answers={200: Answer("What is known of it.", ShownCall)},
                problems=(404,),
                tag="operations",
            ),
        ]

    def _summaries(self) -> list[AnyRoute]:
        return [
            Route(
                method="DELETE",
                path=f"{_LIST}/contents",
                name="forgetCallContents",
                summary="Remove the arguments and results that are kept of a user's calls; for admins",
                handle=needing("admin", self._forgotten),
                query=UserQuery,
                answers={200: Answer("Of how many calls they were kept.", ForgottenContents)},
                tag="operations",
            ),
            Route(
                method="GET",
                path=f"{_LIST}/values",
                name="completeCallField",
                summary="What a field of the calls can be; for viewers",
                handle=needing("viewer", self._completed),
                query=CallValueQuery,
                answers={200: Answer("The most frequent first.", CallValues)},
                tag="operations",
            ),
            Route(
                method="GET",
                path=f"{_LIST}/charts",
                name="countCalls",
                summary="How many calls ended when and how, and percentiles of their times; for viewers",
                handle=needing("viewer", self._counted),
                query=CallChartQuery,
                answers={200: Answer("Step by step.", CountedCalls)},
                tag="operations",
            ),
        ]

    async def _listed(self, request: RouteRequest[None, CallQuery]) -> Response:
        query = request.query
        try:
            found = await self._index.find(query.filter, before=query.cursor, count=query.limit)
        except ValueError:
            raise invalid_request("The cursor is none: send the `next` of an answer as it is.") from None
        return json_answer(CallPage(found))

    async def _completed(self, request: RouteRequest[None, CallValueQuery]) -> Response:
        query = request.query
        values = await self._index.values(query.field, query.prefix, count=query.limit)
        return json_answer(CallValues(values=[CallValue(value=name, calls=calls) for name, calls in values]))

    async def _counted(self, request: RouteRequest[None, CallChartQuery]) -> Response:
        query = request.query
        until = round(fleet_clock.now() * 1000) if query.until is None else query.until
        since = max(until - _HOUR_MS, 0) if query.since is None else query.since
        if since >= until:
            raise invalid_request("`until` has to be after `since`.")
        return json_answer(
            CountedCalls(await self._index.charts(query.filter, since=since, until=until, steps=query.steps))
        )

    async def _forgotten(self, request: RouteRequest[None, UserQuery]) -> Response:
        calls = await self._index.forget_contents(request.query.user_id, actor_of(request.who))
        return json_answer(ForgottenContents(calls=calls))

    async def _shown(self, request: RouteRequest[None, None]) -> Response:
        who = request.who
        story = await self._index.story(
            request.path["call_id"],
            user_id=who.caller.user_id,
            sees_all=who.has_role("admin"),
            sees_tool=who.sees_calls_of,
        )
        if story is None or story.contents is None:
            require_role(who, "viewer")
        if story is None:
            raise not_found("Nobody knows such a call, or it ended too long ago.")
        return json_answer(ShownCall(story))
