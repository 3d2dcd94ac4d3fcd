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
    from toolfleet_cli.scaffold.files import create_module

    folder = create_module(name, directory)
    say(f"Made the module {name} in {folder}. Next:\n")
    say(f"  cd {folder}")
    say("  pytest                              # its tests")
    say("  toolfleet up --module .             # a fleet with it; stays until Ctrl-C")
    say(f"  toolfleet call {name}.greet name=Ada   # from another shell, there")


@app.command()
def tool(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The tool's name.")],
    *,
    directory: Annotated[Path, typer.Option("--directory", metavar="FOLDER", help="The tool folder.")] = Path(
        ".toolfleet", "tools"
    ),
) -> None:
    """Make a tool: a Python file in a tool folder, and a test beside it. A fleet that serves the folder has the tool at once."""
    from toolfleet_cli.scaffold.files import create_tool

    file = create_tool(name, directory)
    module = directory.resolve().name
    say(f"Made the tool {name} in {file}. Next:\n")
    is_own = directory == Path(".toolfleet", "tools")
    say(
        f"  toolfleet up{'' if is_own else f' --tools {directory}'}    # a fleet with it, unless one serves the folder already"
    )
    say(f"  toolfleet call {module}.{name} text=owl times=2")
