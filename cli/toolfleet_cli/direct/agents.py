"""Asks the registry's store for agents' profiles, and changes them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from toolfleet_cli.console.output import fail, note
from toolfleet_registry.config.agents.agent_profile import AgentProfile
from toolfleet_registry.errors import OperationRefused
from toolfleet_registry.settings import load_settings

if TYPE_CHECKING:
    from toolfleet_registry.agents.stored.entries import ProfileVersion
    from toolfleet_tasks.operations.agent_changes import AgentChanges
    from toolfleet_tasks.operations.agent_overview import AgentOverview

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DirectAgents:
    """The profiles in the store, for the command line; `by` is the user's name in the audit.

    A refusal ends the command.
    """

    by: str | None = None

    def listed(self) -> "list[AgentOverview]":
        """All agents, by name."""
        from toolfleet_tasks.operations.agent_overview import agents_of

        return agents_of(load_settings())

    def shown(self, name: str) -> "AgentOverview":
        """One of them."""
        from toolfleet_tasks.operations.agent_overview import shown_agent

        return _unless_refused(lambda: asyncio.run(shown_agent(name, load_settings())))

    def versions(self, name: str) -> "list[ProfileVersion]":
        """Return the kept versions, the latest first."""
        from toolfleet_tasks.operations.agent_overview import versions_of

        return _unless_refused(lambda: versions_of(name, load_settings()).versions)

    def put(self, name: str, profile: AgentProfile) -> tuple[int, list[str]]:
        """Store a profile. Returns its version, and what of it cannot act."""
        from toolfleet_tasks.operations.agent_overview import profile_notes

        version = self._changed(lambda changes: changes.put(name, profile))
        return version, [note.text for note in asyncio.run(profile_notes(load_settings(), name))]

    def rollback(self, name: str, version: int) -> int:
        """Put an earlier version again. Returns the new one."""
        return self._changed(lambda changes: changes.rollback(name, version))

    def remove(self, name: str) -> None:
        """Let an agent have no stored profile."""
        self._changed(lambda changes: changes.remove(name))

    def _changed(self, work: "Callable[[AgentChanges], Awaitable[ProfileVersion]]") -> int:
        from toolfleet_tasks.operations.agent_changes import AgentChanges
        from toolfleet_tasks.operations.change_trail import Actor

        async def run() -> int:
            async with AgentChanges.of(load_settings(), Actor.at_command_line(self.by)) as changes:
                made = await work(changes)
                if changes.trail.missed:
                    note("The audit may have no line of this: there is no Redis that answers.", style="dim")
                return made.version

        return _unless_refused(lambda: asyncio.run(run()))


def _unless_refused(work: Callable[[], T]) -> T:
    try:
        return work()
    except OperationRefused as exc:
        fail(str(exc), code=1)
