"""An agent in a process of its own, traced as its environment says: `python -m support.traces.agent_program ORDERS ANSWERS`.

Each line of the first file is a call as JSON, for each it writes one to the other: its id, how it ended, how many seconds that took, and the span it
was made in. With `AGENT_PROVIDER=own` it sets a provider of its own before, and the calls are below a span of the agent's.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from celery import chain

from support.programs.fork_server import Process, start
from support.waiting import PATIENCE_SECONDS, wait_until_sync
from support.worker_process import TESTS
from toolfleet import Caller, Conversation, Poll, Schedule, ToolCall, ToolFleet, ToolResult

SPAN = "invoke_agent owl_watcher"
ANN = Caller(user_id="ann", permission="admin", allowed_modules="*")


def _own_provider() -> Any:
    """As an agent's author sets it up: we have nothing to do with it."""
    # Agents that are not traced load none of this.
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

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


async def _main(orders: IO[str], answers: IO[str]) -> None:
    own = os.environ.get("AGENT_PROVIDER") == "own"
    provider = _own_provider() if own else None
    async with ToolFleet() as fleet:
        loop = asyncio.get_running_loop()
        print("ready", file=answers, flush=True)
        while line := await loop.run_in_executor(None, orders.readline):
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
                "imported": "toolfleet_registry.otel_tracing" in sys.modules,
            }
            print(json.dumps(said), file=answers, flush=True)
    if provider is not None:
        provider.force_flush()


class TracedAgent:
    """The program, as it runs in a folder of its own."""

    def __init__(self, env: Mapping[str, str], folder: Path) -> None:
        self._answers, self._log, self._read = folder / "answers", folder / "log", 0
        orders = folder / "orders"
        os.mkfifo(orders)
        # The descriptor of one who reads as well is there at once, and the agent reads the end once it is closed.
        self._orders = os.fdopen(os.open(orders, os.O_RDWR), "w")
        command: list[str | Path] = [sys.executable, "-m", __name__, orders, self._answers]
        with self._log.open("wb") as output:
            self.process: Process = start(command, env={**env, "PYTHONPATH": str(TESTS)}, output=output)

    def answer(self) -> str:
        """The next line that it writes."""
        wait_until_sync(
            lambda: self._lines() or self.process.poll() is not None, "the agent answers", seconds=3 * PATIENCE_SECONDS
        )
        lines = self._lines()
        assert lines, self._log.read_text()
        self._read += 1
        return lines[0]

    def _lines(self) -> list[str]:
        """Those that it has written whole, and nobody has read."""
        text = self._answers.read_text() if self._answers.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()[self._read :]

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
        self._orders.write(f"{json.dumps(asked)}\n")
        self._orders.flush()

    def end(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.answer())
        return said

    def leave(self, *, seconds: float = 20) -> int:
        """Let it end; its exit code."""
        self._orders.close()
        return self.process.wait(seconds)

    def kill(self) -> None:
        """End it, if it still runs."""
        self._orders.close()
        self.process.kill()


@contextmanager
def traced_agent(env: Mapping[str, str]) -> Generator[TracedAgent]:
    """An agent with this environment, that has its fleet."""
    with TemporaryDirectory() as folder:
        agent = TracedAgent(env, Path(folder))
        try:
            assert agent.answer() == "ready"
            yield agent
        finally:
            agent.kill()
            agent.process.wait(PATIENCE_SECONDS)


if __name__ == "__main__":
    with Path(sys.argv[1]).open() as given, Path(sys.argv[2]).open("w") as written:
        asyncio.run(_main(given, written))
