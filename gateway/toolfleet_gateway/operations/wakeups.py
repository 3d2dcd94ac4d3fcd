"""Lists, shows, replays and drops wake-ups that wait to be accepted, for operators."""

from collections.abc import Awaitable, Callable

from pydantic import BaseModel, ConfigDict, RootModel
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer, nothing
from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.operations.actors import actor_of
from toolfleet_gateway.operations.queries import ChosenWakeups, WakeupQuery, WakeupStepQuery
from toolfleet_gateway.operations.refusals import no_cursor, refusals
from toolfleet_gateway.roles import needing
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.dead_letters.entries import DeadEntries
from toolfleet_tasks.dead_letters.kept_wakes import KeptWake
from toolfleet_tasks.dead_letters.waiting_search import FoundWakes, is_mark, search_waiting
from toolfleet_tasks.operations.wakeup_changes import HandledWakes, WakeupChanges

_LIST, _ONE, _REPLAY = "/operations/wake-ups", "/operations/wake-ups/{wake_id}", "/replay"


class WakeupList(BaseModel):
    """Wake-ups that wait to be accepted."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    wakeups: list[KeptWake]
    """Those that are tried next first."""
    count: int
    """How many these are."""
    next: str | None = None
    """The `cursor` behind which there may be more. With fewer wake-ups than `limit`: one question looks at 5,000, and not all were searched."""


class ShownWakeup(RootModel[KeptWake]):
    """One wake-up."""


class DroppedWakeup(BaseModel):
    """What came of dropping one."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    under_way: bool
    """Whether it is tried just now: that try may still be accepted, and no other one is begun."""


class HandledWakeups(BaseModel):
    """What one step over the wake-ups of a filter has come to."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    done: int
    """How many were dropped, or are tried now."""
    passed: int
    """How many were due already, or handled by somebody else."""
    under_way: int
    """How many of those that were dropped are tried just now, and may still be accepted."""
    problems: list[str]
    """What is the matter with others, a sentence each."""
    next: str | None = None
    """The `cursor` of the next step; without one nothing is left."""


def wakeup_routes(fleet: ToolFleet, settings: Settings) -> list[AnyRoute]:
    """Return the routes of wake-ups."""
    about = _AboutWakeups(fleet, settings)
    return [*_routes_of_all(about), *_routes_of_one(about)]


def _routes_of_all(about: "_AboutWakeups") -> list[AnyRoute]:
    return [
        Route(
            method="GET",
            path=_LIST,
            name="listWakeups",
            summary="Wake-ups that wait to be accepted; for viewers",
            handle=needing("viewer", about.listed),
            query=WakeupQuery,
            answers={200: Answer("Those that are tried next first.", WakeupList)},
            tag="operations",
        ),
        Route(
            method="POST",
            path=_LIST + _REPLAY,
            name="replayWakeups",
            summary="Have those of a filter tried now, step by step; for operators",
            handle=needing("operator", about.all_replayed),
            query=WakeupStepQuery,
            answers={200: Answer("What the step has come to.", HandledWakeups)},
            tag="operations",
        ),
        Route(
            method="DELETE",
            path=_LIST,
            name="dropWakeups",
            summary="Forget those of a filter, step by step; for operators",
            handle=needing("operator", about.all_dropped),
            query=WakeupStepQuery,
            answers={200: Answer("What the step has come to.", HandledWakeups)},
            tag="operations",
        ),
    ]


def _routes_of_one(about: "_AboutWakeups") -> list[AnyRoute]:
    return [
        Route(
            method="GET",
            path=_ONE,
            name="getWakeup",
            summary="One that waits, or that nobody has accepted; for viewers",
            handle=needing("viewer", about.shown),
            answers={200: Answer("It.", ShownWakeup)},
            problems=(404,),
            tag="operations",
        ),
        Route(
            method="POST",
            path=_ONE + _REPLAY,
            name="replayWakeup",
            summary="Have one tried now; for operators",
            handle=needing("operator", about.replayed),
            answers={204: Answer("It is due.")},
            problems=(404, 409),
            tag="operations",
        ),
        Route(
            method="DELETE",
            path=_ONE,
            name="dropWakeup",
            summary="Forget one that waits; for operators",
            handle=needing("operator", about.dropped),
            answers={200: Answer("It is forgotten.", DroppedWakeup)},
            problems=(404,),
            tag="operations",
        ),
    ]


class _AboutWakeups:
    def __init__(self, fleet: ToolFleet, settings: Settings) -> None:
        self._wakeups = fleet.wakeups
        self._settings = settings

    async def listed(self, request: RouteRequest[None, WakeupQuery]) -> Response:
        query = request.query
        if query.is_search or (query.conversation_id is None and not query.offset):
            if query.offset or query.conversation_id is not None:
                raise invalid_request(
                    "Go on with the `cursor`: neither `offset` nor `conversation_id` go with words or an age."
                )
            found = await self._searched(query, _mark_of(query))
            return json_answer(WakeupList(wakeups=found.wakes, count=len(found.wakes), next=found.next))
        if query.conversation_id is None:
            wakes = await self._wakeups.waiting(query.limit, query.offset)
        elif query.offset:
            raise invalid_request("An `offset` does not go with a `conversation_id`.")
        else:
            wakes = await self._wakeups.of_conversation(query.conversation_id, query.limit)
        return json_answer(WakeupList(wakeups=wakes, count=len(wakes)))

    async def shown(self, request: RouteRequest[None, None]) -> Response:
        found = await self._wakeups.show(request.path["wake_id"])
        if found is None:
            raise _absent()
        return json_answer(ShownWakeup(found))

    async def replayed(self, request: RouteRequest[None, None]) -> Response:
        with refusals():
            async with WakeupChanges.of(self._settings, actor_of(request.who)) as changes:
                was_there = await changes.replay(request.path["wake_id"])
        if not was_there:
            raise _absent()
        return nothing()

    async def dropped(self, request: RouteRequest[None, None]) -> Response:
        async with WakeupChanges.of(self._settings, actor_of(request.who)) as changes:
            became = await changes.drop(request.path["wake_id"])
        if became is None:
            raise _absent()
        return json_answer(DroppedWakeup(under_way=became == "under_way"))

    async def all_replayed(self, request: RouteRequest[None, WakeupStepQuery]) -> Response:
        return await self._stepped(request, WakeupChanges.replay_found)

    async def all_dropped(self, request: RouteRequest[None, WakeupStepQuery]) -> Response:
        return await self._stepped(request, WakeupChanges.drop_found)

    async def _stepped(
        self, request: RouteRequest[None, WakeupStepQuery], handle: Callable[..., Awaitable[HandledWakes]]
    ) -> Response:
        query, mark = request.query, _mark_of(request.query)
        async with WakeupChanges.of(self._settings, actor_of(request.who)) as changes:
            step = await handle(changes, query.wanted, behind=mark, limit=query.limit)
        return json_answer(
            HandledWakeups(
                done=step.done,
                passed=step.passed,
                under_way=step.under_way,
                problems=list(step.problems),
                next=step.next,
            )
        )

    async def _searched(self, query: WakeupQuery, mark: str | None) -> FoundWakes:
        async with DeadEntries.of(self._settings) as dead:
            return await search_waiting(dead.events, query.wanted, behind=mark, limit=query.limit)


def _mark_of(query: ChosenWakeups) -> str | None:
    if query.cursor is not None and not is_mark(query.cursor):
        raise no_cursor()
    return query.cursor


def _absent() -> Problem:
    return not_found("There is no such wake-up, or not any more.")
