"""`make lint` finds the tests that wait for a time instead of for a fact."""

from pathlib import Path

import pytest

from support.wait_check import all_places, places_in
from support.waiting import PATIENCE_SECONDS

SLEEPS = "a test sleeps"
WAITS = "use PATIENCE_SECONDS"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        # Sleeps.
        ("await asyncio.sleep(0.1)", SLEEPS),
        ("await asyncio.sleep(seconds)", SLEEPS),
        ("time.sleep(1)", SLEEPS),
        ("await anyio.sleep(delay=2)", SLEEPS),
        ("from asyncio import sleep\nawait sleep(1)", SLEEPS),
        ("from time import sleep as rest\nrest(1)", SLEEPS),
        ("await asyncio.sleep(0)", None),
        ("await fleet.sleep(5)", None),
        # Limits by position.
        ("asyncio.timeout(5)", WAITS),
        ("asyncio.timeout(2 * 30)", WAITS),
        ("await asyncio.wait_for(it, 5)", WAITS),
        ("await handle.result(5)", WAITS),
        ("thread.join(5)", WAITS),
        ("process.wait(0.5)", WAITS),
        ("asyncio.timeout(PATIENCE_SECONDS)", None),
        ("asyncio.timeout(3 * PATIENCE_SECONDS)", None),
        ("asyncio.timeout(None)", None),
        ("asyncio.timeout(0)", None),
        ("await asyncio.wait_for(it, seconds)", None),
        ("await handle.result()", None),
        ('", ".join(words)', None),
        ("pytest.mark.timeout(300)", None),
        # Limits by name.
        ("queue.get(timeout=5)", WAITS),
        ("subprocess.run(argv, timeout=60)", WAITS),
        ("httpx.get(url, timeout=5)", WAITS),
        ("await asyncio.wait({task}, timeout=5)", WAITS),
        ("await asyncio.to_thread(process.communicate, timeout=5)", WAITS),
        ("await wait_until(condition, 'it is', seconds=5)", WAITS),
        ("queue.get(timeout=PATIENCE_SECONDS)", None),
        ("channel.get_message(timeout=0)", None),
        # Times that are handed to the product.
        ("await fleet.call(call, ADA, timeout=5)", None),
        ("await asyncio.to_thread(fleet.call, call, timeout=5)", None),
        ("agent.iter(prompt, timeout=5)", None),
        ("module.tool(timeout_seconds=5)", None),
        ("ledger.claim(call, seconds=5)", None),
        # Out of reach.
        ('program = "import time; time.sleep(5)"', None),
    ],
)
def test_a_wait_for_a_time_is_found(line: str, found: str | None) -> None:
    """A sleep, and a limit that is a number; not the one constant, nor a time that the product is given."""
    places = [what for _, what in places_in(line)]

    assert [found in what for what in places] == [True] if found else places == []


def test_a_place_has_its_line_and_says_what_to_write() -> None:
    """A linter's message leads to the place."""
    assert places_in("import asyncio\n\n\nasyncio.timeout(5)\n") == [
        (4, "timeout waits 5 s: use PATIENCE_SECONDS of support.waiting, or a multiple of it")
    ]


def test_fakes_may_sleep_and_virtual_time_is_free(tmp_path: Path) -> None:
    """Which is which says the folder; a fake's own waits are judged as all others."""
    fakes = ("support", "conformance/everything", "fundamentals/fleet/owls")
    for folder in ("unit", "conformance", "fundamentals/fleet", *fakes, "virtual", "bed", "chaos", "pauses", "soak"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "each.py").write_text("time.sleep(1)\nqueue.get(timeout=5)\n")

    assert {path: [line for line, _ in places] for path, places in all_places(tmp_path).items()} == {
        **{f"{folder}/each.py": [1, 2] for folder in ("conformance", "fundamentals/fleet", "unit")},
        **{f"{folder}/each.py": [2] for folder in fakes},
    }


def test_the_patience_is_twenty_seconds() -> None:
    """A multiple of it is that of a known time."""
    assert PATIENCE_SECONDS == 20
