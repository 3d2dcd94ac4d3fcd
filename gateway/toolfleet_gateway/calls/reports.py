"""Joins what is said of a call into one stream: its approval, how far it is, and what it logs if its caller wants that."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from toolfleet_registry.contracts.logs.log_message import LogMessage
from toolfleet_registry.contracts.progress import Progress
from toolfleet_tasks.aio.cancellation import end
from toolfleet_tasks.approvals.shown import ShownApproval
from toolfleet_tasks.calls.begun_handle import BegunHandle

Report = ShownApproval | Progress | LogMessage
_Source = AsyncGenerator[ShownApproval] | AsyncGenerator[Progress] | AsyncGenerator[LogMessage]


async def reports_of(handle: BegunHandle, approvals: AsyncGenerator[ShownApproval]) -> AsyncGenerator[Report]:
    """What the call says until it ends, and what becomes of its approval."""
    send, receive = anyio.create_memory_object_stream[Report](0)
    sources: list[_Source] = [approvals, handle.progress()]
    if handle.log_level is not None:
        sources.append(handle.log())
    tasks = [asyncio.create_task(_pass_on(each, send.clone()), name="toolfleet-call-reports") for each in sources]
    send.close()
    async with receive:
        try:
            async for report in receive:
                yield report
        finally:
            await end(tasks)


async def _pass_on(source: _Source, send: MemoryObjectSendStream[Report]) -> None:
    async with send, aclosing(source) as reports:
        async for report in reports:
            await send.send(report)
