"""Plain functions that run in a worker's threads, and write into a file what becomes of them."""

from pathlib import Path

from support.waiting import PATIENCE_SECONDS, wait_until_sync
from toolfleet.tags import local_tool


def _write(journal: str, word: str) -> None:
    with Path(journal).open("a", encoding="utf-8") as file:
        file.write(f"{word}\n")


def _wait(journal: str) -> str:
    _write(journal, "began")
    wait_until_sync(Path(f"{journal}.go").exists, "the test lets it go", seconds=3 * PATIENCE_SECONDS)
    _write(journal, "ended")
    return "held"


@local_tool
def hold(journal: str) -> str:
    """Hold a thread until there is a file to go."""
    return _wait(journal)


@local_tool(effect="read")
def hold_reading(journal: str) -> str:
    """Do the same, and change nothing."""
    return _wait(journal)


@local_tool(name="quick", effect="read")
async def on_the_loop() -> str:
    """Answer at once, on the worker's loop."""
    return "here"


tools = [hold, hold_reading, on_the_loop]
