"""Changes what operators decide about tools: `toolfleet tools approve`, `pin`, `disable`, their opposites and `forget`."""

from collections.abc import Callable
from typing import Annotated

import typer

from toolfleet_cli.commands.tools.differences import short_digest
from toolfleet_cli.commands.tools.door import tools_of
from toolfleet_cli.console.output import add_row, note, say, show_table, table
from toolfleet_cli.direct.tools import adopt_registry as adopt
from toolfleet_cli.processes.completion import complete_modules, complete_modules_and_tools, complete_tools
from toolfleet_cli.remote.fleet_options import over_fleet
from toolfleet_cli.remote.gateway import Gateway

ToolArgument = Annotated[list[str], typer.Argument(metavar="MODULE.TOOL...", autocompletion=complete_tools)]
ModuleArgument = Annotated[str, typer.Argument(metavar="MODULE", autocompletion=complete_modules)]


def register(app: typer.Typer) -> None:
    """Give the group the commands."""
    for command in (approve, pin, unpin, disable, enable, forget):
        app.command()(over_fleet(command))
    app.command()(adopt_registry)


def approve(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE.TOOL...",
            help="Or a module: all that is pending there.",
            autocompletion=complete_modules_and_tools,
        ),
    ],
    *,
    digest: Annotated[str | None, typer.Option(help="Only if it is offered with this one, as `diff` shows it.")] = None,
    gateway: Gateway | None = None,
    by: str | None = None,
) -> None:
    """Let what a module offers of a tool take effect."""
    if digest is not None and (len(names) > 1 or "." not in names[0]):
        raise typer.BadParameter("--digest is of one tool.")

    tools = tools_of(gateway, by)
    for name in names:
        pending = [name] if "." in name else [one.tool_name for one in tools.pending(name)]
        if not pending:
            note(f"There is nothing to approve of module {name!r}.")
        for tool_name in pending:
            say(f"{tool_name}: approved with digest {short_digest(tools.approve(tool_name, digest))}")


def pin(module: ModuleArgument, *, gateway: Gateway | None = None, by: str | None = None) -> None:
    """Approve a module's tools as they are in effect now, and nothing that it offers otherwise from now on."""
    tools = tools_of(gateway, by)
    digests, differences = tools.pin(module), tools.pending(module)
    shown = table("TOOL", "DIGEST")
    for name, digest in sorted(digests.items()):
        add_row(shown, name, digest)
    show_table(shown)
    for one in differences:
        note(f"{one.tool_name} is withheld: it is offered otherwise than it was in effect.")


def unpin(module: ModuleArgument, *, gateway: Gateway | None = None, by: str | None = None) -> None:
    """Take in what a module offers, now and from now on, without an approval."""
    tools_of(gateway, by).unpin(module)
    say(f"{module}: not pinned any more")


def disable(names: ToolArgument, *, gateway: Gateway | None = None, by: str | None = None) -> None:
    """Let nobody use a tool, whatever becomes of it, until it is enabled."""
    _each(names, tools_of(gateway, by).disable, "disabled")


def enable(names: ToolArgument, *, gateway: Gateway | None = None, by: str | None = None) -> None:
    """Take a disabling back."""
    _each(names, tools_of(gateway, by).enable, "enabled")


def forget(names: ToolArgument, *, gateway: Gateway | None = None, by: str | None = None) -> None:
    """Let the registry know nothing of a tool, as when it cannot read it: what is offered of it now is new, and enabled."""
    _each(names, tools_of(gateway, by).forget, "forgotten")


def adopt_registry() -> None:
    """Make the registry that is set up here the fleet's, in place of another one: what was decided there holds no more."""
    adopt()
    say("This registry is the fleet's now; `toolfleet modules refresh` takes into it what modules offer.")


def _each(names: list[str], change: Callable[[str], None], done: str) -> None:
    for name in names:
        change(name)
        say(f"{name}: {done}")
