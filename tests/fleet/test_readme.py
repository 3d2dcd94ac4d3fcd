"""What the README shows works as it stands."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.up import Up, toolfleet, up

README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with up(tmp_path_factory.mktemp("readme")) as running:
        yield running


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_agent_calls_its_tool(fleet: Up) -> None:
    """The first program of the README, run beside a fleet that is up, prints that its call succeeded."""
    (agent,) = blocks("python")
    ended = subprocess.run(
        [sys.executable, "-c", agent], cwd=fleet.folder, capture_output=True, text=True, timeout=60, check=False
    )

    assert re.search(r"^\d+ tools\nTrue 1\n$", ended.stdout), ended.stderr


def test_the_command_calls_a_tool(fleet: Up) -> None:
    """The README's `toolfleet call` is one that succeeds."""
    (command,) = [line for block in blocks("console") for line in block.splitlines() if "toolfleet call" in line]
    words = shlex.split(command.removeprefix("$ "))

    assert toolfleet(*words[1:], cwd=fleet.folder).returncode == 0
