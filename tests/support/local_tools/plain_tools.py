"""Plain functions that run in a worker's threads, and write into a file what becomes of them."""

import threading
from pathlib import Path

from support.files.pictures import PNG
from toolfleet.tags import Context, Image, ToolContext, ToolDef, local_tool

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


@local_tool
def watch(journal: str, call: Context) -> str:
    """Work until nobody waits any more."""
    _write(journal, "began")
    pause = threading.Event()
    while not call.cancelled:
        pause.wait(0.02)
    _write(journal, "cancelled")
    return "watched"


@local_tool
def fail() -> str:
    """Raise."""
    raise ValueError("secret: hunter2")


@local_tool
def odd() -> object:
    """Return what is no JSON."""
    return object()


@local_tool(name="quick", effect="read")
async def on_the_loop() -> str:
    """Answer at once, on the worker's loop."""
    return "here"


@local_tool(effect="read")
def draw(like: Image | None = None) -> dict[str, object]:
    """Draw.

    Args:
        like: What it should look like.

    """
    return {"like": like and like.media_type, "chart": Image(PNG, name="chart.png")}


def shout(context: ToolContext) -> str:
    """Be a tag's plain function."""
    return f"{context.raw_arg.upper()} for {context.user}"


shout_tag = ToolDef(
    name="shout",
    description="Shout.",
    tag_prefix="SHOUT",
    handler=shout,
    cost="free",
    requires_gate=False,
)
tools = [hold, hold_reading, watch, fail, odd, draw, on_the_loop, shout_tag]
