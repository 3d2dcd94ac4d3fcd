"""Shows dead letters by a filter, and has one of them replayed or dropped."""

from typing import Any, Final

from toolfleet_gateway.console.bulk.list_filter import LETTERS, ListFilter
from toolfleet_gateway.console.gateway_routes import RouteQuestion
from toolfleet_gateway.console.page import ConsolePage, Done, Outcome, Shown, Visit
from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_registry.system.http_bodies import loads_strict

_ONE: Final = "/dead-letters/{kind}/{letter_id}"
_REPLAY_SECONDS = 60.0


def dead_letter_pages() -> list[ConsolePage]:
    """The pages."""
    return [
        ConsolePage("GET", "/dead-letters", _listed),
        ConsolePage("GET", _ONE, _shown),
        ConsolePage("POST", _ONE, _changed, "operator"),
    ]


async def _listed(visit: Visit) -> Outcome:
    return Shown("dead_letters", "Dead letters", await ListFilter.page(LETTERS, visit))


async def _shown(visit: Visit) -> Outcome:
    return await _page(visit)


async def _changed(visit: Visit) -> Outcome:
    kind, letter_id = visit.path["kind"], visit.path["letter_id"]
    asked: dict[str, Any] = {"path": {"letter_id": letter_id}, "query": {"kind": kind}}
    if visit.form.get("action") == "drop":
        await visit.ask("dropDeadLetter", RouteQuestion(**asked))
        return Done(f"Dropped the {kind} {letter_id}.", "/dead-letters")
    if visit.form.get("action") != "replay":
        raise invalid_request("A dead letter is replayed or dropped.")
    try:
        body = {"timeout_seconds": _REPLAY_SECONDS, **_other_arguments(visit)}
        report = await visit.ask("replayDeadLetter", RouteQuestion(**asked, body=body))
    except Problem as exc:
        if exc.status not in {400, 409}:
            raise
        return await _page(visit, refusal=str(exc), status=exc.status)
    result = report.get("result")
    if result is None:
        return Done("It is on its way again.", "/dead-letters")
    if result["success"]:
        return Done(f"{result['tool_name']} was run once more, and has succeeded.", "/dead-letters")
    return Done(f"{result['tool_name']} was run once more: {result['error']}", "/dead-letters", "bad")


async def _page(visit: Visit, *, refusal: str | None = None, status: int = 200) -> Shown:
    kind, letter_id = visit.path["kind"], visit.path["letter_id"]
    found = await visit.ask("getDeadLetter", RouteQuestion({"letter_id": letter_id}, {"kind": kind}))
    letters = [letter for letter in found["letters"] if letter["kind"] == kind]
    if not letters:
        raise not_found("There is no such dead letter, or not any more.")
    values = {"letter": letters[0], "refusal": refusal, "typed": visit.form.get("arguments")}
    return Shown("dead_letter", f"Dead {kind}", values, status)


def _other_arguments(visit: Visit) -> dict[str, Any]:
    """Return the edited arguments, or an empty dictionary if the form was not changed."""
    text = visit.form.get("arguments", "").strip()
    if not text:
        return {}
    try:
        value = loads_strict(text.encode("utf-8", "replace"))
    except ValueError as exc:
        raise invalid_request(f"The arguments are {exc}.") from None
    if not isinstance(value, dict):
        raise invalid_request("The arguments must be a JSON object.")
    return {"arguments": value}
