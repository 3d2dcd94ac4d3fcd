"""Checks how a copy of what is stored elsewhere is kept, however the store answers."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from support.waiting import wait_until
from toolfleet_registry import live_copy
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.live_copy import LiveCopy
from toolfleet_registry.system import fleet_clock


class Shelf:
    """A store that gives one answer a turn: a text, or an error. While `stands_still`, it gives none."""

    def __init__(self) -> None:
        self.answers = list[Exception | str]()
        self.copied = ""
        self.readings = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def read(self) -> None:
        self.readings += 1
        await self.goes_on.wait()
        answer = self.answers.pop(0) if self.answers else f"text {self.readings}"
        if isinstance(answer, Exception):
            raise answer
        self.copied = answer


@pytest.fixture
async def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
async def copy(shelf: Shelf) -> AsyncIterator[LiveCopy]:
    copy = LiveCopy(shelf.read, event="shelf_not_read")
    yield copy
    shelf.goes_on.set()
    await copy.aclose()


async def test_what_was_read_stays_while_the_store_is_away(shelf: Shelf, copy: LiveCopy) -> None:
    """The log says once that it is away, and again after it was back; a defect has its traceback."""
    away = FleetUnavailable("no answer")
    shelf.answers = ["first", away, away, "second", ValueError("a defect"), ValueError("a defect"), "third"]
    with capture_logs() as logs:
        seen = [(await copy.refresh(), shelf.copied, copy.is_away) for _ in range(7)]

    assert seen == [
        (True, "first", False),
        (False, "first", True),
        (False, "first", True),
        (True, "second", False),
        (False, "second", True),
        (False, "second", True),
        (True, "third", False),
    ]
    told = [(line["event"], line["log_level"], line["error"]) for line in logs]
    assert told == [("shelf_not_read", "warning", "no answer"), ("shelf_not_read", "error", "a defect")]
    assert isinstance(logs[1]["exc_info"], ValueError)


async def test_a_defect_is_told_of_while_the_store_is_away(shelf: Shelf, copy: LiveCopy) -> None:
    """It does not hide behind the failure before it, and is told of once."""
    away, defect = FleetUnavailable("no answer"), ValueError("a defect")
    shelf.answers = [away, defect, away, defect]
    with capture_logs() as logs:
        assert [await copy.refresh() for _ in range(4)] == [False] * 4

    assert [(line["log_level"], line["error"]) for line in logs] == [("warning", "no answer"), ("error", "a defect")]


async def test_all_who_ask_at_once_share_a_reading(shelf: Shelf, copy: LiveCopy) -> None:
    """A caller that goes away takes no answer from the others."""
    shelf.goes_on.clear()
    asking = [asyncio.create_task(copy.confirm(1, patience_seconds=60)) for _ in range(20)]
    await wait_until(lambda: shelf.readings, "the store was asked")
    asking[0].cancel()
    shelf.goes_on.set()

    assert await asyncio.gather(*asking[1:]) == [True] * 19
    assert shelf.readings == 1
    assert await copy.confirm(60, patience_seconds=60)
    assert shelf.readings == 1


async def test_a_change_made_here_is_seen_by_the_next_reading(shelf: Shelf, copy: LiveCopy) -> None:
    """What was asked before the change confirms nothing after it."""
    shelf.goes_on.clear()
    early = asyncio.create_task(copy.refresh())
    await wait_until(lambda: shelf.readings, "the store was asked")
    copy.outdate()
    shelf.goes_on.set()
    await early

    assert await copy.confirm(60, patience_seconds=60)
    assert shelf.readings == 2


@pytest.mark.parametrize(
    ("age_seconds", "good_seconds", "is_confirmed"), [(1.5, 2.0, True), (2.5, 2.0, False), (1.5, 0.0, False)]
)
async def test_an_old_copy_is_good_for_a_moment(
    shelf: Shelf,
    copy: LiveCopy,
    monkeypatch: pytest.MonkeyPatch,
    age_seconds: float,
    good_seconds: float,
    is_confirmed: bool,
) -> None:
    """As long as the caller allows, while the store does not answer."""
    began = fleet_clock.suspend_aware()
    monkeypatch.setattr(fleet_clock, "suspend_aware", lambda: began)
    assert await copy.refresh()
    monkeypatch.setattr(fleet_clock, "suspend_aware", lambda: began + age_seconds)
    shelf.answers = [FleetUnavailable("no answer")]

    asked = copy.confirm(1, patience_seconds=60, good_seconds=good_seconds, short_seconds=60)
    assert await asked is is_confirmed
    assert copy.age_seconds == age_seconds


async def test_a_store_that_failed_is_asked_again_after_a_pause(
    shelf: Shelf, copy: LiveCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that comes in the pause has a reading of its own, however often others failed."""
    times = itertools.count(step=0.05)
    monkeypatch.setattr(fleet_clock, "suspend_aware", lambda: float(next(times)))
    monkeypatch.setattr(live_copy, "EARLY_SECONDS", 0.0)
    shelf.answers = [FleetUnavailable("no answer"), FleetUnavailable("no answer")]

    assert [await copy.confirm(0.01, patience_seconds=60) for _ in range(3)] == [False, False, True]
    assert shelf.readings == 3


async def test_it_is_read_until_it_is_cancelled(shelf: Shelf, copy: LiveCopy) -> None:
    """Also after a failure."""
    shelf.answers = [FleetUnavailable("no answer"), ValueError("a defect")]
    keeping = asyncio.create_task(copy.keep(0))
    await wait_until(lambda: shelf.readings >= 5, "it was read again")
    keeping.cancel()
    await asyncio.wait({keeping})

    assert keeping.cancelled()
    assert shelf.copied


async def test_a_closed_copy_reads_no_more(shelf: Shelf, copy: LiveCopy) -> None:
    """A reading that is under way is cancelled, and its callers are told that nothing is confirmed."""
    shelf.goes_on.clear()
    copy.begin()
    await asyncio.sleep(0)
    await copy.aclose()
    copy.begin()

    assert not await copy.confirm(1, patience_seconds=60)
    assert not copy.is_reading
    assert shelf.readings == 1
