"""Lists what programs of tests import, and no more, but for what reads their settings."""

import importlib
import sys
from collections.abc import Sequence

from support.programs.shortened import NAME as SHORTENED
from toolfleet_workers.__main__ import load_lean_libraries

_WORKER = (
    "billiard.pool",
    "celery.apps.worker",
    "celery.bin.base",
    "celery.bin.worker",
    "celery.events.dispatcher",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.control",
    "celery.worker.strategy",
    "kombu.transport.redis",
    "toolfleet_tasks.app",
    "toolfleet_tasks.control.celery_parts",
    "toolfleet_tasks.control.celery_worker",
    "toolfleet_tasks.messages.signing",
    "toolfleet_tasks.transport.kombu_transport",
    "toolfleet_tasks.transport.events",
    "toolfleet_tasks.transport.result_backend",
    "toolfleet_workers.pool.bootsteps",
    "toolfleet_workers.executors.http_executor",
    "toolfleet_workers.runner",
    "toolfleet_workers.tool_cache",
    "toolfleet_workers.middleware",
    "toolfleet_workers.worker_app",
)
_SERVER = (
    "httpx",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.main",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
_COMMAND = (
    "httpx",
    "rich.markdown",
    "rich.progress",
    "rich.table",
    "toolfleet_registry.catalog.operator",
    "toolfleet_registry.settings",
    "toolfleet_tasks.client.fleet",
    "typer.core",
)
_PRELOADS = {
    "toolfleet_workers": _WORKER,
    # Celery's own command: workers of the pool's tests, and beat.
    "celery": (
        *_WORKER,
        "aiohttp",
        "celery.apps.beat",
        "celery.bin.celery",
        "toolfleet_tasks.control.beat",
        "toolfleet_tasks.control.startup_checks",
    ),
    # What serves modules, and what all of them are made of.
    "uvicorn": (*_SERVER, "toolfleet.sdk"),
    # The command, but for what shows things: that looks at the terminal.
    "toolfleet_cli": _COMMAND,
    "toolfleet_cli gateway": (*_COMMAND, *_SERVER, "toolfleet_gateway.gateway"),
    "toolfleet_cli host": (*_COMMAND, *_SERVER, "toolfleet.sdk", "toolfleet_cli.hosting.hosts"),
    # What serves an agent's core.
    "core": (
        *_SERVER,
        "fastapi",
        "pydantic.v1",
        "sqlalchemy.dialects.postgresql",
        "sqlalchemy.dialects.sqlite",
        "toolfleet.sdk",
        "toolfleet.webhooks",
        "toolfleet_tasks.client.fleet",
    ),
    # A traced agent, and what its author's provider is made of.
    "support.traces.agent_program": (
        "celery.canvas",
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        "opentelemetry.sdk.resources",
        "opentelemetry.sdk.trace.export",
        "psutil",
        "toolfleet_tasks.operations.change_trail",
        "toolfleet_tasks.client.canvas",
        "toolfleet_tasks.client.jobs",
        "toolfleet_tasks.client.namespaces",
        "toolfleet_tasks.client.dead_letters",
        "toolfleet_tasks.operations.process_metrics",
    ),
}
_CORES = ("agent_core.main:app", "support.core.dying_core:app")


def program_of(argv: Sequence[str]) -> str | None:
    """Name the program of a command line, if its imports are listed."""
    if list(argv[:2]) != [sys.executable, "-m"]:
        return None
    if argv[2] == SHORTENED:
        return program_of([*argv[:2], *argv[4:]])
    if argv[2] == "uvicorn" and argv[3] in _CORES:
        return "core"
    longer = " ".join(argv[2:4])
    return longer if longer in _PRELOADS else argv[2] if argv[2] in _PRELOADS else None


def preload(program: str) -> None:
    """Import what that program imports."""
    if program == "toolfleet_workers":
        load_lean_libraries()  # as it does itself, before anything else
    for name in _PRELOADS[program]:
        importlib.import_module(name)
