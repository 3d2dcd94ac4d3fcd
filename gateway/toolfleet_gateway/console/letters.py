"""Shows dead letters and waiting wake-ups by a filter; has one of them, or step by step all of a filter, replayed or dropped.

Closing the page stops what is done step by step. A letter that two people handle at once is refused the second time,
and a wake-up is handled by one of them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self

from toolfleet_gateway.console.page import (
    PER_PAGE,
    ConsolePage,
    Done,
    FormFields,
    Outcome,
    Shown,
    Visit,
    json_object,
    window_of,
)
from toolfleet_gateway.http.problems import Problem, invalid_request, not_found
from toolfleet_registry.system import fleet_clock
from toolfleet_tasks.dead_letters.kept_wakes import MOST_WAITING_SEARCHED, WAITING_KINDS
from toolfleet_tasks.dead_letters.store import KINDS, MOST_SEARCHED, mark_before

_COUNTED_AT_ONCE = 200  # rows that are counted: each may have a megabyte of arguments
_MOST_PAGES = 500  # of one count
_LONGEST_WORDS = 200
_LONGEST_CURSOR = 2_048

_BulkAction = Literal["replay", "drop"]
"""The action on each entry."""

_MOST = 1_000_000
_MOST_FAULTS = 5
_COUNTS = ("done", "passed", "under_way", "failed")

_REPLAY_SECONDS = 60.0

_LETTERS_AT_ONCE = {"replay": 5, "drop": 50}  # letters of one step: it ends in seconds
_STEP_REPLAY_SECONDS = 20.0
_MOST_SEARCHES = 10  # of one step, which looks at some thousand letters each time

_WAKEUPS_AT_ONCE = 200  # wake-ups of one step, which has one line in the audit: it ends within a second
_ROUTES = {"replay": "replayWakeups", "drop": "dropWakeups"}


def letter_pages() -> list[ConsolePage]:
    """Return the pages, those of all of a filter first. Wake-ups that were never accepted are dead letters."""
    return [
        ConsolePage("POST", "/dead-letters/bulk", _step_letters, "operator"),
        ConsolePage("GET", "/dead-letters", _list_letters),
        ConsolePage("GET", "/dead-letters/{kind}/{letter_id}", _letter_page),
        ConsolePage("POST", "/dead-letters/{kind}/{letter_id}", _change_letter, "operator"),
        ConsolePage("POST", "/wake-ups/bulk", _step_wakeups, "operator"),
        ConsolePage("GET", "/wake-ups", _list_wakeups),
        ConsolePage("GET", "/wake-ups/{wake_id}", _show_wakeup),
        ConsolePage("POST", "/wake-ups/{wake_id}", _change_wakeup, "operator"),
    ]


@dataclass(frozen=True, slots=True)
class _FilteredList:
    """A list that takes filters: the route that answers it, and what its rows are called there."""

    route: str
    rows: str
    path: str
    """The path of its page, below the console's."""
    kinds: tuple[str, ...]
    age: str
    """The unit in which an age is typed."""
    age_seconds: int
    """The length of this unit in seconds."""
    oldest: int
    """The highest age."""
    searched: int
    """The number of rows that one question reads."""


_LETTERS: Final = _FilteredList(
    "listDeadLetters", "letters", "/dead-letters", KINDS, "days", 86_400, 10_000, MOST_SEARCHED
)
_WAKEUPS: Final = _FilteredList(
    "listWakeups", "wakeups", "/wake-ups", WAITING_KINDS, "minutes", 60, 1_000_000, MOST_WAITING_SEARCHED
)


