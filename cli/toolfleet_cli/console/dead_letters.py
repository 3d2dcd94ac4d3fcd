"""Prints one dead letter, and times and texts as they stand in a list."""

import json
import time
from typing import TYPE_CHECKING

from toolfleet_cli.console.output import age, say
from toolfleet_registry.contracts.dead_letters import DeadAttempt, DeadLetter
from toolfleet_registry.time import fleet_clock

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.entry import DeadEntry

_ONE_LINE = 200  # characters of an error in a list; `show` has the whole


def print_letter(letter: "DeadEntry") -> None:
    """Print what was asked, by whom, and the known outcome."""
    if letter.body is None:
        say(f"{letter.id}\n\n{letter.error}")
    elif letter.kind == "call":
        _print_call(DeadLetter.model_validate(letter.body))
    else:
        say(f"{letter.subject}\n\n{letter.error}\n")
        _say_facts({letter.kind: letter.id, "attempts": str(letter.attempts), "died": _when(letter.died_at)})
        lost = "" if letter.replayable else "; sensitive arguments are not kept, so it can be dropped only"
        say(f"\nBody{lost}:\n{_indented(letter.body)}")


def ago(at: float) -> str:
    """Return how long ago that was."""
    return age(max(0.0, fleet_clock.now() - at))


def one_line(text: str) -> str:
    """The text, or its beginning."""
    line = " ".join(text.split())
    return line if len(line) <= _ONE_LINE else f"{line[:_ONE_LINE]}…"


def _print_call(letter: DeadLetter) -> None:
    say(f"{letter.tool_name}\n\n{letter.error_code}: {letter.reason}\n")
    _say_facts(
        {
            "call": letter.call_id,
            "user": letter.user_id,
            "permission": letter.caller.permission,
            "effect": letter.effect or "not declared",
            "published": _moment(letter.published_at),
            "died": _when(letter.died_at),
            "idempotency key": letter.idempotency_key,
            "replay of": letter.replay_of,
        }
    )
    for attempt in letter.attempts:
        say(f"attempt {attempt.attempt}: {attempt.outcome}{_took(attempt)}")
    lost = "; [redacted] and [not kept] must be given for a replay" if letter.is_redacted else ""
    say(f"\nArguments{lost}:\n{_indented(letter.arguments)}")
    if letter.context is not None:
        say(f"\nContext:\n{_indented(letter.context.model_dump(mode='json', exclude_defaults=True))}")


def _say_facts(facts: dict[str, str | None]) -> None:
    for name, value in facts.items():
        if value:
            say(f"{name}: {one_line(value)}")


def _indented(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _took(attempt: DeadAttempt) -> str:
    return "" if attempt.ms is None else f" after {attempt.ms:.0f} ms"


def _when(at: float) -> str:
    return f"{_moment(at)}, {ago(at)} ago"


def _moment(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):  # no time that a calendar has
        return f"{at:g}"
