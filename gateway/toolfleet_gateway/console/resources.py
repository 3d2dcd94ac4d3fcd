"""Shows agents, API keys, approvals, the audit, jobs, programs and queues, and has people with the rights change them."""

from typing import Any

from toolfleet_gateway.console.page import (
    PER_PAGE,
    ConsolePage,
    Done,
    Outcome,
    Shown,
    Visit,
    json_object,
    window_of,
)
from toolfleet_gateway.http.problems import Problem, invalid_request

_AUDIT_FILTER = ("tool", "user", "outcome")

_MOST_JOBS = 200  # those that are due next: to find others, filter by user or workflow

_QUEUE_SAYINGS = {
    "pause": "Paused: within a second nothing more of it is begun.",
    "drain": "Draining: it takes no new calls, and what waits is run.",
    "resume": "Resumed.",
}


def resource_pages() -> list[ConsolePage]:
    """Return the pages. Who may decide about a call its own rules say, and no role."""
    return [
        ConsolePage("GET", "/approvals", _list_approvals, "none"),
        ConsolePage("GET", "/approvals/{approval_id}", _approval_page, "none"),
        ConsolePage("POST", "/approvals/{approval_id}", _decide_approval, "none"),
        ConsolePage("GET", "/jobs", _list_jobs),
        ConsolePage("POST", "/jobs", _cancel_jobs, "operator"),
        ConsolePage("GET", "/jobs/{job_id}", _show_job),
        ConsolePage("POST", "/jobs/{job_id}", _cancel_job, "operator"),
        ConsolePage("GET", "/programs", _list_programs),
        ConsolePage("GET", "/programs/{program_id}", _show_program),
        ConsolePage("POST", "/programs/{program_id}", _cancel_program, "operator"),
        ConsolePage("GET", "/queues", _show_queues),
        ConsolePage("POST", "/queues", _change_queue, "operator"),
        ConsolePage("GET", "/agents", _list_agents),
        ConsolePage("GET", "/agents/{name}", _show_agent),
        ConsolePage("POST", "/agents/{name}", _change_agent, "admin"),
        ConsolePage("GET", "/audit", _list_audit),
        ConsolePage("GET", "/keys", _list_keys, "admin"),
        ConsolePage("POST", "/keys/{key_id}", _revoke_key, "admin"),
    ]


async def _list_agents(visit: Visit) -> Outcome:
    window = window_of(visit.query)
    return Shown("agents", "Agents", window.cut((await visit.ask("listAgents"))["agents"]))


async def _show_agent(visit: Visit) -> Outcome:
    name = visit.path["name"]
    agent = await visit.ask("getAgent", name)
    found = await visit.find("listAgentVersions", name)  # none: it is in the settings only
    return Shown("agent", f"Agent {name}", {"agent": agent, "versions": [] if found is None else found["versions"]})


async def _change_agent(visit: Visit) -> Outcome:
    """Make the change. The version that was seen is sent along: another operator's newer change is not overwritten."""
    name, form = visit.path["name"], visit.form
    headers = {"if-match": f'"{form.number("seen", 0, most=10**9)}"'}
    match form.get("action"):
        case "rollback":
            body: dict[str, Any] = {"version": form.number("version", 0, most=10**9)}
            made = await visit.ask("rollBackAgent", name, body=body, headers=headers)
            return Done(f"It is in force again, as version {made['version']}.", f"/agents/{name}")
        case "remove":
            await visit.ask("removeAgent", name, headers=headers)
            return Done(f"The registry has no profile of {name} any more.", "/agents")
        case _:
            raise invalid_request("A profile is rolled back or removed.")


async def _list_keys(visit: Visit) -> Outcome:
    window, user = window_of(visit.query), visit.query.get("user", "").strip()
    keys = (await visit.ask("listKeys"))["keys"]
    found = [each for each in keys if user.lower() in each["key"]["user_id"].lower()]
    return Shown("api_keys", "Keys", {**window.cut(found), "user": user, "own": visit.who.key_id})


async def _revoke_key(visit: Visit) -> Outcome:
    key_id = visit.path["key_id"]
    await visit.ask("revokeKey", key_id)
    return Done(f"The key {key_id} is revoked: within two seconds no gateway takes it.", "/keys")


async def _list_approvals(visit: Visit) -> Outcome:
    window, settled = window_of(visit.query), visit.query.get("settled") == "true"
    found = await visit.ask("listApprovals", query={**window.asked, "settled": settled})
    # What people have decided stands among the waiting ones until its call is settled.
    shown = window.shown(found["approvals"])
    shown["rows"] = [each for each in shown["rows"] if settled or each["state"] == "waiting"]
    return Shown("approvals", "Approvals", {**shown, "settled": settled})