@dataclass(frozen=True, slots=True)
class _ListFilter:
    """A filter of a list's rows: of a `kind`, about `about`, which failed with `error`, and of that `age` at least."""

    chosen_of: _FilteredList
    kind: str = ""
    about: str = ""
    error: str = ""
    age: int = 0

    @classmethod
    def of(cls, chosen_of: _FilteredList, fields: FormFields) -> Self:
        """Parse a URL's query or a form."""
        kind = fields.get("kind", "")
        about, error = (fields.get(name, "").strip()[:_LONGEST_WORDS] for name in ("about", "error"))
        age = fields.number(chosen_of.age, 0, most=chosen_of.oldest)
        return cls(chosen_of, kind if kind in chosen_of.kinds else "", about, error, age)

    @property
    def fields(self) -> dict[str, str]:
        """The fields of a URL or a form."""
        age = str(self.age) if self.age else ""
        return {"kind": self.kind, "about": self.about, "error": self.error, self.chosen_of.age: age}

    def query(self, limit: int, cursor: str | None) -> dict[str, Any]:
        """Return the query of a route for at most `limit` rows behind a cursor."""
        seconds = self.age * self.chosen_of.age_seconds
        asked = {"limit": limit, "about": self.about, "error": self.error, "min_age_seconds": seconds}
        return asked | ({"kind": self.kind} if self.kind else {}) | ({"cursor": cursor} if cursor else {})

    async def matching(self, visit: Visit, *, limit: int, cursor: str | None = None) -> tuple[list[Any], str | None]:
        """Return at most `limit` rows, in the order of the list; and the cursor behind which there may be more.

        With fewer rows than `limit`, and a cursor, not all were searched.
        """
        found = await visit.ask(self.chosen_of.route, query=self.query(limit, cursor))
        return found[self.chosen_of.rows], found.get("next")

    async def count(self, visit: Visit, cursor: str | None) -> int:
        """Return how many there are behind a cursor; of very many, how many were seen."""
        count, behind = 0, cursor
        for _ in range(_MOST_PAGES):
            rows, behind = await self.matching(visit, limit=_COUNTED_AT_ONCE, cursor=behind)
            count += len(rows)
            if behind is None:
                break
        return count

    @classmethod
    async def page(cls, chosen_of: _FilteredList, visit: Visit) -> dict[str, Any]:
        """Return the template's values of the page that a URL asks for."""
        limit, wanted = window_of(visit.query).limit, cls.of(chosen_of, visit.query)
        cursor = _cursor_in(visit.query) or None
        rows, following = await wanted.matching(visit, limit=limit, cursor=cursor)
        return {
            "rows": rows,
            "wanted": wanted,
            "kinds": chosen_of.kinds,
            "limit": limit if limit != PER_PAGE else None,
            "next": following,
            "is_first": cursor is None,
            "is_cut": following is not None and len(rows) < limit,
            "searched": chosen_of.searched,
            "count": len(rows) if following is None and cursor is None else None,
        }


def _cursor_in(fields: FormFields) -> str:
    """Return the start of a page or a step; empty at the first one."""
    return fields.get("cursor", "")[:_LONGEST_CURSOR]


@dataclass(frozen=True, slots=True)
class _BulkProgress:
    """The progress of a bulk action.

    The rows behind `cursor` are left. Those that have `failed` stay. `passed` are those that another operator has
    handled, or that need nothing.

    `total` is their number at the start; below 0: not counted. `under_way`: the number of dropped ones that were being
    tried just then.
    """

    action: _BulkAction
    cursor: str
    total: int = -1
    done: int = 0
    passed: int = 0
    under_way: int = 0
    failed: int = 0
    is_over: bool = False

    @classmethod
    def of(cls, form: FormFields) -> Self:
        """Parse the form; a new one has no cursor, and no total. Raises `Problem`."""
        action = form.get("action")
        if action not in {"replay", "drop"}:
            raise invalid_request("All of a filter are replayed or dropped.")
        cursor = _cursor_in(form)
        total = form.number("total", -1, most=_MOST) if cursor else -1
        counts = {name: form.number(name, 0, most=_MOST) for name in _COUNTS}
        return cls("drop" if action == "drop" else "replay", cursor, total, is_over=False, **counts)

    @property
    def handled(self) -> int:
        """The number of handled rows."""
        return self.done + self.passed + self.failed

    @property
    def fields(self) -> dict[str, str | int]:
        """The fields of the next step's form."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        return {"action": self.action, "cursor": self.cursor, "total": self.total, **counts}

    async def counted(self, visit: Visit, wanted: _ListFilter) -> "_BulkProgress":
        """Return it with the total, which the first step counts."""
        return self if self.total >= 0 else replace(self, total=await wanted.count(visit, self.cursor or None))

    def advanced(self, following: str | None, **counts: int) -> "_BulkProgress":
        """Return it after a step with these counts; `following` is the cursor of the next one, if anything is left."""
        added = {name: getattr(self, name) + count for name, count in counts.items()}
        ahead = replace(self, cursor=following or self.cursor, is_over=following is None, **added)
        return replace(ahead, total=ahead.handled if ahead.is_over else max(ahead.total, ahead.handled))

    def shown(self, wanted: _ListFilter, faults: Sequence[str]) -> Shown:
        """Return its page, with some of the last step's faults."""
        values = {"wanted": wanted, "progress": self, "faults": faults[:_MOST_FAULTS]}
        return Shown("bulk_steps", "Replay by filter" if self.action == "replay" else "Drop by filter", values)


async def _list_letters(visit: Visit) -> Outcome:
    return Shown("dead_letters", "Dead letters", await _ListFilter.page(_LETTERS, visit))


async def _change_letter(visit: Visit) -> Outcome:
    kind, letter_id = visit.path["kind"], visit.path["letter_id"]
    if visit.form.get("action") == "drop":
        await visit.ask("dropDeadLetter", letter_id, query={"kind": kind})
        return Done(f"Dropped the {kind} {letter_id}.", "/dead-letters")
    if visit.form.get("action") != "replay":
        raise invalid_request("A dead letter is replayed or dropped.")
    try:
        body = {"timeout_seconds": _REPLAY_SECONDS, **_other_arguments(visit)}
        report = await visit.ask("replayDeadLetter", letter_id, query={"kind": kind}, body=body)
    except Problem as exc:
        if exc.status not in {400, 409}:
            raise
        return await _letter_page(visit, refusal=str(exc), status=exc.status)
    result = report.get("result")
    if result is None:
        return Done("It is on its way again.", "/dead-letters")
    if result["success"]:
        return Done(f"{result['tool_name']} was run once more, and has succeeded.", "/dead-letters")
    return Done(f"{result['tool_name']} was run once more: {result['error']}", "/dead-letters", "bad")


