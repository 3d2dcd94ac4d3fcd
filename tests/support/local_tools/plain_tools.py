"""Plain functions that run in a worker's threads, and write into a file what becomes of them."""

import threading
from pathlib import Path

from toolfleet.tags import local_tool

_LONGEST_SECONDS = 60.0  # so that a test that fails leaves nothing behind


def _write(journal: str, word: str) -> None:
    with Path(journal).open("a", encoding="utf-8") as file:
        file.write(f"{word}\n")


def _wait(journal: str) -> str:
    _write(journal, "began")
    go, waited = Path(f"{journal}.go"), threading.Event()
    for _ in range(int(_LONGEST_SECONDS / 0.02)):
        if go.exists():
            break
        waited.wait(0.02)
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
