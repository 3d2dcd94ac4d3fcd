"""The command line: its commands, and that a word brings only what it names."""

from typing import Any

from typer.main import get_command

from toolfleet_cli.app import command_line, outline


def commands_of(word: str | None) -> dict[str, str | None]:
    """The commands for a first word, and what each is about."""
    made: Any = get_command(command_line(word))
    return {name: command.help for name, command in made.commands.items()}


def test_a_command_is_made_alone_and_is_the_same() -> None:
    """Its name as the first word brings it, and what its module has besides, as among all commands."""
    whole = commands_of(None)

    for name in whole:
        alone = commands_of(name)
        assert alone[name] == whole[name]
        assert len(alone) <= 3
        assert alone.items() <= whole.items()


def test_any_other_first_word_brings_all_commands() -> None:
    """A mistake is answered with what there is, and options stand before any command."""
    assert commands_of("caal") == commands_of("--version") == commands_of("") == commands_of(None)


def test_the_help_of_all_commands_is_that_of_each() -> None:
    """Its sentences stand apart, so that it loads no command: they are those of the commands, in the order of the whole."""
    whole: Any = get_command(command_line())
    brief: Any = get_command(outline())

    assert [*brief.commands] == [*whole.commands]
    for name, command in whole.commands.items():
        assert brief.commands[name].get_short_help_str(1_000) == command.get_short_help_str(1_000)
