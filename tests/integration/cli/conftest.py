"""What tests of the command share."""

from pathlib import Path

import pytest

from support import command


@pytest.fixture
def run(elsewhere: Path) -> command.Run:
    """Runs the command in this process, far from any other fleet."""
    return command.run
