"""Prints what the fleet keeps, for people: a dead letter, times, load errors of tool folders, and settings without their secrets."""

import json
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolfleet_cli.console.output import age, note, say, shown_url
from toolfleet_registry.contracts.calls import DeadAttempt, DeadLetter
from toolfleet_registry.contracts.tool_definition import NO_TOOLS, ToolLoadError
from toolfleet_registry.settings import Settings
from toolfleet_registry.system import fleet_clock

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.store import DeadEntry

_ONE_LINE = 200  # characters of an error in a list; `show` has the whole

_IN_EFFECT = {
    "previous": " Its version before is served.",
    "current": " The file is served.",
    "none": " None of its tools are served.",
}

SECRETS = frozenset(
    {
        "signing_key",
        "signing_keys_old",
        "core_secret",
        "gateway_key",
        "registry_webhooks",
        "registry_webhooks_secret",
        "module_headers",
        "approvals",
    }
)
"""Settings whose values are never shown: the path of a webhook may be a token. Other URLs are shown without passwords."""

_HIDDEN = "(hidden)"


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


def show_load_errors(errors: Sequence[ToolLoadError]) -> bool:
    """Show them, one a line, and for each file once what of it is served; returns whether any is more than a note."""
    by_file = defaultdict[str, list[ToolLoadError]](list)
    for error in errors:
        by_file[error.file].append(error)
    for found in by_file.values():
        state = _IN_EFFECT[found[-1].in_effect]
        if found[-1].in_effect == "current" and any(error.error_type == "DuplicateTool" for error in found):
            state = " Its other tools are served."
        for error in found:
            place = error.file if error.line is None else f"{error.file}:{error.line}"
            says_state = error is found[-1] and error.error_type != NO_TOOLS
            note(f"{place}: {error.error_type}: {error.message}{state if says_state else ''}")
    return not all(error.is_note for error in errors)


def shown_value(settings: Settings, name: str) -> Any:
    """A setting as JSON: secrets are `(hidden)`, and URLs have no passwords."""
    value: Any = settings.model_dump(mode="json", include={name})[name]
    if value == math.inf:
        return "inf"  # JSON has no such number
    if name in SECRETS:
        return _HIDDEN if value else value
    return _without_passwords(sorted(value) if isinstance(getattr(settings, name), frozenset) else value)


def _without_passwords(value: Any) -> Any:
    if isinstance(value, str):
        return shown_url(value)
    return {name: _without_passwords(one) for name, one in value.items()} if isinstance(value, dict) else value
