"""Handles all letters of a filter, which it replays or drops, some at a time: where it is stands in its own form, so that any gateway goes on with it.

Whoever closes the page stops it. A letter that two people handle at once is refused the second time.
"""

import asyncio
import math
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from toolfleet_gateway.console.bulk.letter_filter import LetterFilter
from toolfleet_gateway.console.inner.gateway_routes import RouteQuestion
from toolfleet_gateway.console.serving.form_body import FormFields
from toolfleet_gateway.console.visits.page import ConsolePage, Outcome, Shown, Visit
from toolfleet_gateway.http.problems import Problem, invalid_request
from toolfleet_registry.time import fleet_clock

_AT_ONCE = {"replay": 5, "drop": 50}  # letters of one step: it ends in seconds
_REPLAY_SECONDS = 20.0
_MOST = 1_000_000
_MOST_READ = 50_000  # letters of one step: those that have failed stay, and are passed by
_MOST_FAULTS = 5

Action = Literal["replay", "drop"]


@dataclass(frozen=True, slots=True)
class LetterProgress:
    """How far it is: the letters before `died_at` (seconds since the epoch) and `last_id` are left, the latest first."""

    action: Action
    died_at: float
    last_id: str = ""
    total: int = 0
    done: int = 0
    failed: int = 0
    is_over: bool = False

    @classmethod
    def of(cls, form: FormFields) -> Self:
        """What the form says. One that has just begun says nothing: what dies from now on is not meant. Raises `Problem`."""
        action = form.get("action")
        if action not in {"replay", "drop"}:
            raise invalid_request("Dead letters are replayed or dropped.")
        total, done, failed = (form.number(name, 0, most=_MOST) for name in ("total", "done", "failed"))
        died_at = _moment(form.get("died_at", "")) or fleet_clock.now()
        return cls("drop" if action == "drop" else "replay", died_at, form.get("last_id", ""), total, done, failed)

    def leaves(self, letter: Any) -> bool:
        """Whether a letter is still to be handled."""
        return _place(letter) < (self.died_at, self.last_id)


def letter_step_pages() -> list[ConsolePage]:
    """The one page. It comes before those of single letters."""
    return [ConsolePage("POST", "/dead-letters/bulk", _stepped, "operator")]


async def _stepped(visit: Visit) -> Outcome:
    wanted, progress = LetterFilter.of(visit.form), LetterProgress.of(visit.form)
    found, is_cut = await wanted.matching(visit, most_read=_MOST_READ)
    left = sorted(filter(progress.leaves, found), key=_place, reverse=True)
    chosen = left[: _AT_ONCE[progress.action]]
    outcomes = await asyncio.gather(*(_handled(visit, progress.action, each) for each in chosen))
    faults = [fault for fault in outcomes if fault is not None]
    died_at, last_id = _place(chosen[-1]) if chosen else (progress.died_at, progress.last_id)
    progress = replace(
        progress,
        died_at=died_at,
        last_id=last_id,
        total=max(progress.total, progress.done + progress.failed + len(left)),
        done=progress.done + len(chosen) - len(faults),
        failed=progress.failed + len(faults),
        is_over=len(left) == len(chosen) and (not is_cut or not chosen),
    )
    values = {"wanted": wanted, "progress": progress, "faults": faults[:_MOST_FAULTS]}
    return Shown("letter_steps", "Replay by filter" if progress.action == "replay" else "Drop by filter", values)


async def _handled(visit: Visit, action: Action, letter: Any) -> str | None:
    """Handle one, with its own line in the audit. What is the matter with it, if it was not."""
    path, query = {"letter_id": letter["id"]}, {"kind": letter["kind"]}
    try:
        if action == "drop":
            await visit.ask("dropDeadLetter", RouteQuestion(path, query))
            return None
        report = await visit.ask("replayDeadLetter", RouteQuestion(path, query, {"timeout_seconds": _REPLAY_SECONDS}))
    except Problem as exc:
        return f"{letter['id']}: {exc}"
    result = report.get("result")
    return None if result is None or result["success"] else f"{letter['id']}: {result['error']}"


def _place(letter: Any) -> tuple[float, str]:
    return letter["died_at"], letter["id"]


def _moment(text: str) -> float | None:
    try:
        at = float(text)
    except ValueError:
        return None
    return at if math.isfinite(at) and at > 0 else None
