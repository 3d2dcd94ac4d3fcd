"""Serves as a module what was not written as one: `toolfleet host`."""

from pathlib import Path
from typing import Annotated

import typer

from toolfleet_cli.console.output import say
from toolfleet_cli.processes.extras import need
from toolfleet_registry.settings import load_settings

app = typer.Typer(help="Serve as a module what was not written as one.", no_args_is_help=True)


@app.command()
def folder(
    path: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Its `.py` files; functions with `@tool` are the tools.")
    ],
    *,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The module's name; by default the folder's.")
    ] = None,
    address: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: one that is free.")] = 0,
) -> None:
    """Serve a folder of Python files as a module, in the foreground, also while the files change.

    What `toolfleet.toml` says under `[hosts.NAME]` holds for it. With TOOLFLEET_MODULE_KEY, only calls of the fleet are run.
    """
    need("host")
    from toolfleet_cli.processes.folder_server import FolderServer  # noqa: PLC0415 - only this command needs it

    server = FolderServer(load_settings(), path, name=name)
    say(f"{server.name}: the tools in {path}")
    raise typer.Exit(server.run(address, port))


@app.callback()
def _group() -> None:
    """Make `folder` a command of its own, although it is the only one."""
