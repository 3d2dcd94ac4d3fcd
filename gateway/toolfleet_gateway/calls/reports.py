"""Joins what a call reports into one stream: how far it is, and what it logs if its caller wants that."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from toolfleet_registry.contracts.logs.log_message import LogMessage
from toolfleet_registry.contracts.progress import Progress
from toolfleet_tasks.aio.cancellation import end
from toolfleet_tasks.calls.begun_handle import BegunHandle

Report = Progress | LogMessage


async def reports_of(handle: BegunHandle) -> AsyncGenerator[Report]:
    """What the call says until it ends."""
    if handle.log_level is None:
        async with aclosing(handle.progress()) as steps:
            async for step in steps:
                yield step
        return
    send, receive = anyio.create_memory_object_stream[Report](0)
    sources = (handle.progress(), send.clone()), (handle.log(), send)
    tasks = [asyncio.create_task(_pass_on(*each), name="toolfleet-call-reports") for each in sources]
    async with receive:
        try:
            async for report in receive:
                yield report
        finally:
            await end(tasks)


async def _pass_on(
    source: AsyncGenerator[Progress] | AsyncGenerator[LogMessage], send: MemoryObjectSendStream[Report]
) -> None:
    async with send, aclosing(source) as reports:
        async for report in reports:
            await send.send(report)
