"""Lists, shows and replays wake-ups that wait to be accepted, for operators."""

from pydantic import BaseModel, ConfigDict, RootModel
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer, nothing
from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.operations.actors import actor_of
from toolfleet_gateway.operations.queries import WakeupQuery
from toolfleet_gateway.operations.refusals import refusals
from toolfleet_gateway.rights.roles import needing
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.dead_letters.kept_wakes import KeptWake
from toolfleet_tasks.operations.letter_changes import LetterChanges

_LIST, _ONE, _REPLAY = "/operations/wake-ups", "/operations/wake-ups/{wake_id}", "/replay"


class WakeupList(BaseModel):
    """Wake-ups that wait to be accepted."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    wakeups: list[KeptWake]
    """Those that are tried next first."""
    count: int
    """How many these are."""


class ShownWakeup(RootModel[KeptWake]):
    """One wake-up."""


def wakeup_routes(fleet: ToolFleet, settings: Settings) -> list[AnyRoute]:
    """What is answered about wake-ups."""
    about = _AboutWakeups(fleet, settings)
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
    ]


class _AboutWakeups:
    def __init__(self, fleet: ToolFleet, settings: Settings) -> None:
        self._wakeups = fleet.wakeups
        self._settings = settings

    async def listed(self, request: RouteRequest[None, WakeupQuery]) -> Response:
        query = request.query
        if query.conversation_id is None:
            found = await self._wakeups.waiting(query.limit, query.offset)
        elif query.offset:
            raise invalid_request("An `offset` does not go with a `conversation_id`.")
        else:
            found = await self._wakeups.of_conversation(query.conversation_id, query.limit)
        return json_answer(WakeupList(wakeups=found, count=len(found)))

    async def shown(self, request: RouteRequest[None, None]) -> Response:
        found = await self._wakeups.show(request.path["wake_id"])
        if found is None:
            raise _absent()
        return json_answer(ShownWakeup(found))

    async def replayed(self, request: RouteRequest[None, None]) -> Response:
        with refusals():
            async with LetterChanges.of(self._settings, actor_of(request.who)) as changes:
                was_there = await changes.try_wakeup(request.path["wake_id"])
        if not was_there:
            raise _absent()
        return nothing()


def _absent() -> Problem:
    return not_found("There is no such wake-up, or not any more.")