async def _letter_page(visit: Visit, *, refusal: str | None = None, status: int = 200) -> Shown:
    kind, letter_id = visit.path["kind"], visit.path["letter_id"]
    found = await visit.ask("getDeadLetter", letter_id, query={"kind": kind})
    letters = [letter for letter in found["letters"] if letter["kind"] == kind]
    if not letters:
        raise not_found("There is no such dead letter, or not any more.")
    values = {"letter": letters[0], "refusal": refusal, "typed": visit.form.get("arguments")}
    return Shown("dead_letter", f"Dead {kind}", values, status)


def _other_arguments(visit: Visit) -> dict[str, Any]:
    """Return the edited arguments, or an empty dictionary if the form was not changed."""
    text = visit.form.get("arguments", "").strip()
    return {"arguments": json_object(text)} if text else {}


async def _step_letters(visit: Visit) -> Outcome:
    wanted, progress = _ListFilter.of(_LETTERS, visit.form), _BulkProgress.of(visit.form)
    if not progress.cursor:  # what dies from now on is not meant
        progress = replace(progress, cursor=mark_before(fleet_clock.now()))
    progress = await progress.counted(visit, wanted)
    chosen, following = await _chosen_letters(visit, wanted, progress)
    outcomes = await asyncio.gather(*(_handle_letter(visit, progress.action, each) for each in chosen))
    faults = [fault for fault in outcomes if fault is not None]
    progress = progress.advanced(following, done=len(chosen) - len(faults), failed=len(faults))
    return progress.shown(wanted, faults)


async def _chosen_letters(visit: Visit, wanted: _ListFilter, progress: _BulkProgress) -> tuple[list[Any], str | None]:
    """Return the letters of this step, and the cursor of the next step, or `None` if nothing is left."""
    chosen, most = list[Any](), _LETTERS_AT_ONCE[progress.action]
    cursor: str | None = progress.cursor
    for _ in range(_MOST_SEARCHES):
        letters, cursor = await wanted.matching(visit, limit=most - len(chosen), cursor=cursor)
        chosen += letters
        if cursor is None or len(chosen) == most:
            break
    return chosen, cursor


async def _handle_letter(visit: Visit, action: _BulkAction, letter: Any) -> str | None:
    """Handle one letter, with its own line in the audit. Return why it was not handled, or `None`."""
    letter_id, query = str(letter["id"]), {"kind": letter["kind"]}
    try:
        if action == "drop":
            await visit.ask("dropDeadLetter", letter_id, query=query)
            return None
        report = await visit.ask(
            "replayDeadLetter", letter_id, query=query, body={"timeout_seconds": _STEP_REPLAY_SECONDS}
        )
    except Problem as exc:
        return f"{letter['id']}: {exc}"
    result = report.get("result")
    return None if result is None or result["success"] else f"{letter['id']}: {result['error']}"


async def _list_wakeups(visit: Visit) -> Outcome:
    return Shown("wakeups", "Wake-ups", await _ListFilter.page(_WAKEUPS, visit))


async def _show_wakeup(visit: Visit) -> Outcome:
    wakeup = await visit.ask("getWakeup", visit.path["wake_id"])
    return Shown("wakeup", "Wake-up", {"wakeup": wakeup})


async def _change_wakeup(visit: Visit) -> Outcome:
    wake_id, action = visit.path["wake_id"], visit.form.get("action")
    if action == "drop":
        dropped = await visit.ask("dropWakeup", wake_id)
        under_way = " It is tried just now, and may still be accepted." if dropped["under_way"] else ""
        return Done(f"Dropped {wake_id}.{under_way}", "/wake-ups")
    if action != "replay":
        raise invalid_request("A wake-up is replayed or dropped.")
    await visit.ask("replayWakeup", wake_id)
    return Done("It is tried now.", "/wake-ups")


async def _step_wakeups(visit: Visit) -> Outcome:
    wanted = _ListFilter.of(_WAKEUPS, visit.form)
    progress = await _BulkProgress.of(visit.form).counted(visit, wanted)
    query = wanted.query(_WAKEUPS_AT_ONCE, progress.cursor)
    step = await visit.ask(_ROUTES[progress.action], query=query)
    faults = step["problems"]
    counts = {name: step[name] for name in ("done", "passed", "under_way")}
    progress = progress.advanced(step.get("next"), **counts, failed=len(faults))
    return progress.shown(wanted, faults)
