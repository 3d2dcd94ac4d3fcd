"""Keeps with a job where it was made in a trace, and puts its steps and wake-ups there."""

from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

from toolfleet_registry.contracts.jobs import JobSpec
from toolfleet_registry.tracing import port
from toolfleet_registry.tracing.port import (
    TraceContext,
    Tracing,
    carrying,
    context_here,
    context_of,
    context_of_span,
    round_trace_id,
)

T = TypeVar("T")


def with_trace(spec: JobSpec, *, is_traced: bool) -> JobSpec:
    """The job, made here and now."""
    here = context_here() if is_traced else None
    if here is None:
        return spec
    return spec.model_copy(update={"traceparent": here.traceparent, "tracestate": here.tracestate or None})


def trace_of_job(spec: JobSpec) -> TraceContext | None:
    """Return the place in a trace where the job was made; `None` without one."""
    return context_of(spec.traceparent, spec.tracestate)


async def of_job(tracing: Tracing | None, spec: JobSpec, work: Awaitable[T], *, first_step: int | None = None) -> T:
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
    said, links = {port.JOB_ID: spec.job_id}, [(origin, "job")]
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
    return {port.SERVER_ADDRESS: found.hostname or "", port.SERVER_PORT: server_port}


async def woken(
    tracing: Tracing, spec: JobSpec | None, url: str, post: Awaitable[T], is_fine: Callable[[T], bool]
) -> T:
    """Make an attempt to wake a core, in its CLIENT span: in its job's trace, and linked to where the job was made."""
    origin = None if spec is None else trace_of_job(spec)
    started = tracing.start(
        "POST",
        "client",
        {port.HTTP_METHOD: "POST", port.URL_FULL: url, **_server_of(url)},
        parent=origin,
        links=[] if origin is None else [(origin, "job")],
    )
    try:
        with carrying(context_of_span(started)):
            result = await post
        if not isinstance(started, TraceContext) and not is_fine(result):
            started.fail(port.OTHER_ERROR)
        return result
    finally:
        if not isinstance(started, TraceContext):
            started.note({port.JOB_ID: None if spec is None else spec.job_id})
            started.end()
