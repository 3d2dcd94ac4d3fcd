"""Surrounds the publishing of a call with its PRODUCER span, whose place in the trace travels with the message."""

from collections.abc import Awaitable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.tracing import port
from toolfleet_registry.tracing.port import Drawn, Started, TraceContext, Tracing, carrying, context_of_span
from toolfleet_tasks.queues import queue_for

T = TypeVar("T")


async def sent(tracing: Tracing, call: PublishedCall, system: str, post: Awaitable[T], drawn: Drawn) -> T:
    """Publish within a span below the current one. `system`: the broker's kind. `drawn`: by `draw_root`."""
    started = _start(tracing, call, system, "send", drawn)
    if isinstance(started, TraceContext):
        with carrying(started):
            return await post
    with carrying(started.context):
        try:
            result = await post
            if isinstance(result, ToolResult) and not result.success:
                started.fail(result.error_code or port.OTHER_ERROR)
        except BaseException as exc:
            started.fail(type(exc).__name__)
            raise
        finally:
            started.end()
        return result


def going_on(tracing: Tracing | None, origin: TraceContext | None) -> AbstractContextManager[None]:
    """Have messages sent within belong to `origin` in a trace, if there is one, and not to the sender."""
    if origin is None:
        return nullcontext()
    return carrying(origin) if tracing is None else tracing.within(origin)


def created(tracing: Tracing, call: PublishedCall, system: str) -> TraceContext:
    """Return the place in the trace of a message that is made now, and sent later: in a span of its own below the current one."""
    started = _start(tracing, call, system, "create", tracing.draw_root())
    if not isinstance(started, TraceContext):
        started.end()
    return context_of_span(started)


def _start(tracing: Tracing, call: PublishedCall, system: str, operation: str, drawn: Drawn) -> Started:
    """Start the span of a message that is sent, or of one that is only made for later (`create`)."""
    if isinstance(drawn, TraceContext):
        return drawn
    queue = queue_for(call)
    started = tracing.start(
        f"{operation} {queue}",
        "producer",
        {
            port.MESSAGING_SYSTEM: system,
            port.MESSAGING_OPERATION_NAME: operation,
            port.MESSAGING_OPERATION_TYPE: operation,
            port.MESSAGING_DESTINATION: queue,
        },
        trace_id=drawn,
    )
    if not isinstance(started, TraceContext):
        started.note(message_attributes(call))
        started.note({port.GEN_AI_TOOL_NAME: call.tool_name})
    return started


def message_attributes(call: PublishedCall) -> dict[str, str | None]:
    """Return the attributes that the spans of sender and receiver share."""
    return {
        port.MESSAGING_TEMPLATE: "tools.{module}",
        port.MESSAGING_MESSAGE_ID: call.call_id,
        port.LANE: call.lane,
        port.JOB_ID: call.job_id,
        port.GEN_AI_AGENT_NAME: call.caller.agent,
    }


def system_of(broker: str | None) -> str:
    """The broker's kind, as the conventions name it."""
    return "rabbitmq" if (broker or "").startswith(("amqp", "pyamqp")) else "redis"
