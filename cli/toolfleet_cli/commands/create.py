"""Begins something new: `toolfleet create`."""

from pathlib import Path
from typing import Annotated

import typer

from toolfleet_cli.console.output import say

app = typer.Typer(help="Begin something new.", no_args_is_help=True)


@app.command()
def module(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The module's name, the first part of its tools' names.")],
    *,
    directory: Annotated[
        Path, typer.Option("--directory", metavar="FOLDER", help="Where its folder is to be made.")
    ] = Path(),
) -> None:
    """Make a module, in a folder of its name: two tools, tests for them, a pyproject.toml, a Dockerfile, and a README with what comes next."""
    from toolfleet_cli.scaffold.files import create_module  # noqa: PLC0415 - only this command needs it

    folder = create_module(name, directory)
    say(f"Made the module {name} in {folder}. Next:\n")
    say(f"  cd {folder}")
    say("  pytest                              # its tests")
    say("  toolfleet up --module .             # a fleet with it; stays until Ctrl-C")
    say(f"  toolfleet call {name}.greet name=Ada   # from another shell, there")


@app.callback()
def _group() -> None:
    """Make `module` a command of its own, although it is the only one."""