async def _decide_approval(visit: Visit) -> Outcome:
    approval_id, form = visit.path["approval_id"], visit.form
    decision = form.get("decision", "")
    body: dict[str, Any] = {"decision": decision, "reason": form.get("reason", "").strip(), "seen": form.get("seen")}
    try:
        if decision == "approve" and form.get("edits") == "true":
            body["arguments"] = json_object(form.get("arguments", ""))
        found = await visit.ask("decideApproval", approval_id, body=body)
    except Problem as exc:
        if exc.status not in {400, 409, 422}:
            raise
        return await _approval_page(
            visit, refusal=" ".join(filter(None, (str(exc), exc.hint))), typed=form.get("arguments"), status=exc.status
        )
    state = found["state"]
    text = f"{found['tool']}: {state}." if state != "waiting" else f"Noted. {found['missing']} more must approve."
    return Done(text, "/approvals")


async def _approval_page(
    visit: Visit, *, refusal: str | None = None, typed: str | None = None, status: int = 200
) -> Shown:
    found = await visit.ask("getApproval", visit.path["approval_id"])
    values = {"approval": found, "refusal": refusal, "typed": typed}
    return Shown("approval", f"Approval of {found['tool']}", values, status)


async def _list_audit(visit: Visit) -> Outcome:
    wanted = visit.query.chosen(*_AUDIT_FILTER)
    changes = visit.query.get("changes") == "true"
    cursor = visit.query.chosen("cursor")
    found = await visit.ask("listAudit", query={**wanted, **cursor, "changes": changes, "limit": PER_PAGE})
    values = {
        "lines": found["lines"],
        "next": found.get("next"),
        "wanted": wanted,
        "changes": changes,
        "is_first": not cursor,
    }
    return Shown("audit", "Audit", values)


async def _list_jobs(visit: Visit) -> Outcome:
    wanted = visit.query.chosen("user_id", "workflow_id")
    ended = visit.query.get("ended") == "true"
    found = await visit.ask("listAllJobs", query={**wanted, "ended": ended, "limit": _MOST_JOBS})
    values = {"jobs": found["jobs"], "wanted": wanted, "ended": ended, "is_cut": found["count"] == _MOST_JOBS}
    return Shown("jobs", "Jobs", values)


async def _cancel_jobs(visit: Visit) -> Outcome:
    wanted = visit.form.chosen("user_id", "workflow_id")
    found = await visit.ask("cancelJobsOfUser", query=wanted)
    return Done(f"Ended {found['cancelled']} jobs.", "/jobs")


async def _show_job(visit: Visit) -> Outcome:
    job_id = visit.path["job_id"]
    job = await visit.ask("getAnyJob", job_id)
    wakeups = (await visit.ask("listWakeupsOfJob", job_id))["wakeups"]
    return Shown("job", "Job", {"job": job, "wakeups": wakeups[::-1]})


async def _cancel_job(visit: Visit) -> Outcome:
    job = await visit.ask("cancelAnyJob", visit.path["job_id"])
    return Done(f"The job is {job['state']}.", f"/jobs/{job['job_id']}")


async def _list_programs(visit: Visit) -> Outcome:
    wanted, ended = visit.query.chosen("user_id"), visit.query.get("ended") == "true"
    found = await visit.ask("listAllPrograms", query={**wanted, "ended": ended, "limit": _MOST_JOBS})
    is_cut = found["count"] == _MOST_JOBS
    return Shown(
        "programs",
        "Programs",
        {"programs": found["programs"], "wanted": wanted, "ended": ended, "is_cut": is_cut},
    )


async def _show_program(visit: Visit) -> Outcome:
    return Shown("program", "Program", {"program": await visit.ask("getAnyProgram", visit.path["program_id"])})


async def _cancel_program(visit: Visit) -> Outcome:
    program = await visit.ask("cancelAnyProgram", visit.path["program_id"])
    return Done("A worker ends the program in a moment.", f"/programs/{program['program_id']}")


async def _show_queues(visit: Visit) -> Outcome:
    status, found = await visit.ask("getFleetStatus"), await visit.ask("listQueues")
    order = sorted(found["queues"], key=lambda one: (one["state"] == "open", -one.get("waiting", 0), one["queue"]))
    return Shown(
        "queues",
        "Queues",
        {**window_of(visit.query).cut(order), "status": status, "broker_error": found.get("broker_error")},
    )


async def _change_queue(visit: Visit) -> Outcome:
    name, action, reason = (visit.form.get(field, "") for field in ("queue", "action", "reason"))
    if action not in _QUEUE_SAYINGS or not name:
        raise invalid_request("A queue is paused, drained or resumed.")
    made = await visit.ask("changeQueue", name, body={"action": action, "reason": reason})
    said = _QUEUE_SAYINGS[action] if made["changed"] else f"It is so already: {made['before']}."
    return Done(f"{name}: {said}", "/queues")
