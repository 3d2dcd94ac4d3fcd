"""Shows ended calls, the times of one call's events, and conversations with their calls, jobs, wake-ups and approvals."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from toolfleet_gateway.console.page import PER_PAGE, ConsolePage, FormFields, Outcome, Shown, Visit
from toolfleet_gateway.http.problems import invalid_request
from toolfleet_registry.system import fleet_clock

_LEAST = 0.3  # per cent: what took a microsecond can be seen
_WORDS: Final[dict[str, str]] = {
    "queued": "Queued",
    "claimed": "Claimed",
    "attempt": "Attempt",
    "module": "Its module had it",
    "lost": "Attempt, its worker was lost",
    "retry": "Waited for its retry",
    "reclaim": "Waited until another worker might have it",
    "accepted": "Its module went on with it",
    "input": "Waited for an answer",
    "approval": "Waited for an approval",
    "stored": "Result stored and announced",
}

_NAMES: Final = ("module", "tool", "user", "outcome", "error")
_CONVERSATION: Final = "conversation"
_MOMENTS: Final = ("since", "until")
_COMPLETED = 50  # values that a field proposes

_LONGEST_ID = 256  # characters
_MOST_USERS = 5  # whose jobs are read: a conversation has one, as a rule
_MOST_JOBS = 200  # of each user, the latest
_MOST_WAKEUPS = 200  # that are tried next
_MOST_APPROVALS = 100
_MOST_OUTCOMES = 200  # the latest


def call_pages() -> list[ConsolePage]:
    """Return the pages. The id of a conversation stands in the query: it may have any sign."""
    return [
        ConsolePage("GET", "/calls", _list_calls),
        ConsolePage("GET", "/calls/{call_id}", _show_call),
        ConsolePage("GET", "/conversation", _show_conversation),
    ]


async def _list_calls(visit: Visit) -> Outcome:
    wanted = visit.query.chosen(*_NAMES, _CONVERSATION, *_MOMENTS)
    cursor = visit.query.chosen("cursor")
    chosen = {**visit.query.chosen(*_NAMES, _CONVERSATION), **_milliseconds(visit.query)}
    found = await visit.ask("listCalls", query={**chosen, **cursor, "limit": PER_PAGE})
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


async def _show_call(visit: Visit) -> Outcome:
    call_id = visit.path["call_id"]
    story = await visit.ask("showCall", call_id)
    line = story["lines"][-1] if story["lines"] else {}
    answer, approval, letters, places = await asyncio.gather(
        visit.find("getCall", call_id),
        visit.find("getApproval", call_id),
        visit.find("getDeadLetter", call_id),
        visit.ask("listPlacedModules"),
    )
    module = str(line.get("tool", "")).partition(".")[0]
    values = {
        "story": story,
        "line": line,
        "bars": _bars_of(story["spans"], now=fleet_clock.now() * 1000),
        "place": next((each for each in places["modules"] if each["module"] == module), {}),
        "answer": answer,
        "approval": approval,
        "letters": [] if letters is None else [each for each in letters["letters"] if each["kind"] == "call"],
    }
    return Shown("call", "Call", values)


async def _proposals(visit: Visit, name: str) -> list[str]:
    values = (await visit.ask("completeCallField", query={"field": name, "limit": _COMPLETED}))["values"]
    return [each["value"] for each in values]


def _milliseconds(query: FormFields) -> dict[str, int]:
    """Return the moments of the filter, in UTC as browsers write them. Raises `Problem`."""
    moments = dict[str, int]()
    for name, text in query.chosen(*_MOMENTS).items():
        try:
            at = datetime.fromisoformat(text)
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
            moments[name] = max(round(at.timestamp() * 1000), 0)
        except (ValueError, OverflowError):
            raise invalid_request("A moment is written as 2026-01-31T12:00, in UTC.") from None
    return moments


async def _show_conversation(visit: Visit) -> Outcome:
    conversation_id, user = visit.query.get("id", ""), visit.query.get("user", "")
    if not 0 < len(conversation_id) <= _LONGEST_ID or len(user) > _LONGEST_ID:
        raise invalid_request(f"Name a conversation by its `id`, of at most {_LONGEST_ID} characters.")
    cursor = visit.query.chosen("cursor")
    of_this = {"conversation": conversation_id}
    found = await visit.ask("listCalls", query={**of_this, **cursor, "limit": PER_PAGE})
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
    found = await asyncio.gather(*(visit.ask("listAllJobs", query=each) for each in asked))
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
        visit.ask("listWakeups", query=query), visit.ask("listDeadLetters", query=dead)
    )
    own = [letter for letter in given_up["letters"] if letter["subject"] == conversation_id]
    letters = [
        {"wake_id": each["id"], "kind": "dead", "tries": each["attempts"], "error": each["error"], **each}
        for each in own
    ]
    return [*waiting["wakeups"], *letters]


async def _approvals(visit: Visit, conversation_id: str, *, settled: bool) -> list[dict[str, Any]]:
    query = {"conversation_id": conversation_id, "settled": settled, "limit": _MOST_APPROVALS}
    found = (await visit.ask("listApprovals", query=query))["approvals"]
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


@dataclass(frozen=True, slots=True)
class _TimeBar:
    """A part of a call's time. `at` is in seconds since the epoch, `since` and `ms` in ms: from the call's beginning, and how long; `left` and `width` in per cent."""

    phase: str
    words: str
    at: float
    since: float
    ms: float
    left: float
    width: float
    goes_on: bool = False
    worker: str | None = None
    replica: str | None = None
    outcome: str | None = None


def _bars_of(spans: Sequence[dict[str, Any]], *, now: float) -> list[_TimeBar]:
    """Return the bars of a story's spans, in their order. Spans without an end last until `now` (ms)."""
    if not spans:
        return []
    ends = [float(span["ends"]) if span.get("ends") is not None else max(now, float(span["begins"])) for span in spans]
    first = min(float(span["begins"]) for span in spans)
    whole = max(max(ends) - first, 0.001)
    return [_bar(span, end, first, whole) for span, end in zip(spans, ends, strict=True)]


def _bar(span: dict[str, Any], ends: float, first: float, whole: float) -> _TimeBar:
    begins = float(span["begins"])
    width = min(max((ends - begins) / whole * 100, _LEAST), 100.0)
    return _TimeBar(
        phase=span["phase"],
        words=_worded(span),
        at=begins / 1000,
        since=begins - first,
        ms=ends - begins,
        left=round(min((begins - first) / whole * 100, 100.0 - width), 3),
        width=round(width, 3),
        goes_on=span.get("ends") is None,
        worker=span.get("worker"),
        replica=span.get("replica"),
        outcome=span.get("outcome"),
    )


def _worded(span: dict[str, Any]) -> str:
    phase, number = str(span["phase"]), span.get("attempt")
    words = _WORDS.get(phase, phase)
    if phase in {"attempt", "lost"} and number is not None:
        return words.replace("Attempt", f"Attempt {number}", 1)
    return words
