"""Asks a gateway for agents' profiles, and has them changed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolfleet_cli.remote.gateway import Gateway, place
from toolfleet_registry.config.agents.agent_profile import AgentProfile

if TYPE_CHECKING:
    from toolfleet_registry.agents.stored.entries import ProfileVersion
    from toolfleet_tasks.operations.agent_overview import AgentOverview

_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RemoteAgents:
    """The profiles, as a gateway has them: with what its own settings say. What it refuses ends the command."""

    gateway: Gateway

    def listed(self) -> "list[AgentOverview]":
        """All agents, by name."""
        from toolfleet_tasks.operations.agent_overview import AgentList

        return AgentList.model_validate(self.gateway.get("/operations/agents")).agents

    def shown(self, name: str) -> "AgentOverview":
        """One of them."""
        from toolfleet_tasks.operations.agent_overview import AgentOverview

        return AgentOverview.model_validate(self.gateway.get(place("operations", "agents", name)))

    def versions(self, name: str) -> "list[ProfileVersion]":
        """Return the kept versions, the latest first."""
        from toolfleet_tasks.operations.agent_overview import AgentVersions

        found = self.gateway.get(place("operations", "agents", name, "versions"))
        return AgentVersions.model_validate(found).versions

    def put(self, name: str, profile: AgentProfile) -> tuple[int, list[str]]:
        """Store a profile. Returns its version, and what of it cannot act."""
        body = profile.model_dump(mode="json", exclude_defaults=True)
        found = self.gateway.ask("PUT", place("operations", "agents", name), seconds=_SECONDS, json=body)
        return int(found["version"]), list(found.get("notes") or ())

    def rollback(self, name: str, version: int) -> int:
        """Put an earlier version again. Returns the new one."""
        found = self.gateway.post(place("operations", "agents", name, "rollback"), {"version": version})
        return int(found["version"])

    def remove(self, name: str) -> None:
        """Let an agent have no stored profile."""
        self.gateway.delete(place("operations", "agents", name))
