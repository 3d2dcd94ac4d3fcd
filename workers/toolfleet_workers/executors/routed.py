"""Routes a call by its module."""

from collections.abc import Mapping

from toolfleet_registry.contracts import PublishedCall
from toolfleet_registry.contracts.outcomes import Attempt, Health
from toolfleet_registry.time.lease import UNBOUNDED, Lease
from toolfleet_workers.runner import Executor


class RoutedExecutor:
    """Gives a call to the executor of its module, and to `others` where it has none of its own."""

    def __init__(self, by_module: Mapping[str, Executor], *, others: Executor) -> None:
        self._by_module = by_module
        self._others = others

    async def execute(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt:
        """One attempt, as the executor makes it."""
        return await self._of(call).execute(call, seconds=seconds, lease=lease)

    async def reconcile(self, call: PublishedCall, *, seconds: float, lease: Lease = UNBOUNDED) -> Attempt | None:
        """Return what the executor knows of a call that was started before."""
        return await self._of(call).reconcile(call, seconds=seconds, lease=lease)

    async def probe(self, module: str, *, seconds: float) -> Health:
        """Check whether the module is there, by its executor."""
        return await self._by_module.get(module, self._others).probe(module, seconds=seconds)

    async def aclose(self) -> None:
        """Close them all."""
        for executor in (*self._by_module.values(), self._others):
            await executor.aclose()

    def _of(self, call: PublishedCall) -> Executor:
        return self._by_module.get(call.tool_name.partition(".")[0], self._others)
