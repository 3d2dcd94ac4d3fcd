"""Asks a gateway for dead letters, and has them replayed and dropped."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from toolfleet_cli.console.arguments import read_arguments
from toolfleet_cli.console.output import fail
from toolfleet_cli.remote.gateway import Gateway, place
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.errors import NoSuchDeadLetter

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.entry import DeadEntry, DeadKind

_ALL = "/operations/dead-letters"
_REPLAY_SECONDS = 60.0
_MORE_SECONDS = 15.0  # for the answer, beyond the call's own time


@dataclass(frozen=True, slots=True)
class GatewayLetters:
    """The letters, as a gateway has them. What it refuses ends the command."""

    gateway: Gateway

    def listed(self, kind: "DeadKind | None", limit: int, offset: int) -> "Sequence[DeadEntry]":
        """The letters, the latest first."""
        found = self.gateway.get(_ALL, {"kind": kind, "limit": limit, "offset": offset})
        return [_entry(each) for each in found["letters"]]

    def shown(self, letter_id: str, kind: "DeadKind | None") -> "DeadEntry":
        """One letter; none, or several of other kinds, end the command."""
        found = self.gateway.get(_place(letter_id), {"kind": kind})["letters"]
        if len(found) > 1:
            fail(f"{letter_id!r} is a call and a wake-up that was to make it: say --kind.", code=1)
        return _entry(found[0])

    def replayed(
        self,
        letter_id: str,
        kind: "DeadKind | None",
        words: list[str],
        whole: str | None,
        seconds: float | None,
    ) -> ToolResult | None:
        """The result of a call; `None`: news are on their way again."""
        arguments = None if not words and whole is None else read_arguments(words, whole, None)
        if arguments is not None and not isinstance(arguments, dict):
            raise typer.BadParameter("--args must be a JSON object.")
        letter = self.shown(letter_id, kind)
        if letter.kind != "call" and arguments is not None:
            raise typer.BadParameter("only a call takes arguments.")
        limit = _REPLAY_SECONDS if seconds is None else seconds
        body = {"timeout_seconds": limit} if arguments is None else {"timeout_seconds": limit, "arguments": arguments}
        path, query = f"{_place(letter.id)}/replay", {"kind": letter.kind}
        found = self.gateway.ask("POST", path, seconds=limit + _MORE_SECONDS, params=query, json=body)
        return None if found.get("result") is None else ToolResult.model_validate(found["result"])

    def all_replayed(self, kind: "DeadKind") -> tuple[int, list[str]]:
        """Replay all, and return how many are tried again, and the problems of the others."""
        seconds = _REPLAY_SECONDS + _MORE_SECONDS
        found = self.gateway.ask("POST", f"{_ALL}/replay", seconds=seconds, params={"kind": kind})
        return found["due"], found["problems"]

    def dropped(self, letter_ids: Sequence[str], kind: "DeadKind | None") -> tuple[int, list[str]]:
        """Drop these, and return how many there were, and the problems of the others."""
        missing = [one for one in letter_ids if not self.gateway.forget(_place(one), {"kind": kind})]
        return len(letter_ids) - len(missing), [str(NoSuchDeadLetter(one)) for one in missing]

    def all_dropped(self, kind: "DeadKind | None") -> int:
        """Drop all, and return how many there were."""
        return int(self.gateway.delete(_ALL, {"kind": kind})["dropped"])


def _place(letter_id: str) -> str:
    return place("operations", "dead-letters", letter_id)


def _entry(found: dict[str, Any]) -> "DeadEntry":
    from toolfleet_tasks.dead_letters.entry import DeadEntry  # noqa: PLC0415 - `--help` needs nothing of the tasks

    return DeadEntry(**found)
