"""Reads a command of ours as our command line does, so that a file that names one is known to be spelt rightly."""

from collections.abc import Sequence
from typing import Any

import typer

from toolfleet_cli.app import command_line


def parse(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The command, such as `host folder`, and its options. Raises what the command line says of words that it does not know."""
    program, *rest = words
    assert program.rpartition("/")[2] == "toolfleet"
    command: Any = typer.main.get_command(command_line())
    names: list[str] = []
    while hasattr(command, "commands"):
        name, *rest = rest
        assert name in command.commands, f"toolfleet {' '.join([*names, name])} is no command"
        command = command.commands[name]
        names.append(name)
    with command.make_context(names[-1], list(rest)) as context:
        return " ".join(names), dict(context.params)
