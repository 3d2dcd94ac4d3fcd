"""An agent in a process of its own, traced as its environment says: `python -m support.traces.agent_program`.

Each line of its input is a call as JSON, for each it prints one with its id, how it ended, how many seconds that took, and the span it was made
in. With `AGENT_PROVIDER=own` it sets a provider of its own before, and the calls are below a span of the agent's.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from subprocess import Popen
from typing import Any

from celery import chain

from support.processes import next_line, python_program
from support.worker_process import TESTS
from toolfleet import Caller, Conversation, Poll, Schedule, ToolCall, ToolFleet, ToolResult

SPAN = "invoke_agent owl_watcher"
ANN = Caller(user_id="ann", permission="admin", allowed_modules="*")


def _own_provider() -> Any:
    """As an agent's author sets it up: we have nothing to do with it."""
    from opentelemetry import trace  # noqa: PLC0415 - agents that are not traced load none of it
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - agents that are not traced load none of it
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - agents that are not traced load none of it
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - agents that are not traced load none of it
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - agents that are not traced load none of it

    provider = TracerProvider(resource=Resource.create({"service.name": "owl-watcher"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


async def _made(fleet: ToolFleet, asked: dict[str, Any]) -> ToolResult:
    """A call, a chain of two, or a job, of which only its id is known."""
    if "job" in asked:
        name = asked["job"]["tool_name"]
        usual: dict[str, Any] = {"tool_name": name, "until": None, "interval_seconds": 0.1}
        poll = Poll(**{**usual, **asked["poll"]})
        cron, here = asked.get("cron"), Conversation(conversation_id="c-1")
        start = None if cron else ToolCall(**asked["job"])
        schedule = Schedule(cron=cron) if cron else None
        job = await fleet.jobs.start(start, poll, conversation=here, caller=ANN, schedule=schedule)
        return ToolResult.ok("job", job.job_id)
    call = ToolCall(**asked["call"])
    if asked["options"] != {"chain": True}:
        options = dict(asked["options"])
        caller = ANN.model_copy(update={"agent": options.pop("agent", None)})
        return await fleet.call(call, caller, **options)
    links = [await fleet.canvas.signature(call, ANN) for _ in range(2)]
    await asyncio.to_thread(chain(*links).apply_async)  # Celery publishes by blocking
    result = await fleet.canvas.result_of(links[1], timeout=30)
    return result or ToolResult.failed(call.tool_name, "timed_out", "It has not ended.", effect_state="unknown")


async def _main() -> None:
    own = os.environ.get("AGENT_PROVIDER") == "own"
    provider = _own_provider() if own else None
    async with ToolFleet() as fleet:
        loop = asyncio.get_running_loop()
        print("ready", flush=True)  # noqa: T201
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            asked = json.loads(line)
            span = provider.get_tracer("owls").start_as_current_span(SPAN) if provider else contextlib.nullcontext()
            began = time.monotonic()
            with span as current:
                result = await _made(fleet, asked)
            context = current.get_span_context() if current is not None else None
            said = {
                "call_id": result.audit.call_id,
                "success": result.success,
                "error_code": result.error_code,
                "result": result.result,
                "seconds": time.monotonic() - began,
                "trace_id": f"{context.trace_id:032x}" if context else None,
                "span_id": f"{context.span_id:016x}" if context else None,
                "imported": "toolfleet_registry.tracing.otel_tracing" in sys.modules,
            }
            print(json.dumps(said), flush=True)  # noqa: T201
    if provider is not None:
        provider.force_flush()


class TracedAgent:
    """The program, as it runs."""

    def __init__(self, process: Popen[str]) -> None:
        self.process = process

    def call(self, tool_name: str, options: Mapping[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
        """Make a call, and wait for its end."""
        self.begin(tool_name, options, **arguments)
        return self.end()

    def start_job(self, tool_name: str, start: Mapping[str, Any], poll: Mapping[str, Any]) -> dict[str, Any]:
        """Make a job whose start and only poll call this tool; `result` is its id."""
        asked = {"job": {"tool_name": tool_name, "arguments": dict(start)}, "poll": {"arguments": dict(poll)}}
        self._write(asked)
        return self.end()

    def start_rounds(self, tool_name: str, cron: str, poll: Mapping[str, Any]) -> dict[str, Any]:
        """Make a job that recurs, and polls this tool; `result` is its id."""
        self._write({"job": {"tool_name": tool_name}, "poll": dict(poll), "cron": cron})
        return self.end()

    def begin(self, tool_name: str, options: Mapping[str, Any] | None = None, **arguments: Any) -> None:
        asked = {"call": {"tool_name": tool_name, "arguments": arguments}, "options": dict(options or {})}
        self._write(asked)

    def _write(self, asked: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps(asked)}\n")
        self.process.stdin.flush()

    def end(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(next_line(self.process))
        return said

    def leave(self, *, seconds: float = 20) -> int:
        """Let it end; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(seconds)


@contextmanager
def traced_agent(env: Mapping[str, str]) -> Generator[TracedAgent]:
    """An agent with this environment, that has its fleet."""
    program = "import sys; sys.path.insert(0, sys.argv[1]); from support.traces.agent_program import main; main()"
    with python_program(program, TESTS, stdin=True, env=env) as process:
        assert next_line(process) == "ready"
        yield TracedAgent(process)


def main() -> None:
    asyncio.run(_main())


if __name__ == "__main__":
    main()
