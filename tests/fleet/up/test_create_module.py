"""A module that is made by the command: its own README leads to a called tool, and what is wrong with it is said."""

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.command import run
from support.up import up

BIN = Path(sys.executable).parent


def commands_in(text: str) -> list[str]:
    """What a page says to type, but for what installs things."""
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    typed = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [command for command in typed if not command.startswith("pip ")]


def type_in(folder: Path, commands: Sequence[str], stack: ExitStack) -> dict[str, str]:
    """Type them one after the other; `up` stays until the stack ends. Returns what each has printed."""
    said: dict[str, str] = {}
    for command in commands:
        program, *words = shlex.split(command)
        if program == "cd":
            folder = folder / words[0]
        elif words[:1] == ["up"]:
            stack.enter_context(up(folder, None, *words[1:]))
        elif program == "toolfleet":
            ended = run(*words, cwd=folder)
            assert ended.code == 0, (command, ended)
            said[command] = ended.out
        else:
            subprocess.run([BIN / program, *words], cwd=folder, check=True)
    return said


@pytest.mark.slow
def test_the_modules_own_readme_works_in_its_folder(tmp_path: Path) -> None:
    """It says what to type next; the fleet offers the module's tools and no others."""
    assert run("create", "module", "herons", cwd=tmp_path).code == 0
    commands = commands_in((tmp_path / "herons" / "README.md").read_text())
    with ExitStack() as stack:
        said = type_in(tmp_path / "herons", commands, stack)

    assert said["toolfleet call herons.greet name=Ada"] == "Hello, Ada.\n"
    assert set(re.findall(r"^(\w+\.\w+)", said["toolfleet tools list"], re.MULTILINE)) == {
        "herons.count",
        "herons.greet",
    }


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--module", "nowhere"], "is no module: it has no main.py. `toolfleet create module NAME` makes one."),
        (["--module", "o-w-l"], "is no module: its name must be one that Python can import"),
        (["--module", "owls", "--module", "owls"], "There are two modules named 'owls'"),
    ],
)
def test_up_says_what_is_no_module(tmp_path: Path, options: list[str], why: str) -> None:
    """In one sentence, before anything is started."""
    for name in ("owls", "o-w-l"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "main.py").touch()
    ended = run("up", *options, cwd=tmp_path)

    assert (ended.code, why in ended.err) == (2, True)
    assert not (tmp_path / ".toolfleet").exists()
