"""Asks a gateway for dead letters, and has them replayed and dropped."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolfleet_cli.console.output import fail
from toolfleet_cli.remote.gateway import Gateway, place
from toolfleet_registry.contracts import ToolResult

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.entry import DeadEntry, DeadKind

_REPLAY_SECONDS = 60.0
_MORE_SECONDS = 15.0  # for the answer, beyond the call's own time


def listed(gateway: Gateway, kind: "DeadKind | None", limit: int, offset: int) -> "Sequence[DeadEntry]":
    """The letters, the latest first."""
    found = gateway.get("/operations/dead-letters", {"kind": kind, "limit": limit, "offset": offset})
    return [_entry(each) for each in found["letters"]]


def shown(gateway: Gateway, letter_id: str, kind: "DeadKind | None") -> "DeadEntry":
    """One letter; none, or several of other kinds, end the command."""
    found = gateway.get(place("operations", "dead-letters", letter_id), {"kind": kind})["letters"]
    if len(found) > 1:
        fail(f"{letter_id!r} is a call and a wake-up that was to make it: say --kind.", code=1)
    return _entry(found[0])


def replayed(
    gateway: Gateway, letter: "DeadEntry", arguments: dict[str, Any] | None, seconds: float | None
) -> ToolResult | None:
    """The result of a call; `None`: news are on their way again."""
    limit = _REPLAY_SECONDS if seconds is None else seconds
    body = {"timeout_seconds": limit} if arguments is None else {"timeout_seconds": limit, "arguments": arguments}
    path = place("operations", "dead-letters", letter.id, "replay")
    found = gateway.ask("POST", path, seconds=limit + _MORE_SECONDS, params={"kind": letter.kind}, json=body)
    return None if found.get("result") is None else ToolResult.model_validate(found["result"])


def dropped(gateway: Gateway, letter_ids: Sequence[str], kind: "DeadKind | None") -> list[str]:
    """Have letters forgotten. Returns those that are not there."""
    path = ("operations", "dead-letters")
    return [one for one in letter_ids if not gateway.forget(place(*path, one), {"kind": kind})]


def _entry(found: dict[str, Any]) -> "DeadEntry":
    from toolfleet_tasks.dead_letters.entry import DeadEntry  # noqa: PLC0415 - `--help` needs nothing of the tasks

    known: dict[str, Any] = {"body": None, **found}
    return DeadEntry(**known)
