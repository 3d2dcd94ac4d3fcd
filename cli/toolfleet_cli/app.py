"""Assembles the command: its groups, its version, and the way it reports an error."""

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import TextIOWrapper
from types import ModuleType
from typing import Annotated

import typer

from toolfleet_registry.errors import FleetError
from toolfleet_registry.system.loggers import configure_before_first_line

_COMMANDS: Mapping[str, str] = {
    "up": "fleet",
    "demo": "fleet",
    "worker": "servers",
    "beat": "servers",
    "flower": "servers",
    "gateway": "servers",
    "mcp": "servers",
    "logs": "logs",
    "restart": "logs",
    "config": "config",
    "status": "status",
    "doctor": "doctor",
    "capacity": "capacity",
    "redis-cli": "servers",
    "call": "call",
    "why": "call",
    "create": "create",
}
"""The module of `toolfleet_cli.commands` that has each command, in the order of the help."""

_GROUPS = (
    "agents",
    "approvals",
    "audit",
    "dead-letters",
    "host",
    "jobs",
    "keys",
    "modules",
    "queues",
    "tools",
    "wake-ups",
)
"""The groups of commands: each is the `app` of the module of its name."""

_FORMER_NAMES: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("dead",): ("dead-letters",),
    ("wakes",): ("wake-ups",),
    ("agents", "versions"): ("agents", "show", "--versions"),
    ("tools", "errors"): ("tools", "list", "--errors"),
    ("tools", "unpin"): ("tools", "pin", "--undo"),
    ("tools", "versions"): ("tools", "show", "--versions"),
}
"""The present names of groups and commands, by their former ones. These still work and are not shown."""

_HIDDEN = frozenset({"demo", "redis-cli"})
"""Commands that the help leaves out: one needs a clone, the other is named where something is wrong."""

_NAMES = [*_COMMANDS, *_GROUPS]
_COMPLETION = "_TOOLFLEET_COMPLETE"  # a shell asks for what could follow, by this variable

# The help loads no module of a command. A test compares the sentences of single commands with those in their modules.
_SUMMARIES: Mapping[str, str] = {
    "up": "Run a whole fleet here, in the foreground: Redis, workers, beat, Flower, a gateway; in a clone the example modules, too.",
    "demo": "Play an agent's day on a fleet of its own, which is gone afterwards. Runs from a clone of the project.",
    "worker": "Run calls, until SIGTERM: then finish those that run. Prints `toolfleet worker ready lane=…` when it is.",
    "beat": "Send the fleet's own regular tasks, such as the probe of every module. A fleet needs one.",
    "flower": "Show calls, queues and workers in the browser. Takes Flower's own `FLOWER_…` variables as well.",
    "gateway": "Serve the fleet over HTTP, until SIGTERM: then what is under way ends. Prints its URL when it is ready.",
    "mcp": "Serve the fleet's tools to an MCP client over standard input and output, until that ends. For a client's configuration.",
    "logs": "Print what a process of `toolfleet up` has logged, also when it has ended; without a name, which there are.",
    "restart": "Restart a process of the `toolfleet up` here: it ends in good order, a worker's calls finish, and it starts again.",
    "config": "Show what is set here, and where: in the environment, in a line of `toolfleet.toml`, or by a running `up`.",
    "status": "Show workers, lanes, queues, modules in trouble, dead letters, jobs and wake-ups. Asks Redis only, for 5 s at most.",
    "doctor": "Examine the fleet: send a canary through each queue, and look at Redis, workers, clocks, keys, secrets and settings.",
    "capacity": "Say how many agents, workers and Redis servers a load needs, by measured costs. Asks no fleet.",
    "redis-cli": "Open redis-cli at the fleet's Redis, with what follows as its arguments.",
    "call": "Run a tool and print its result. Exit code 1 if the call did not succeed.",
    "why": "Say which rules have a say in a call, whether each lets it pass, and where it stands. Calls nothing. Exit code 1 if it may not be made.",
    "create": "Create a module or a tool, with tests.",
    "agents": "The profiles of agents: which tools each may use, and what stands around its calls.",
    "approvals": "Calls that wait for people: look at them, approve or reject them.",
    "audit": "Who called or changed what, what was decided, and how it ended.",
    "dead-letters": "Calls whose end is not known, wake-ups and webhooks that were not accepted: look at them, try them again, drop them.",
    "host": "Serve as a module what was not written as one.",
    "jobs": "Long work, of all users: jobs that are polled and programs of models. Look at it, end it.",
    "keys": "The API keys of programs that use the fleet over HTTP.",
    "modules": "The modules: which there are, and whether they answer.",
    "queues": "The queues: how each is, and pausing, draining and resuming them.",
    "tools": "The tools: which there are, what they take, and which are in effect.",
    "wake-ups": "Wake-ups of jobs and webhooks that wait to be accepted: look at them, have them sent now, drop them.",
}


