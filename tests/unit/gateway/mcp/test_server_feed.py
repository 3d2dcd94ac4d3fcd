"""One reading of changes for all streams of a gateway: it goes on after Redis was away, and says what may be lost."""

import asyncio
from typing import cast

import pytest

from support.waiting import wait_until
from toolfleet_gateway.mcp import subscriptions
from toolfleet_gateway.mcp.subscriptions import ServerFeed
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.functions.passed_methods import ServerChange
from toolfleet_registry.watching import ReadChanges, ServerChanges

EGG = ServerChange("resource", "eggs://one")


class FailingChanges:
    """Answers by order of the test: when a Redis is away, and what it has lost, cannot be timed with a real one."""

    def __init__(self) -> None:
        self.is_away = False
        self.place = "5-0"
        self.waiting = asyncio.Queue[ReadChanges]()
        self.places = list[str]()
        self.refused = 0

    async def last(self) -> str:
        self._check()
        return self.place

    async def after(self, last: str) -> ReadChanges:
        self._check()
        self.places.append(last)
        await asyncio.sleep(0)
        return ReadChanges((), last) if self.waiting.empty() else self.waiting.get_nowait()

    def _check(self) -> None:
        if self.is_away:
            self.refused += 1
            raise FleetUnavailable("Nobody answers.")


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> FailingChanges:
    monkeypatch.setattr(subscriptions, "_AWAY_SECONDS", 0.01)
    monkeypatch.setattr(subscriptions, "_START_SECONDS", 0.05)
    return FailingChanges()


def feed_of(changes: FailingChanges) -> ServerFeed:
    return ServerFeed(cast("ServerChanges", changes))


async def test_all_listeners_share_one_reading(changes: FailingChanges) -> None:
    """It ends with the last of them, and begins anew with the next, from where things are then."""
    feed = feed_of(changes)
    first, second = list[object](), list[object]()
    async with feed.heard_by(lambda *said: first.append(said)):
        async with feed.heard_by(lambda *said: second.append(said)):
            changes.waiting.put_nowait(ReadChanges((("owls", EGG),), "6-0"))
            await wait_until(lambda: first == second == [("owls", EGG)], "both hear it")
        changes.waiting.put_nowait(ReadChanges((("owls", EGG),), "7-0", are_lost=True))
        await wait_until(lambda: len(first) == 3, "one hears more")
    changes.place = "9-0"
    changes.places.clear()
    async with feed.heard_by(lambda *_: None):
        await wait_until(lambda: changes.places, "it is read again")

    assert (first[1:], len(second)) == ([("", "lost"), ("owls", EGG)], 1)
    assert changes.places[0] == "9-0"


@pytest.mark.parametrize(("place", "said"), [("6-0", ["returned"]), ("0-0", ["returned", "lost"])])
async def test_a_redis_that_returns(changes: FailingChanges, place: str, said: list[str]) -> None:
    """Reading goes on where it was; one that has lost what was there is read from its begin, and whatever may change may have."""
    heard = list[tuple[str, object]]()
    async with feed_of(changes).heard_by(lambda *each: heard.append(each)):
        changes.waiting.put_nowait(ReadChanges((("owls", EGG),), "6-0"))
        await wait_until(lambda: "6-0" in changes.places, "it has read")
        changes.is_away = True
        changes.place = place
        await wait_until(lambda: changes.refused, "it was away")
        changes.is_away = False
        await wait_until(lambda: len(heard) > len(said), "it has returned")

    assert heard == [("owls", EGG), *(("", each) for each in said)]
    assert changes.places[-1] == ("6-0" if place == "6-0" else "0-0")


async def test_who_begins_while_redis_is_away_waits_for_a_moment(changes: FailingChanges) -> None:
    """And hears later that it may have missed something."""
    changes.is_away = True
    heard = list[tuple[str, object]]()
    async with feed_of(changes).heard_by(lambda *each: heard.append(each)):
        changes.is_away = False
        await wait_until(lambda: heard == [("", "returned"), ("", "lost")], "it is told")
