"""Lists, shows, replays and drops dead letters, for operators."""

from collections.abc import Collection, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer, nothing
from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.operations.actors import actor_of
from toolfleet_gateway.operations.queries import DeadQuery, EventKindQuery, KindQuery
from toolfleet_gateway.operations.refusals import no_cursor, refusals
from toolfleet_gateway.roles import needing
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.dead_letters.entries import DeadEntries
from toolfleet_tasks.dead_letters.entry import DeadEntry, DeadKind
from toolfleet_tasks.operations.letter_changes import LetterChanges

_LIST, _ONE, _REPLAY = "/operations/dead-letters", "/operations/dead-letters/{letter_id}", "/replay"
_LONGEST_SECONDS = 300.0


class DeadLetterList(BaseModel):
    """Dead letters."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    letters: list[DeadEntry]
    """The latest first."""
    count: int
    """How many these are."""
    next: str | None = None
    """The `cursor` behind which there may be more. With fewer letters than `limit`: one question looks at 5,000, and not all were searched."""


class ReplayRequest(BaseModel):
    """How a dead letter is tried anew."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    arguments: dict[str, Any] | None = None
    """In the place of a call's own. Then it is made in the name of whoever asks, and judged by what they may do."""
    timeout_seconds: float = Field(default=60, gt=0, le=_LONGEST_SECONDS)
    """By when a call has ended."""


class ReplayReport(BaseModel):
    """What came of a replay."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    is_due: bool
    """Whether the news are on their way again; a call has its result instead."""
    result: ToolResult | None = None
    """How the call has ended, of a letter that is one."""


class ReplayAllReport(BaseModel):
    """What came of replaying many letters."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    due: int
    """How many are on their way again."""
    problems: list[str]
    """What is the matter with the others, a sentence each."""


