"""Following a fleet's registry: no event is missed, and none comes twice."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from support.waiting import wait_until
from toolfleet.stores import InMemoryToolRegistry, RegistryEventsLost, ToolRegistry, ToolSpec
from toolfleet_registry.catalog import registry_events
from toolfleet_registry.catalog.registry_events import RegistryEvents
from toolfleet_registry.errors import FleetUnavailable
from toolfleet_registry.specs import RegistryEvent
from toolfleet_registry.store import registry


def owl(name: str) -> ToolSpec:
    return ToolSpec(tool_name=name, version="1", input_schema={}, output_schema={})


class Place:
    """Where a registry is that may be away, and may be another one afterwards."""

    def __init__(self) -> None:
        self.registry: ToolRegistry = InMemoryToolRegistry()
        self.is_away = False
        self.asked = 0

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[ToolRegistry]:
        self.asked += 1
        if self.is_away:
            raise FleetUnavailable("away")
        yield self.registry

    def register(self, *names: str) -> None:
        self.registry.register_many([owl(name) for name in names])


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(registry_events, "_EVERY_SECONDS", 0.01)
    return Place()


async def heard(events: RegistryEvents, count: int) -> list[str]:
    return [(await anext(events)).tool_name for _ in range(count)]


async def asked_again(place: Place) -> None:
    before = place.asked
    await wait_until(lambda: place.asked >= before + 2, "it is asked again")


async def test_events_come_by_themselves(place: Place) -> None:
    """Those of before only if they are asked for; `after` says how far one is."""
    place.register("a", "b")
    everything = RegistryEvents(place.open, "")
    assert await heard(everything, 2) == ["a", "b"]
    assert everything.after == place.registry.last_event()

    from_now_on = RegistryEvents(place.open)
    waiting = asyncio.create_task(heard(from_now_on, 2))
    await asked_again(place)
    place.register("c", "d")
    assert await waiting == ["c", "d"]
    assert await heard(RegistryEvents(place.open, everything.after), 2) == ["c", "d"]


async def test_whoever_is_cancelled_goes_on(place: Place) -> None:
    """A wait that was given up takes no event with it."""
    events = RegistryEvents(place.open, "")
    for name in ("a", "b", "c"):
        waiting = asyncio.create_task(heard(events, 1))
        await asked_again(place)
        waiting.cancel()
        await asyncio.wait([waiting])
        place.register(name)
        assert await heard(events, 1) == [name]


async def test_a_registry_that_was_away_is_followed_on(place: Place) -> None:
    """With what has happened meanwhile, each event once."""
    events = RegistryEvents(place.open, "")
    place.register("a")
    assert await heard(events, 1) == ["a"]
    place.is_away = True
    place.register("b")
    waiting = asyncio.create_task(heard(events, 2))
    await asked_again(place)
    place.is_away = False
    place.register("c")

    assert await waiting == ["b", "c"]


async def test_a_registry_that_stays_away_is_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a minute; whoever wants goes on."""
    monkeypatch.setattr(registry_events, "_AWAY_SECONDS", 0.05)
    events = RegistryEvents(place.open, "")
    place.is_away = True
    with pytest.raises(FleetUnavailable, match="away"):
        await heard(events, 1)
    place.is_away = False
    place.register("a")

    assert await heard(events, 1) == ["a"]


class Counting(InMemoryToolRegistry):
    """Counts who asks it for events."""

    asked = 0

    def events(self, after: str = "", limit: int = 1000) -> list[RegistryEvent]:
        self.asked += 1
        return super().events(after, limit)


async def test_while_nothing_happens_nobody_reads_events(place: Place) -> None:
    """One question a second is enough: for the last id."""
    place.registry = counting = Counting()
    place.register("a")
    events = RegistryEvents(place.open)
    waiting = asyncio.create_task(heard(events, 1))
    await asked_again(place)
    await asked_again(place)
    assert counting.asked == 0
    place.register("b")
    assert await waiting == ["b"]


class TrimmedMeanwhile(InMemoryToolRegistry):
    """Loses its older events between two questions; of those that are left this release can read all, or none."""

    def __init__(self, *, is_readable: bool) -> None:
        super().__init__()
        self.is_readable = is_readable

    def events(self, after: str = "", limit: int = 1000) -> list[RegistryEvent]:
        last = super().events(after)[-1:]
        return last if self.is_readable or limit > 1 else []


@pytest.mark.parametrize("is_readable", [True, False])
async def test_a_history_that_is_trimmed_while_it_is_read_is_said(place: Place, *, is_readable: bool) -> None:
    """And following goes on with what was read."""
    place.registry = TrimmedMeanwhile(is_readable=is_readable)
    place.register("a")
    events = RegistryEvents(place.open, place.registry.last_event())
    place.register("b", "c", "d")

    with pytest.raises(RegistryEventsLost):
        await anext(events)
    assert await heard(events, 1) == ["d"]


async def test_a_trimmed_history_is_said(place: Place) -> None:
    """Once; then come those that are kept, each once."""
    place.register("a")
    events = RegistryEvents(place.open, place.registry.last_event())
    for number in range(registry.EVENTS_KEPT // 1000 + 1):
        place.register(*(f"{number}.{one:03}" for one in range(1000)))
    with pytest.raises(RegistryEventsLost, match="read all tools again") as caught:
        await heard(events, 1)

    assert caught.value.after == "0000000000000-0000000001"
    assert await heard(events, 2) == ["1.000", "1.001"]


async def test_nothing_is_lost_at_the_edge(place: Place) -> None:
    """The last event that was heard of is the last one that is gone."""
    place.register("a")
    events = RegistryEvents(place.open, place.registry.last_event())
    for number in range(registry.EVENTS_KEPT // 1000):
        place.register(*(f"{number}.{one:03}" for one in range(1000)))

    assert await heard(events, 1) == ["0.000"]


async def test_deleted_data_are_said(place: Place) -> None:
    """At once, also while nothing has happened since; what happens afterwards is heard of."""
    place.register("a", "b")
    events = RegistryEvents(place.open, "")
    assert await heard(events, 2) == ["a", "b"]
    place.registry = InMemoryToolRegistry()
    with pytest.raises(RegistryEventsLost):
        await heard(events, 1)
    place.register("c")

    assert await heard(events, 1) == ["c"]


def test_what_is_no_id_is_refused(place: Place) -> None:
    """When following begins, not later."""
    with pytest.raises(ValueError, match="not the id of an event"):
        RegistryEvents(place.open, "yesterday")
