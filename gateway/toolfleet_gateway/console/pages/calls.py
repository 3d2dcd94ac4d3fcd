"""Shows calls that have ended by a filter, and what happened to one of them and when."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from toolfleet_gateway.console.form_body import FormFields
from toolfleet_gateway.console.gateway_routes import RouteQuestion
from toolfleet_gateway.console.page import ConsolePage, Outcome, Shown, Visit
from toolfleet_gateway.console.paging import PER_PAGE
from toolfleet_gateway.console.waterfall import bars_of
from toolfleet_gateway.http.problems import Problem, invalid_request
from toolfleet_registry.time import fleet_clock

_NAMES: Final = ("module", "tool", "user", "outcome", "error")
_CONVERSATION: Final = "conversation"
_MOMENTS: Final = ("since", "until")
_ABSENT = 404
_COMPLETED = 50  # values that a field proposes


def call_pages() -> list[ConsolePage]:
    """The pages."""
    return [ConsolePage("GET", "/calls", _listed), ConsolePage("GET", "/calls/{call_id}", _shown)]


async def _listed(visit: Visit) -> Outcome:
    wanted = visit.query.chosen(*_NAMES, _CONVERSATION, *_MOMENTS)
    cursor = visit.query.chosen("cursor")
    chosen = {**visit.query.chosen(*_NAMES, _CONVERSATION), **_milliseconds(visit.query)}
    found = await visit.ask("listCalls", RouteQuestion(query={**chosen, **cursor, "limit": PER_PAGE}))
    values = {
        "calls": found["calls"],
        "found": found["found"],
        "next": found.get("next"),
        "is_whole": found["is_whole"],
        "wanted": wanted,
        "is_first": not cursor,
        "proposals": {name: await _proposals(visit, name) for name in _NAMES},
    }
    return Shown("calls", "Calls", values)


async def _shown(visit: Visit) -> Outcome:
    call_id = visit.path["call_id"]
    story = await visit.ask("showCall", RouteQuestion({"call_id": call_id}))
    line = story["lines"][-1] if story["lines"] else {}
    answer, approval, letters, places = await asyncio.gather(
        _seen(visit, "getCall", {"call_id": call_id}),
        _seen(visit, "getApproval", {"approval_id": call_id}),
        _seen(visit, "getDeadLetter", {"letter_id": call_id}),
        visit.ask("listPlacedModules"),
    )
    module = str(line.get("tool", "")).partition(".")[0]
    values = {
        "story": story,
        "line": line,
        "bars": bars_of(_with_approval(story["spans"], approval), now=fleet_clock.now() * 1000),
        "place": next((each for each in places["modules"] if each["module"] == module), {}),
        "answer": answer,
        "approval": approval,
        "letters": [] if letters is None else [each for each in letters["letters"] if each["kind"] == "call"],
    }
    return Shown("call", "Call", values)


async def _seen(visit: Visit, name: str, path: Mapping[str, str]) -> Any:
    """Return a route's answer; `None` if there is none, or the user may not see it."""
    try:
        return await visit.ask(name, RouteQuestion(path))
    except Problem as exc:
        if exc.status != _ABSENT:
            raise
        return None


def _with_approval(spans: Sequence[dict[str, Any]], approval: Any) -> Sequence[dict[str, Any]]:
    """Return the spans; for a waiting call without any, the span of its approval."""
    if spans or approval is None or approval["state"] != "waiting":
        return spans
    return [{"phase": "approval", "begins": approval["requested_at"] * 1000}]


async def _proposals(visit: Visit, name: str) -> list[str]:
    values = (await visit.ask("completeCallField", RouteQuestion(query={"field": name, "limit": _COMPLETED})))["values"]
    return [each["value"] for each in values]


def _milliseconds(query: FormFields) -> dict[str, int]:
    """The moments of the filter, in UTC as browsers write them. Raises `Problem`."""
    moments = dict[str, int]()
    for name, text in query.chosen(*_MOMENTS).items():
        try:
            at = datetime.fromisoformat(text)
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
            moments[name] = max(round(at.timestamp() * 1000), 0)
        except (ValueError, OverflowError):
            raise invalid_request("A moment is written as 2026-01-31T12:00, in UTC.") from None
    return moments
