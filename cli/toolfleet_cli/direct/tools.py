"""Asks the registry which tools are in effect, and changes that."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from toolfleet_cli.console.output import fail, progress
from toolfleet_cli.console.tool_states import PendingTool, Rollback, ToolVersion
from toolfleet_registry.errors import OperationRefused
from toolfleet_registry.manifests.digests import digest_of
from toolfleet_registry.manifests.specs import RegistryEvent, ToolRegistration
from toolfleet_registry.settings import load_settings

if TYPE_CHECKING:
    from toolfleet_registry.catalog.operator import Difference, Operator
    from toolfleet_tasks.operations.tool_changes import ToolChanges

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RegisteredTools:
    """The registry's tools, for the command line; `by` is the user's name in the audit. A refusal ends the command."""

    by: str | None = None

    def pending(self, module: str | None = None) -> list[PendingTool]:
        """Return the pending approvals, by tool name."""
        found = _asked(lambda operator: operator.differences(module))
        return [_pending(one) for one in found]

    def history(self) -> tuple[list[RegistryEvent], dict[str, int]]:
        """The last changes, the latest last, and how many were ever found, by kind."""
        from toolfleet_registry.store.port import EVENTS_KEPT

        async def ask(operator: "Operator") -> tuple[list[RegistryEvent], dict[str, int]]:
            return await operator.events(EVENTS_KEPT), await operator.counted()

        return _asked(ask)

    def closed(self) -> dict[str, str]:
        """Return the tools that no caller may use now, and why."""
        return _asked(lambda operator: operator.closed())

    def stale(self) -> dict[str, float]:
        """Return the modules whose manifest is too old, and its age in seconds."""
        return _asked(lambda operator: operator.stale())

    def versions(self, name: str) -> list[ToolVersion]:
        """A tool's last specifications, the latest first."""

        async def ask(operator: "Operator") -> list[ToolVersion]:
            found, in_force = await operator.versions(name), await operator.version_in_force(name)
            return [_version(one, in_force) for one in reversed(found)]

        return _asked(ask)

    def approve(self, name: str, digest: str | None) -> str:
        """Approve a tool's offer. Returns its digest."""
        return self._changed(lambda changes: changes.approve(name, digest=digest)).digest

    def pin(self, module: str) -> dict[str, str]:
        """Approve a module's tools as they are. Returns their digests by name."""
        return self._changed(lambda changes: changes.pin(module))

    def unpin(self, module: str) -> None:
        """Take in what a module offers without an approval."""
        self._changed(lambda changes: changes.unpin(module))

    def disable(self, name: str) -> None:
        """Disable a tool for all callers."""
        self._changed(lambda changes: changes.disable(name))

    def enable(self, name: str) -> None:
        """Take a disabling back."""
        self._changed(lambda changes: changes.enable(name))

    def forget(self, name: str) -> None:
        """Let the registry know nothing of a tool."""
        self._changed(lambda changes: changes.forget(name))

    def rollback(self, name: str, version: str) -> Rollback:
        """Put an earlier version in force."""
        from toolfleet_tasks.presence.fleet_versions import KEEPS_ROLLBACKS, older_workers

        since = self._changed(lambda changes: changes.rollback(name, version)).rolled_back_from
        from redis.exceptions import RedisError

        with contextlib.suppress(RedisError, OSError):  # the rollback is done
            if since:
                return Rollback(since, asyncio.run(older_workers(load_settings(), KEEPS_ROLLBACKS)))
        return Rollback(since)

    def _changed(self, work: "Callable[[ToolChanges], Awaitable[T]]") -> T:
        from toolfleet_tasks.operations.change_trail import Actor
        from toolfleet_tasks.operations.tool_changes import ToolChanges

        async def run() -> T:
            actor = Actor.at_command_line(self.by)
            async with progress("Asking the registry"), ToolChanges.of(load_settings(), actor) as changes:
                return await work(changes)

        return _unless_refused(run)


def adopt_registry() -> None:
    """Make the registry that is set up here the fleet's."""
    from toolfleet_tasks.operations.change_trail import Actor
    from toolfleet_tasks.operations.tool_changes import adopt

    async def run() -> None:
        async with progress("Asking the registry"):
            await adopt(load_settings(), Actor.at_command_line())

    asyncio.run(run())


def _asked(work: "Callable[[Operator], Awaitable[T]]") -> T:
    from toolfleet_registry.catalog.operator import operating

    async def run() -> T:
        async with progress("Asking the registry"), operating(load_settings()) as operator:
            return await work(operator)

    return _unless_refused(run)


def _unless_refused(run: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return asyncio.run(run())
    except OperationRefused as exc:
        fail(str(exc), code=1)


def _pending(one: "Difference") -> PendingTool:
    before = None if one.registered is None else one.registered.version
    return PendingTool(
        one.tool_name, one.kind, one.digest, one.offered.version, one.registered is None, before, one.fields()
    )


def _version(one: ToolRegistration, in_force: str | None) -> ToolVersion:
    return ToolVersion(
        version=one.spec.version,
        digest=digest_of(one.spec),
        created_at=one.created_at,
        enabled=one.enabled,
        is_in_force=one.spec.version == in_force,
        rolled_back_from=one.rolled_back_from,
        spec=one.spec.model_dump(mode="json"),
    )
