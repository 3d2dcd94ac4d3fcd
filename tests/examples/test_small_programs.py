"""The three small examples: a module, an agent, and a conversation that is woken."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.up import Up, printed, up

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    "agent.py": "There are 6 larks at Oxmoor. I know no way to count owls.\n",
    "woken.py": "I will tell you. The job is starting\njob.completed {'status': 'completed', 'larks': 42}\n",
}
MAX_LINES = 40


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A fleet with the small module, as the programs' own words start it."""
    with up(tmp_path_factory.mktemp("small"), None, "--module", str(EXAMPLES / "larks"), "--no-gateway") as fleet:
        yield fleet


@pytest.mark.parametrize("program", PRINTED)
def test_a_small_program_runs_as_it_stands(program: str, running: Up) -> None:
    """Beside the fleet that it names."""
    assert printed((EXAMPLES / program).read_text(), cwd=running.folder) == PRINTED[program]


def test_a_small_example_fits_on_a_screen() -> None:
    """Each of the three has at most 40 lines."""
    files = (*(EXAMPLES / program for program in PRINTED), EXAMPLES / "larks" / "main.py")

    assert [file.name for file in files if len(file.read_text().splitlines()) > MAX_LINES] == []