class DroppedLetters(BaseModel):
    """What came of dropping all letters."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    dropped: int
    """How many there were."""


def dead_letter_routes(fleet: ToolFleet, settings: Settings) -> list[AnyRoute]:
    """Return the routes of dead letters."""
    about = _AboutDeadLetters(fleet, settings)
    return [*_routes_of_all(about), *_shown_routes(about), *_changing_routes(about)]


def _routes_of_all(about: "_AboutDeadLetters") -> list[AnyRoute]:
    return [
        Route(
            method="POST",
            path=_LIST + _REPLAY,
            name="replayDeadLetters",
            summary="Have the latest 1,000 dead wake-ups, or webhooks, sent again; for operators",
            handle=needing("operator", about.all_replayed),
            query=EventKindQuery,
            answers={200: Answer("What came of it.", ReplayAllReport)},
            tag="operations",
        ),
        Route(
            method="DELETE",
            path=_LIST,
            name="dropDeadLetters",
            summary="Forget all dead letters, or all of one kind; for operators",
            handle=needing("operator", about.all_dropped),
            query=KindQuery,
            answers={200: Answer("How many there were.", DroppedLetters)},
            tag="operations",
        ),
    ]


def _shown_routes(about: "_AboutDeadLetters") -> list[AnyRoute]:
    return [
        Route(
            method="GET",
            path=_LIST,
            name="listDeadLetters",
            summary="What has died and is kept; for viewers",
            handle=needing("viewer", about.listed),
            query=DeadQuery,
            answers={200: Answer("The latest first.", DeadLetterList)},
            tag="operations",
        ),
        Route(
            method="GET",
            path=_ONE,
            name="getDeadLetter",
            summary="One dead letter; for viewers",
            handle=needing("viewer", about.shown),
            query=KindQuery,
            answers={200: Answer("All that is kept of it, one letter of each kind with this id.", DeadLetterList)},
            problems=(404,),
            tag="operations",
        ),
    ]


def _changing_routes(about: "_AboutDeadLetters") -> list[AnyRoute]:
    return [
        Route(
            method="DELETE",
            path=_ONE,
            name="dropDeadLetter",
            summary="Forget a dead letter; for operators",
            handle=needing("operator", about.dropped),
            query=KindQuery,
            answers={204: Answer("It is forgotten.")},
            problems=(404, 409),
            tag="operations",
        ),
        Route(
            method="POST",
            path=_ONE + _REPLAY,
            name="replayDeadLetter",
            summary="Run a call once more in the same name, or have news sent again; for operators",
            handle=needing("operator", about.replayed),
            query=KindQuery,
            body=ReplayRequest,
            answers={200: Answer("What came of it.", ReplayReport)},
            problems=(404, 409),
            tag="operations",
        ),
    ]


class _AboutDeadLetters:
    def __init__(self, fleet: ToolFleet, settings: Settings) -> None:
        self._fleet = fleet
        self._settings = settings

    async def listed(self, request: RouteRequest[None, DeadQuery]) -> Response:
        query = request.query
        async with DeadEntries.of(self._settings) as dead:
            if query.offset and not query.is_search:
                letters = await dead.list(query.kinds, query.limit, query.offset)
                return json_answer(DeadLetterList(letters=list(letters), count=len(letters)))
            return json_answer(await _searched(dead, query))

    async def shown(self, request: RouteRequest[None, KindQuery]) -> Response:
        letters = await self._found(request.path["letter_id"], request.query.kinds)
        return json_answer(DeadLetterList(letters=list(letters), count=len(letters)))

    async def dropped(self, request: RouteRequest[None, KindQuery]) -> Response:
        letter_id = request.path["letter_id"]
        letter = _only(await self._found(letter_id, request.query.kinds))
        async with LetterChanges.of(self._settings, actor_of(request.who)) as changes:
            if not await changes.drop(letter_id, (letter.kind,)):
                raise _absent()
        return nothing()

    async def all_dropped(self, request: RouteRequest[None, KindQuery]) -> Response:
        async with LetterChanges.of(self._settings, actor_of(request.who)) as changes:
            return json_answer(DroppedLetters(dropped=await changes.drop_all(request.query.kinds)))

    async def all_replayed(self, request: RouteRequest[None, EventKindQuery]) -> Response:
        async with LetterChanges.of(self._settings, actor_of(request.who)) as changes:
            found = await changes.replay_all(request.query.kind)
        return json_answer(ReplayAllReport(due=found.due, problems=list(found.problems)))

    async def replayed(self, request: RouteRequest[ReplayRequest, KindQuery]) -> Response:
        letter_id, body = request.path["letter_id"], request.body
        letter = _only(await self._found(letter_id, request.query.kinds))
        with refusals():
            async with LetterChanges.of(self._settings, actor_of(request.who)) as changes:
                if letter.kind != "call":
                    await changes.replay_event(letter_id)
                    return json_answer(ReplayReport(is_due=True))
                own = None if body.arguments is None else request.who.caller
                result = await changes.replay_call(
                    letter_id,
                    lambda: self._fleet.dead_letters.replay(
                        letter_id, own, arguments=body.arguments, timeout=body.timeout_seconds
                    ),
                )
        return json_answer(ReplayReport(is_due=False, result=result))

    async def _found(self, letter_id: str, kinds: Collection[DeadKind]) -> Sequence[DeadEntry]:
        async with DeadEntries.of(self._settings) as dead:
            letters = await dead.find(letter_id, kinds)
        if not letters:
            raise _absent()
        return letters


async def _searched(dead: DeadEntries, query: DeadQuery) -> DeadLetterList:
    if query.offset:
        raise invalid_request("Go on with the `cursor`: an `offset` goes with neither words nor an age.")
    try:
        found = await dead.search(query.wanted, behind=query.cursor, limit=query.limit)
    except ValueError:
        raise no_cursor() from None
    return DeadLetterList(letters=found.entries, count=len(found.entries), next=found.next)


def _only(letters: Sequence[DeadEntry]) -> DeadEntry:
    if len(letters) > 1:
        raise Problem(409, "several_letters", "A call and a wake-up that was to make it have this id: say the `kind`.")
    return letters[0]


def _absent() -> Problem:
    return not_found("There is no such dead letter, or not any more.")
