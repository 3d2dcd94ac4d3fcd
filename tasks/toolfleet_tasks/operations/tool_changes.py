"""Changes which tools are in effect, for an operator; each change has its line in the audit."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Self

from toolfleet_registry.catalog.operator import Difference, Operator, adopt_registry, operating
from toolfleet_registry.manifests.specs import ToolRegistration
from toolfleet_registry.settings import Settings
from toolfleet_tasks.operations.change_trail import Actor, ChangeTrail


class ToolChanges:
    """Operators' changes of tools. Raises as `operator` does, which shows the present state."""

    def __init__(self, operator: Operator, trail: ChangeTrail) -> None:
        self.operator = operator
        self._trail = trail

    @classmethod
    @asynccontextmanager
    async def of(cls, settings: Settings, by: Actor) -> AsyncGenerator[Self]:
        """Open the changes for the fleet of these settings. Raises `SettingsError` if they name none."""
        async with operating(settings) as operator, ChangeTrail.of(settings, by) as trail:
            yield cls(operator, trail)

    async def disable(self, tool_name: str) -> None:
        """Implements `Operator.disable`."""
        async with self._trail.change("tool_disabled", tool_name):
            await self.operator.disable(tool_name)

    async def enable(self, tool_name: str) -> None:
        """Implements `Operator.enable`."""
        async with self._trail.change("tool_enabled", tool_name):
            await self.operator.enable(tool_name)

    async def forget(self, tool_name: str) -> None:
        """Implements `Operator.forget`."""
        async with self._trail.change("tool_forgotten", tool_name):
            await self.operator.forget(tool_name)

    async def approve(self, tool_name: str, *, digest: str | None = None) -> Difference:
        """Implements `Operator.approve`."""
        async with self._trail.change("tool_approved", tool_name) as change:
            found = await self.operator.approve(tool_name, digest=digest)
            change.facts["digest"] = found.digest
            return found

    async def rollback(self, tool_name: str, version: str) -> ToolRegistration:
        """Implements `Operator.rollback`."""
        async with self._trail.change("tool_rolled_back", tool_name, version=version):
            return await self.operator.rollback(tool_name, version)

    async def pin(self, module: str) -> dict[str, str]:
        """Implements `Operator.pin`."""
        async with self._trail.change("module_pinned", module):
            return await self.operator.pin(module)

    async def unpin(self, module: str) -> None:
        """Implements `Operator.unpin`."""
        async with self._trail.change("module_unpinned", module):
            await self.operator.unpin(module)


async def adopt(settings: Settings, by: Actor) -> None:
    """Make the registry that the settings name the fleet's. Raises as `adopt_registry`."""
    async with ChangeTrail.of(settings, by) as trail, trail.change("registry_adopted", "-"):
        await adopt_registry(settings)
