"""Asks Redis for dead letters, and has them replayed and dropped."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from toolfleet_cli.console.arguments import read_arguments
from toolfleet_cli.console.output import fail, progress
from toolfleet_registry.contracts import ToolResult
from toolfleet_registry.contracts.dead_letters import DeadLetter
from toolfleet_registry.contracts.tool_definition import tool_named
from toolfleet_registry.errors import NoSuchDeadLetter, NotReplayable
from toolfleet_registry.settings import load_settings

if TYPE_CHECKING:
    from toolfleet_tasks.dead_letters.entry import DeadEntry, DeadKind
    from toolfleet_tasks.operations.letter_changes import LetterChanges


@dataclass(frozen=True, slots=True)
class RedisLetters:
    """The letters in Redis, for one who types; `by` is their name in the audit."""

    by: str | None = None

    def listed(self, kind: "DeadKind | None", limit: int, offset: int) -> "Sequence[DeadEntry]":
        """The letters, the latest first."""

        async def ask() -> "Sequence[DeadEntry]":
            async with progress("Asking Redis"), self._changes() as changes:
                return await changes.dead.list(_kinds(kind), limit, offset)

        return asyncio.run(ask())

    def shown(self, letter_id: str, kind: "DeadKind | None") -> "DeadEntry":
        """One letter; none, or several of other kinds, end the command."""
        return asyncio.run(self._one(letter_id, kind))

    def replayed(
        self,
        letter_id: str,
        kind: "DeadKind | None",
        words: list[str],
        whole: str | None,
        seconds: float | None,
    ) -> ToolResult | None:
        """The result of a call; `None`: news are on their way again."""
        return asyncio.run(self._replay(letter_id, kind, words, whole, seconds))

    def all_replayed(self, kind: "DeadKind") -> tuple[int, list[str]]:
        """Replay all, and return how many are tried again, and the problems of the others."""

        async def ask() -> tuple[int, list[str]]:
            async with progress("Asking Redis"), self._changes() as changes:
                found = await changes.replay_all(kind)
                return found.due, list(found.problems)

        return asyncio.run(ask())

    def dropped(self, letter_ids: Sequence[str], kind: "DeadKind | None") -> tuple[int, list[str]]:
        """Drop these, and return how many there were, and the problems of the others."""

        async def ask() -> tuple[int, list[str]]:
            problems = list[str]()
            async with progress("Asking Redis"), self._changes() as changes:
                for one in letter_ids:
                    if kind is None and len(await changes.dead.find(one)) > 1:
                        problems.append(several(one))
                    elif not await changes.drop(one, _kinds(kind)):
                        problems.append(str(NoSuchDeadLetter(one)))
            return len(letter_ids) - len(problems), problems

        return asyncio.run(ask())

    def all_dropped(self, kind: "DeadKind | None") -> int:
        """Drop all, and return how many there were."""

        async def ask() -> int:
            async with progress("Asking Redis"), self._changes() as changes:
                return await changes.drop_all(_kinds(kind))

        return asyncio.run(ask())

    async def _one(self, letter_id: str, kind: "DeadKind | None") -> "DeadEntry":
        async with progress("Asking Redis"), self._changes() as changes:
            found = await changes.dead.find(letter_id, _kinds(kind))
        if len(found) != 1:
            fail(several(letter_id) if found else str(NoSuchDeadLetter(letter_id)), code=1)
        return found[0]

    async def _replay(
        self, letter_id: str, kind: "DeadKind | None", words: list[str], whole: str | None, seconds: float | None
    ) -> ToolResult | None:
        letter = await self._one(letter_id, kind)
        if letter.kind == "call":
            return await self._replay_call(letter_id, words, whole, seconds)
        if words or whole is not None:
            raise typer.BadParameter("only a call takes arguments.")
        try:
            async with progress("Asking Redis"), self._changes() as changes:
                await changes.replay_event(letter_id)
        except (NoSuchDeadLetter, NotReplayable) as exc:
            fail(str(exc), code=1)
        return None

    async def _replay_call(
        self, call_id: str, words: list[str], whole: str | None, seconds: float | None
    ) -> ToolResult:
        from toolfleet import ToolFleet  # noqa: PLC0415 - takes a second to load, which `--help` should not

        try:
            async with ToolFleet() as fleet, self._changes() as changes:
                letter = await fleet.dead_letters.show(call_id)
                tools = await fleet.tools(letter.caller) if isinstance(letter, DeadLetter) else []
                tool = tool_named(getattr(letter, "tool_name", ""), tools)
                arguments = read_arguments(words, whole, tool)
                if not isinstance(arguments, dict):
                    raise typer.BadParameter("--args must be a JSON object.")
                async with progress(f"{call_id} is running once more"):
                    return await changes.replay_call(
                        call_id, lambda: fleet.dead_letters.replay(call_id, arguments=arguments, timeout=seconds)
                    )
        except NoSuchDeadLetter as exc:
            fail(str(exc), code=1)

    def _changes(self) -> "AbstractAsyncContextManager[LetterChanges]":
        from toolfleet_tasks.operations.change_trail import Actor  # noqa: PLC0415 - takes a while to load
        from toolfleet_tasks.operations.letter_changes import LetterChanges  # noqa: PLC0415 - as above

        return LetterChanges.of(load_settings(), Actor.at_command_line(self.by))


def several(letter_id: str) -> str:
    """Return the message that an id is not enough."""
    return f"{letter_id!r} is a call and a wake-up that was to make it: say --kind."


def _kinds(kind: "DeadKind | None") -> "tuple[DeadKind, ...]":
    return ("call", "wakeup", "webhook") if kind is None else (kind,)
