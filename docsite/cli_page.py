"""Writes the page of the command `toolfleet`, with the generator that typer brings."""

import typer
from typer.cli import get_docs_for_click

from docsite.wrapping import wrapped
from toolfleet_cli.app import command_line


def cli_page() -> str:
    """Return the page: each command with its arguments and options, as `--help` has them."""
    command = typer.main.get_command(command_line())
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name="toolfleet"), name="toolfleet")
    title, _, commands = text.partition("\n")
    return wrapped(f"{title.replace('`', '').replace('toolfleet', 'The command')}\n{commands.rstrip()}\n")