def command_line(first_word: str | None = None) -> typer.Typer:
    """Make the command line with every command; if `first_word` names one, or a group, with that alone.

    The modules of all commands take twice as long to load as those of one.
    """
    app = _bare_command_line()
    wanted = {first_word}.intersection(_NAMES) or set(_NAMES)
    for module in dict.fromkeys(module for name, module in _COMMANDS.items() if name in wanted):
        _command_module(module).register(app)
    own = {each.name or str(getattr(each.callback, "__name__", "")): each for each in app.registered_commands}
    app.registered_commands = [own[name] for name in _COMMANDS if name in wanted]
    for name in _HIDDEN & own.keys():
        own[name].hidden = True
    for name in filter(wanted.__contains__, _GROUPS):
        app.add_typer(_command_module(name).app, name=name, help=_SUMMARIES[name])
    return app


def _command_module(name: str) -> ModuleType:
    return import_module(f"toolfleet_cli.commands.{name.replace('-', '_')}")


def outline() -> typer.Typer:
    """Make the command line with every command's name and sentence, and nothing behind them: for help, and for mistakes."""
    app = _bare_command_line()
    for name in _NAMES:
        app.command(name, help=_SUMMARIES.get(name), hidden=name in _HIDDEN)(_nothing)
    return app


def main() -> None:
    """Run the command line. An error of the fleet or its settings is one sentence on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):  # a result may hold what this terminal's encoding does not
        if isinstance(stream, TextIOWrapper):  # and not None, as where there is no stdout
            stream.reconfigure(errors="backslashreplace")
    configure_before_first_line(_log_errors_only)
    for length in (1, 2):
        sys.argv[1 : 1 + length] = _FORMER_NAMES.get(tuple(sys.argv[1 : 1 + length]), sys.argv[1 : 1 + length])
    try:
        _needed(sys.argv[1:])()
    except (FleetError, OSError) as exc:  # a folder that cannot be written, a disk that is full
        from toolfleet_cli.console import fail

        fail(str(exc), code=2)
    finally:
        gc.enable()


def _needed(words: Sequence[str]) -> typer.Typer:
    """Return the command line that these words need: an option of its own before any command may be one that needs all."""
    first = next(iter(words), "--help")
    is_brief = first in {"-h", "--help", "--version"} or not first.startswith("-")
    if first in _NAMES or not is_brief or _COMPLETION in os.environ:
        app = command_line(first)
        gc.enable()  # `toolfleet_cli.main` has it wait until all is loaded; a help is over before there is anything to collect
        return app
    return outline()


def _bare_command_line() -> typer.Typer:
    app = typer.Typer(
        name="toolfleet",
        help="A message-queue worker fleet that executes the tool calls of LLM agents.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_common)
    return app


def _nothing() -> None:
    pass


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
    """Log errors only, on stderr: a table or a result says the rest, and stdout is for results."""
    import logging

    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _say_version(*, asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"toolfleet {version('toolfleet')}")
        raise typer.Exit
