"""Shows calls that wait for people, and has those decide who may."""

from typing import Any

from toolfleet_gateway.console.gateway_routes import RouteQuestion
from toolfleet_gateway.console.page import ConsolePage, Done, Outcome, Shown, Visit
from toolfleet_gateway.console.paging import window_of
from toolfleet_gateway.http.problems import Problem, invalid_request
from toolfleet_registry.system.http_bodies import loads_strict

_ONE = "/approvals/{approval_id}"


def approval_pages() -> list[ConsolePage]:
    """The pages. Who may decide, each call's rules say, and no role."""
    return [
        ConsolePage("GET", "/approvals", _listed, "none"),
        ConsolePage("GET", _ONE, _shown, "none"),
        ConsolePage("POST", _ONE, _decided, "none"),
    ]


async def _listed(visit: Visit) -> Outcome:
    window, settled = window_of(visit.query), visit.query.get("settled") == "true"
    found = await visit.ask("listApprovals", RouteQuestion(query={**window.asked, "settled": settled}))
    # What people have decided stands among the waiting ones until its call is settled.
    shown = window.shown(found["approvals"])
    shown["rows"] = [each for each in shown["rows"] if settled or each["state"] == "waiting"]
    return Shown("approvals", "Approvals", {**shown, "settled": settled})


async def _shown(visit: Visit) -> Outcome:
    return await _page(visit)


async def _decided(visit: Visit) -> Outcome:
    approval_id, form = visit.path["approval_id"], visit.form
    decision = form.get("decision", "")
    body: dict[str, Any] = {"decision": decision, "reason": form.get("reason", "").strip(), "seen": form.get("seen")}
    try:
        if decision == "approve" and form.get("edits") == "true":
            body["arguments"] = _object(form.get("arguments", ""))
        found = await visit.ask("decideApproval", RouteQuestion({"approval_id": approval_id}, body=body))
    except Problem as exc:
        if exc.status not in {400, 409, 422}:
            raise
        return await _page(
            visit, refusal=" ".join(filter(None, (str(exc), exc.hint))), typed=form.get("arguments"), status=exc.status
        )
    state = found["state"]
    text = f"{found['tool']}: {state}." if state != "waiting" else f"Noted. {found['missing']} more must approve."
    return Done(text, "/approvals")


async def _page(visit: Visit, *, refusal: str | None = None, typed: str | None = None, status: int = 200) -> Shown:
    found = await visit.ask("getApproval", RouteQuestion({"approval_id": visit.path["approval_id"]}))
    values = {"approval": found, "refusal": refusal, "typed": typed}
    return Shown("approval", f"Approval of {found['tool']}", values, status)


def _object(text: str) -> dict[str, Any]:
    try:
        value = loads_strict(text.encode("utf-8", "replace"))
    except ValueError as exc:
        raise invalid_request(f"The arguments are {exc}.") from None
    if not isinstance(value, dict):
        raise invalid_request("The arguments must be a JSON object.")
    return value
