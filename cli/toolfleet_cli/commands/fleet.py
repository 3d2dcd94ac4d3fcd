"""Registers the commands of a whole fleet on this machine: `toolfleet up` and `demo`."""

from pathlib import Path
from typing import Annotated

import typer

from toolfleet_cli.console.output import need


def register(app: typer.Typer) -> None:
    """Give the app the commands."""
    app.command()(up)
    app.command()(demo)


def up(
    *,
    modules: Annotated[
        list[Path] | None,
        typer.Option(
            "--module",
            metavar="FOLDER",
            help="Serve this module, too; `.` is the one here. Instead of the examples. May be repeated.",
        ),
    ] = None,
    tools: Annotated[
        list[Path] | None,
        typer.Option(
            "--tools",
            metavar="FOLDER",
            help="Serve the functions with `@tool` in its Python files, too. Instead of the examples. May be repeated.",
        ),
    ] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Restart a module when its Python files change.")] = False,
    gateway: Annotated[
        bool,
        typer.Option("--gateway/--no-gateway", help="Start a gateway, too; it does by default.", show_default=False),
    ] = True,
) -> None:
    """Run a whole fleet here, in the foreground: Redis, workers, beat, Flower, a gateway; in a clone the example modules, too.

    The other commands find it from this folder and those below. Its data lie in `.toolfleet/`.
    """
    need("up")
    from toolfleet_cli.commands.up import run_up

    raise typer.Exit(run_up(modules or [], tools or [], reload=reload, gateway=gateway))


def demo() -> None:
    """Play an agent's day on a fleet of its own, which is gone afterwards. Runs from a clone of the project."""
    need("demo")
    from toolfleet_cli.commands.demo import run_demo

    raise typer.Exit(run_demo())
