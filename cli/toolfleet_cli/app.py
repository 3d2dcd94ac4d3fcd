"""Assembles the command: its groups, its version, and how it tells of an error."""

import logging
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated

import structlog
import typer

from toolfleet_cli.console.output import fail
from toolfleet_registry.errors import FleetError

_COMMANDS: Mapping[str, Sequence[str]] = {
    "toolfleet_cli.processes.fleet": ["up", "demo"],
    "toolfleet_cli.processes.processes": ["worker", "beat", "flower"],
    "toolfleet_cli.processes.autoscale": ["autoscale"],
    "toolfleet_cli.serving.gateway": ["gateway"],
    "toolfleet_cli.serving.mcp": ["mcp"],
    "toolfleet_cli.processes.logs": ["logs", "restart"],
    "toolfleet_cli.commands.config": ["config"],
    "toolfleet_cli.commands.status": ["status"],
    "toolfleet_cli.commands.doctor": ["doctor"],
    "toolfleet_cli.commands.capacity": ["capacity"],
    "toolfleet_cli.processes.redis_cli": ["redis-cli"],
    "toolfleet_cli.commands.call": ["call"],
    "toolfleet_cli.commands.why": ["why"],
}
"""The modules that `register` commands, and which ones, in the order of the help."""

_GROUPS: Mapping[str, str] = {
    "toolfleet_cli.commands.agents": "agents",
    "toolfleet_cli.commands.approvals": "approvals",
    "toolfleet_cli.commands.audit": "audit",
    "toolfleet_cli.commands.create": "create",
    "toolfleet_cli.commands.dead": "dead",
    "toolfleet_cli.processes.host": "host",
    "toolfleet_cli.commands.jobs": "jobs",
    "toolfleet_cli.commands.keys": "keys",
    "toolfleet_cli.commands.modules.listing": "modules",
    "toolfleet_cli.commands.queues.group": "queues",
    "toolfleet_cli.commands.tools.listing": "tools",
    "toolfleet_cli.commands.wakes": "wakes",
}
"""The modules whose `app` is a group of commands, and its name."""


def command_line(first_word: str | None = None) -> typer.Typer:
    """Make the command line with every command; if `first_word` names one, or a group, with that alone.

    The modules of all commands take twice as long to load as those of one.
    """
    app = typer.Typer(
        name="toolfleet",
        help="A message-queue worker fleet that executes the tool calls of LLM agents.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    known = {name for names in _COMMANDS.values() for name in names} | set(_GROUPS.values())
    wanted = {first_word} & known or known
    for module, names in _COMMANDS.items():
        if wanted.intersection(names):
            import_module(module).register(app)
    for module, name in _GROUPS.items():
        if name in wanted:
            app.add_typer(import_module(module).app, name=name)
    return app


def main() -> None:
    """The entry point. What is wrong with the fleet or its settings is one sentence on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):  # a result may hold what this terminal's encoding does not
        if isinstance(stream, TextIOWrapper):  # and not None, as where there is no stdout
            stream.reconfigure(errors="backslashreplace")
    _log_errors_only()
    try:
        command_line(first_word=next(iter(sys.argv[1:]), None))()
    except (FleetError, OSError) as exc:  # a folder that cannot be written, a disk that is full
        fail(str(exc), code=2)


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
