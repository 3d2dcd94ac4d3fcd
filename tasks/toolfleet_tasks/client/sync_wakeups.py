"""The part of the synchronous fleet that hears of jobs' ends, and looks at news of them that wait or are dead."""

import contextlib
from collections.abc import AsyncGenerator, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from toolfleet_registry.contracts.jobs import WakeUp
from toolfleet_tasks.wakeups.dead_letters import KeptWake

if TYPE_CHECKING:
    from toolfleet_tasks.client.fleet import ToolFleet

T = TypeVar("T")


class SyncWakeMethods:
    """Methods of `SyncToolFleet`, which has the fleet and its loop."""

    _fleet: "ToolFleet"

    def completions(self, conversation_id: str, *, consumer: str | None = None) -> Generator[WakeUp]:
        """As `ToolFleet.completions`: `for wake in fleet.completions(id)`."""
        news = self._fleet.completions(conversation_id, consumer=consumer)
        try:
            while (wake := self._wait(_next(news))) is not None:
                yield wake
        finally:
            with contextlib.suppress(RuntimeError):  # the fleet was left
                self._wait(news.aclose())

    def waiting_wakes(self, limit: int = 50, offset: int = 0) -> list[KeptWake]:
        """As `ToolFleet.waiting_wakes`."""
        return self._wait(self._fleet.waiting_wakes(limit, offset))

    def dead_wakes(self, limit: int = 50, offset: int = 0) -> list[KeptWake]:
        """As `ToolFleet.dead_wakes`."""
        return self._wait(self._fleet.dead_wakes(limit, offset))

    def kept_wake(self, wake_id: str) -> KeptWake | None:
        """As `ToolFleet.kept_wake`."""
        return self._wait(self._fleet.kept_wake(wake_id))

    def replay_wake(self, wake_id: str) -> bool:
        """As `ToolFleet.replay_wake`."""
        return self._wait(self._fleet.replay_wake(wake_id))

    def drop_dead_wakes(self, *wake_ids: str) -> tuple[str, ...]:
        """As `ToolFleet.drop_dead_wakes`."""
        return self._wait(self._fleet.drop_dead_wakes(*wake_ids))

    def drop_all_dead_wakes(self) -> int:
        """As `ToolFleet.drop_all_dead_wakes`."""
        return self._wait(self._fleet.drop_all_dead_wakes())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError


async def _next(news: AsyncGenerator[WakeUp]) -> WakeUp | None:
    return await anext(news, None)
