"""Shows a conversation: its calls in their order, and the jobs, wake-ups and approvals that belong to it."""

import asyncio
from collections.abc import Iterable
from typing import Any

from toolfleet_gateway.console.gateway_routes import RouteQuestion
from toolfleet_gateway.console.page import ConsolePage, Outcome, Shown, Visit
from toolfleet_gateway.console.paging import PER_PAGE
from toolfleet_gateway.http.problems import invalid_request

_LONGEST_ID = 256  # characters
_MOST_USERS = 5  # whose jobs are read: a conversation has one, as a rule
_MOST_JOBS = 200  # of each user, the latest
_MOST_WAKEUPS = 200  # that are tried next
_MOST_APPROVALS = 100
_MOST_OUTCOMES = 200  # the latest


def conversation_pages() -> list[ConsolePage]:
    """The one page. The id stands in the query: it may have any sign."""
    return [ConsolePage("GET", "/conversation", _shown)]


async def _shown(visit: Visit) -> Outcome:
    conversation_id, user = visit.query.get("id", ""), visit.query.get("user", "")
    if not 0 < len(conversation_id) <= _LONGEST_ID or len(user) > _LONGEST_ID:
        raise invalid_request(f"Name a conversation by its `id`, of at most {_LONGEST_ID} characters.")
    cursor = visit.query.chosen("cursor")
    of_this = {"conversation": conversation_id}
    found = await visit.ask("listCalls", RouteQuestion(query={**of_this, **cursor, "limit": PER_PAGE}))
    lines = [each["line"] for each in reversed(found["calls"])]
    users = _users(lines, user)
    jobs, wakeups, waiting, settled = await asyncio.gather(
        _jobs(visit, conversation_id, users),
        _wakeups(visit, conversation_id),
        _approvals(visit, conversation_id, settled=False),
        _approvals(visit, conversation_id, settled=True),
    )
    values = {
        "id": conversation_id,
        "user": user,
        "users": users,
        "lines": lines,
        "found": found["found"],
        "next": found.get("next"),
        "is_whole": found["is_whole"],
        "is_first": not cursor,
        "jobs": jobs,
        "waking": _states(jobs, wakeups),
        "wakeups": wakeups,
        "outcomes": _outcomes(jobs),
        "approvals": [*waiting, *settled],
        "most_jobs": _MOST_JOBS,
        "most_wakeups": _MOST_WAKEUPS,
    }
    return Shown("conversation", "Conversation", values)


def _users(lines: Iterable[dict[str, Any]], named: str) -> list[str]:
    """Return its users: as named in the URL, and as its calls say."""
    users = [named, *(str(line["user_id"]) for line in lines if line.get("user_id"))]
    return list(dict.fromkeys(filter(None, users)))[:_MOST_USERS]


async def _jobs(visit: Visit, conversation_id: str, users: list[str]) -> list[dict[str, Any]]:
    """Return the latest jobs of its users, or of all users if these are unknown; in the order in which they were made.

    Each has the `outcomes` of its wake-ups, oldest first.
    """
    query: dict[str, Any] = {"ended": True, "limit": _MOST_JOBS, "wakeups": True}
    asked = [{**query, "user_id": user} for user in users] or [query]
    found = await asyncio.gather(*(visit.ask("listAllJobs", RouteQuestion(query=each)) for each in asked))
    jobs = [
        job | {"outcomes": each.get("wakeups", {}).get(job["job_id"], [])}
        for each in found
        for job in each["jobs"]
        if job.get("conversation_id") == conversation_id
    ]
    return sorted(jobs, key=lambda job: float(job["created_at"]))


async def _wakeups(visit: Visit, conversation_id: str) -> list[dict[str, Any]]:
    """Return the wake-ups that wait, and those that were never accepted: these have a `died_at`."""
    query = {"conversation_id": conversation_id, "limit": _MOST_WAKEUPS}
    dead = {"kind": "wakeup", "about": conversation_id, "limit": _MOST_WAKEUPS}
    waiting, given_up = await asyncio.gather(
        visit.ask("listWakeups", RouteQuestion(query=query)), visit.ask("listDeadLetters", RouteQuestion(query=dead))
    )
    own = [letter for letter in given_up["letters"] if letter["subject"] == conversation_id]
    letters = [
        {"wake_id": each["id"], "kind": "dead", "tries": each["attempts"], "error": each["error"], **each}
        for each in own
    ]
    return [*waiting["wakeups"], *letters]


async def _approvals(visit: Visit, conversation_id: str, *, settled: bool) -> list[dict[str, Any]]:
    query = {"conversation_id": conversation_id, "settled": settled, "limit": _MOST_APPROVALS}
    found = (await visit.ask("listApprovals", RouteQuestion(query=query)))["approvals"]
    return sorted(found, key=lambda each: float(each["requested_at"]))


def _states(jobs: Iterable[dict[str, Any]], wakeups: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return the state of a job's wake-up by the job's id: `waits`, `given up`, or its outcome; for an ended job without one, `none waits`."""
    states = {job["job_id"]: "none waits" for job in jobs if job.get("ended_at") and job["state"] != "cancelled"}
    states |= {job["job_id"]: job["outcomes"][-1]["end"].replace("_", " ") for job in jobs if job["outcomes"]}
    for wakeup in wakeups:
        job_id = (wakeup.get("body") or {}).get("job_id")
        if job_id is not None:
            states[str(job_id)] = "given up" if wakeup.get("died_at") else "waits"
    return states


def _outcomes(jobs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the outcomes of the wake-ups of these jobs, in the order in which they ended; each with its job's id."""
    found = [{**outcome, "job_id": job["job_id"]} for job in jobs for outcome in job["outcomes"]]
    return sorted(found, key=lambda each: float(each["at"]))[-_MOST_OUTCOMES:]
