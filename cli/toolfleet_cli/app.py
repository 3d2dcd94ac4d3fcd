"""Assembles the command: its groups, its version, and how it tells of an error."""

import logging
import sys
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated

import structlog
import typer

from toolfleet_cli.commands import audit, call, config, create, dead, jobs, keys, status, wakes
from toolfleet_cli.commands.modules import listing as modules
from toolfleet_cli.commands.tools import listing as tools
from toolfleet_cli.console.output import fail
from toolfleet_cli.processes import fleet, host, logs, processes, redis_cli
from toolfleet_cli.serving import gateway, mcp
from toolfleet_registry.errors import FleetError

app = typer.Typer(
    name="toolfleet",
    help="A message-queue worker fleet that executes the tool calls of LLM agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
fleet.register(app)
processes.register(app)
gateway.register(app)
mcp.register(app)
logs.register(app)
config.register(app)
status.register(app)
redis_cli.register(app)
call.register(app)
app.add_typer(audit.app, name="audit")
app.add_typer(create.app, name="create")
app.add_typer(dead.app, name="dead")
app.add_typer(host.app, name="host")
app.add_typer(jobs.app, name="jobs")
app.add_typer(keys.app, name="keys")
app.add_typer(modules.app, name="modules")
app.add_typer(tools.app, name="tools")
app.add_typer(wakes.app, name="wakes")


def main() -> None:
    """The entry point. What is wrong with the fleet or its settings is one sentence on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):  # a result may hold what this terminal's encoding does not
        if isinstance(stream, TextIOWrapper):  # and not None, as where there is no stdout
            stream.reconfigure(errors="backslashreplace")
    _log_errors_only()
    try:
        app()
    except (FleetError, OSError) as exc:  # a folder that cannot be written, a disk that is full
        fail(str(exc), code=2)


@app.callback()
def _common(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=lambda asked: _say_version(asked=asked),
            is_eager=True,
            help="Say which version this is.",
        ),
    ] = False,
) -> None:
    pass


def _log_errors_only() -> None:
    """The rest is for processes that run for long: here a table or a result says it. And stdout is for results."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _say_version(*, asked: bool) -> None:
    if asked:
        typer.echo(f"toolfleet {version('toolfleet')}")
        raise typer.Exit
