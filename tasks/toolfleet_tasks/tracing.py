"""Starts the spans of calls' messages and of jobs, and tells how each process is traced."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from toolfleet_registry import spans
from toolfleet_registry.contracts import PublishedCall, ToolResult
from toolfleet_registry.settings import Settings
from toolfleet_registry.spans import (
    TRACEPARENT,
    TRACESTATE,
    Drawn,
    Started,
    TraceContext,
    Tracing,
    carrying,
    context_here,
    context_of,
    context_of_span,
    round_trace_id,
    tracing_of,
)
from toolfleet_tasks.queues import queue_for

if TYPE_CHECKING:
    from toolfleet_registry.contracts.jobs import JobSpec

T = TypeVar("T")


def agents_tracing(settings: Settings) -> Tracing | None:
    """Return the tracing of an agent's process: as a guest in it, so that no global provider is set."""
    return _tracing(settings, "toolfleet-agent", is_global=False)


def process_tracing(settings: Settings, service: str) -> Tracing | None:
    """Return the tracing of one of the fleet's own processes; `service` is its name in traces."""
    return _tracing(settings, service, is_global=True)


def _tracing(settings: Settings, service: str, *, is_global: bool) -> Tracing | None:
    return tracing_of(
        settings.traces,
        service,
        is_global=is_global,
        has_contents=settings.trace_contents,
    )


def trace_of(header: Callable[[str], Any]) -> TraceContext | None:
    """Return the message's place in a trace. `header` returns its value of a header, `None` without one.

    These headers are not signed: they affect only ids in traces.
    """
    return context_of(header(TRACEPARENT), header(TRACESTATE))


def trace_text(context: TraceContext | None) -> str:
    """Return a place in a trace as lines of text, as it is stored."""
    return "" if context is None else "\n".join(context)


def trace_in(text: str) -> TraceContext | None:
    """Return the place in a trace that `trace_text` has written, if it is one."""
    traceparent, _, tracestate = text.partition("\n")
    return context_of(traceparent, tracestate)


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
                started.fail(result.error_code or spans.OTHER_ERROR)
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
            spans.MESSAGING_SYSTEM: system,
            spans.MESSAGING_OPERATION_NAME: operation,
            spans.MESSAGING_OPERATION_TYPE: operation,
            spans.MESSAGING_DESTINATION: queue,
        },
        trace_id=drawn,
    )
    if not isinstance(started, TraceContext):
        started.note(message_attributes(call))
        started.note({spans.GEN_AI_TOOL_NAME: call.tool_name})
    return started


def message_attributes(call: PublishedCall) -> dict[str, str | None]:
    """Return the attributes that the spans of sender and receiver share."""
    return {
        spans.MESSAGING_TEMPLATE: "tools.{module}",
        spans.MESSAGING_MESSAGE_ID: call.call_id,
        spans.LANE: call.lane,
        spans.JOB_ID: call.job_id,
        spans.GEN_AI_AGENT_NAME: call.caller.agent,
    }


def system_of(broker: str | None) -> str:
    """Return the broker's kind, as the conventions name it."""
    return "rabbitmq" if (broker or "").startswith(("amqp", "pyamqp")) else "redis"


def with_trace(spec: "JobSpec", *, is_traced: bool) -> "JobSpec":
    """Return the job with the present place in a trace."""
    here = context_here() if is_traced else None
    if here is None:
        return spec
    return spec.model_copy(update={"traceparent": here.traceparent, "tracestate": here.tracestate or None})


def trace_of_job(spec: "JobSpec") -> TraceContext | None:
    """Return the place in a trace where the job was made; `None` without one."""
    return context_of(spec.traceparent, spec.tracestate)


async def of_job(tracing: Tracing | None, spec: "JobSpec", work: Awaitable[T], *, first_step: int | None = None) -> T:
    """Do a job's work in its trace.

    A round of a recurring one has a trace of its own, linked to where the job was made.

    `first_step`: the number before the round's first step, which its steps share; `None`: of no round.
    """
    origin = trace_of_job(spec)
    if tracing is None or origin is None:
        return await work
    if spec.schedule is None or spec.schedule.cron is None:
        with tracing.within(origin):
            return await work
    # Each step has such a span without a parent: if a worker is lost, those of the others are in one trace.
    trace_id = round_trace_id(spec.job_id, first_step) if first_step is not None and tracing.has_attempt_ids else 0
    said, links = {spans.JOB_ID: spec.job_id}, [(origin, "job")]
    started = tracing.start("run_job", "internal", said, links=links, trace_id=trace_id)
    try:
        with tracing.within(started):
            return await work
    finally:
        if not isinstance(started, TraceContext):
            started.end()


def _server_of(url: str) -> dict[str, str | int]:
    found = urlsplit(url)
    server_port = found.port or (443 if found.scheme == "https" else 80)
    return {spans.SERVER_ADDRESS: found.hostname or "", spans.SERVER_PORT: server_port}


async def woken(
    tracing: Tracing, spec: "JobSpec | None", url: str, post: Awaitable[T], is_fine: Callable[[T], bool]
) -> T:
    """Make an attempt to wake a core, in a CLIENT span: in its job's trace, and linked to where the job was made."""
    origin = None if spec is None else trace_of_job(spec)
    started = tracing.start(
        "POST",
        "client",
        {spans.HTTP_METHOD: "POST", spans.URL_FULL: url, **_server_of(url)},
        parent=origin,
        links=[] if origin is None else [(origin, "job")],
    )
    try:
        with carrying(context_of_span(started)):
            result = await post
        if not isinstance(started, TraceContext) and not is_fine(result):
            started.fail(spans.OTHER_ERROR)
        return result
    finally:
        if not isinstance(started, TraceContext):
            started.note({spans.JOB_ID: None if spec is None else spec.job_id})
            started.end()
