"""Reads and changes the queues of the fleet whose Redis the settings name."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolfleet_cli.console.output import note, progress
from toolfleet_registry.settings import load_settings

if TYPE_CHECKING:
    from toolfleet_tasks.metrics.queue_overview import QueueOverview, QueueOverviews


@dataclass(frozen=True, slots=True)
class DirectQueues:
    """As `RemoteQueues`; `by` is who the audit says has done it, `None` for this machine's user."""

    by: str | None = None

    def listed(self) -> "list[QueueOverview]":
        """All queues, by name."""
        return asyncio.run(_read())

    def changed(self, name: str, action: str, reason: str) -> bool:
        """Do it to a queue. Returns whether it was otherwise before."""
        return asyncio.run(_change(name, action, reason, self.by))

    def waited(self, name: str, seconds: float) -> "list[QueueOverview]":
        """The queues of this name when nothing waits or runs there any more, or after so long."""
        return asyncio.run(_wait(name, seconds))


async def _read() -> "list[QueueOverview]":
    from toolfleet_tasks.metrics.queue_overview import QueueOverviews  # noqa: PLC0415 - `--help` needs nothing of the tasks

    async with progress("Asking Redis"), QueueOverviews.of(load_settings()) as overviews:
        return _with_error(overviews, await overviews.read())


def _with_error(overviews: "QueueOverviews", queues: "Sequence[QueueOverview]") -> "list[QueueOverview]":
    if overviews.broker_error is not None:
        note(overviews.broker_error, style="red")
    return [*queues]


async def _change(name: str, action: str, reason: str, by: str | None) -> bool:
    from toolfleet_tasks.operations.change_trail import Actor  # noqa: PLC0415 - as above
    from toolfleet_tasks.operations.queue_changes import QueueChanges  # noqa: PLC0415 - as above

    async with QueueChanges.of(load_settings(), by=Actor.at_command_line(by)) as changes:
        act = {"pause": changes.pause, "drain": changes.drain, "resume": changes.resume}[action]
        return (await act(name, reason)).is_new


async def _wait(name: str, seconds: float) -> "list[QueueOverview]":
    from toolfleet_tasks.metrics.queue_overview import QueueOverviews  # noqa: PLC0415 - as above

    async with progress("Waiting for what is left"), QueueOverviews.of(load_settings()) as overviews:
        return _with_error(overviews, await overviews.wait_until_empty(name, seconds=seconds))
