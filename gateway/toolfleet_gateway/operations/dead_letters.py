"""Lists, shows, replays and drops dead letters, for operators."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from toolfleet_gateway.http.answers import json_answer, nothing
from toolfleet_gateway.http.problems import Problem, not_found
from toolfleet_gateway.http.routes import Answer, AnyRoute, Route, RouteRequest
from toolfleet_gateway.operations.queries import DeadQuery, KindQuery
from toolfleet_gateway.rights.roles import needing
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.errors import NoSuchDeadLetter, NotReplayable
from toolfleet_registry.settings import Settings
from toolfleet_tasks.client.fleet import ToolFleet
from toolfleet_tasks.dead_letters.entries import DeadEntries
from toolfleet_tasks.dead_letters.entry import KINDS, DeadEntry, DeadKind

_LIST, _ONE, _REPLAY = "/operations/dead-letters", "/operations/dead-letters/{letter_id}", "/replay"
_LONGEST_SECONDS = 300.0


class DeadLetterList(BaseModel):
    """Dead letters."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    letters: list[DeadEntry]
    """The latest first."""
    count: int
    """How many these are."""


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


def dead_letter_routes(fleet: ToolFleet, settings: Settings) -> list[AnyRoute]:
    """What is answered about dead letters."""
    about = _AboutDeadLetters(fleet, settings)
    return [*_shown_routes(about), *_changing_routes(about)]


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
            letters = await dead.list(_kinds(query.kind), query.limit, query.offset)
        return json_answer(DeadLetterList(letters=list(letters), count=len(letters)))

    async def shown(self, request: RouteRequest[None, KindQuery]) -> Response:
        letters = await self._found(request.path["letter_id"], request.query.kind)
        return json_answer(DeadLetterList(letters=list(letters), count=len(letters)))

    async def dropped(self, request: RouteRequest[None, KindQuery]) -> Response:
        letter_id = request.path["letter_id"]
        letter = _only(await self._found(letter_id, request.query.kind))
        async with DeadEntries.of(self._settings) as dead:
            await dead.drop([letter_id], (letter.kind,))
        return nothing()

    async def replayed(self, request: RouteRequest[ReplayRequest, KindQuery]) -> Response:
        letter_id, body = request.path["letter_id"], request.body
        letter = _only(await self._found(letter_id, request.query.kind))
        try:
            if letter.kind == "call":
                own = None if body.arguments is None else request.who.caller
                result = await self._fleet.dead_letters.replay(
                    letter_id, own, arguments=body.arguments, timeout=body.timeout_seconds
                )
                return json_answer(ReplayReport(is_due=False, result=result))
            async with DeadEntries.of(self._settings) as dead:
                if not await dead.events.replay(letter_id):
                    raise _absent()
        except NoSuchDeadLetter as exc:  # dropped just now
            raise _absent() from exc
        except NotReplayable as exc:
            raise Problem(409, "not_replayable", str(exc)) from exc
        return json_answer(ReplayReport(is_due=True))

    async def _found(self, letter_id: str, kind: DeadKind | None) -> Sequence[DeadEntry]:
        async with DeadEntries.of(self._settings) as dead:
            letters = await dead.find(letter_id, _kinds(kind))
        if not letters:
            raise _absent()
        return letters


def _kinds(kind: DeadKind | None) -> tuple[DeadKind, ...]:
    return KINDS if kind is None else (kind,)


def _only(letters: Sequence[DeadEntry]) -> DeadEntry:
    if len(letters) > 1:
        raise Problem(409, "several_letters", "A call and a wake-up that was to make it have this id: say the `kind`.")
    return letters[0]


def _absent() -> Problem:
    return not_found("There is no such dead letter, or not any more.")
