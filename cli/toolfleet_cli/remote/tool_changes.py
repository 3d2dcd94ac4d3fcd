"""Asks a gateway which tools are in effect, and has that changed."""

import json
from dataclasses import dataclass
from typing import Any

from toolfleet_cli.console.tool_states import PendingTool, Rollback, ToolVersion
from toolfleet_cli.remote.gateway import Gateway, place
from toolfleet_registry.manifests.specs import RegistryEvent, ToolSpec

_ALL = "/operations/tools"
_MOST_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class GatewayTools:
    """A gateway's tools. A refusal ends the command."""

    gateway: Gateway

    def pending(self, module: str | None = None) -> list[PendingTool]:
        """Return the pending approvals, by tool name."""
        return [_pending(each) for each in self.gateway.get(_ALL, {"module": module})["pending"]]

    def history(self) -> tuple[list[RegistryEvent], dict[str, int]]:
        """The last changes, the latest last, and how many were ever found, by kind."""
        found = self.gateway.get(f"{_ALL}/events", {"limit": _MOST_EVENTS})
        return [RegistryEvent.model_validate_json(json.dumps(each)) for each in found["events"]], found["found"]

    def closed(self) -> dict[str, str]:
        """Return the tools that no caller may use now, and why."""
        closed: dict[str, str] = self.gateway.get(_ALL)["closed"]
        return closed

    def stale(self) -> dict[str, float]:
        """Return the modules whose manifest is too old, and its age in seconds."""
        stale: dict[str, float] = self.gateway.get(_ALL)["stale"]
        return stale

    def versions(self, name: str) -> list[ToolVersion]:
        """A tool's last specifications, the latest first."""
        return [_version(each) for each in self.gateway.get(_place(name, "versions"))["versions"]]

    def approve(self, name: str, digest: str | None) -> str:
        """Approve a tool's offer. Returns its digest."""
        return str(self.gateway.post(_place(name, "approve"), {"digest": digest})["digest"])

    def pin(self, module: str) -> dict[str, str]:
        """Approve a module's tools as they are. Returns their digests by name."""
        digests: dict[str, str] = self.gateway.post(place("operations", "modules", module, "pin"))["digests"]
        return digests

    def unpin(self, module: str) -> None:
        """Take in what a module offers without an approval."""
        self.gateway.post(place("operations", "modules", module, "unpin"))

    def disable(self, name: str) -> None:
        """Disable a tool for all callers."""
        self.gateway.post(_place(name, "disable"))

    def enable(self, name: str) -> None:
        """Take a disabling back."""
        self.gateway.post(_place(name, "enable"))

    def forget(self, name: str) -> None:
        """Let the registry know nothing of a tool."""
        self.gateway.post(_place(name, "forget"))

    def rollback(self, name: str, version: str) -> Rollback:
        """Put an earlier version in force."""
        found = self.gateway.post(_place(name, "rollback"), {"version": version})
        return Rollback(found.get("rolled_back_from"), tuple(found["undone_by"]))


def _place(name: str, verb: str) -> str:
    return place("operations", "tools", name, verb)


def _pending(found: dict[str, Any]) -> PendingTool:
    return PendingTool(
        tool_name=found["tool_name"],
        kind=found["kind"],
        digest=found["digest"],
        version=found.get("version"),
        is_new=found["is_new"],
        registered_version=found.get("registered_version"),
        fields={name: (before, after) for name, (before, after) in found["fields"].items()},
    )


def _version(found: dict[str, Any]) -> ToolVersion:
    return ToolVersion(
        version=found.get("version"),
        digest=found["digest"],
        created_at=found.get("created_at"),
        enabled=found["enabled"],
        is_in_force=found["is_in_force"],
        rolled_back_from=found.get("rolled_back_from"),
        spec=ToolSpec.model_validate_json(json.dumps(found["spec"])).model_dump(mode="json"),
    )
