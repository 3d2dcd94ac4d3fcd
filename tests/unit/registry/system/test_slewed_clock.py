"""A clock that follows another one: never back, soon right, and not along where that one is set."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolfleet_registry.system.fleet_clock import (
    FASTEST_SLEW,
    LONGEST_BRIDGE_SECONDS,
    STEP_SECONDS,
    Reading,
    SlewedClock,
)

START = 1_900_000_000.0


@dataclass
class World:
    """A machine that has run for 1,000 s, whose clock is `wall_ahead`; a server whose clock is `set_by`, and the fleet's `offset` on it."""

    passed: float = 0.0
    wall_ahead: float = 0.0
    set_by: float = 0.0
    offset: float = 0.0
    clock: SlewedClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = SlewedClock(
            monotonic=lambda: 1000.0 + self.passed, wall=lambda: START + self.passed + self.wall_ahead
        )

    @property
    def fleet(self) -> float:
        return START + self.passed + self.set_by + self.offset

    def look(self, *, there: float = 0.0, back: float = 0.0, reached: float = 0.0) -> str:
        """Ask the server; the way there and back takes so many seconds."""
        asked_at = 1000.0 + self.passed
        self.passed += there
        server, fleet = START + self.passed + self.set_by, self.fleet
        self.passed += back
        return self.clock.hear(Reading(server, fleet, asked_at, 1000.0 + self.passed), reached)

    @classmethod
    def grown(cls) -> "World":
        """One whose clock was set some seconds ago."""
        world = cls()
        world.look()
        for _ in range(8):
            world.passed += 1
            world.look()
        return world


def test_what_it_has_heard_can_be_forgotten() -> None:
    """Then it is as it was at first, whatever the machine shows."""
    world = World.grown()
    world.wall_ahead = -30

    world.clock.forget()

    assert (world.clock.now(), world.clock.is_set, world.clock.is_young) == (world.fleet - 30, False, True)
    assert world.look() == "set"


def test_it_shows_the_machines_own_clock_until_it_is_set() -> None:
    """And then the server's, however far that is."""
    world = World(wall_ahead=-30)

    assert world.clock.now() == START - 30
    assert world.look() == "set"
    assert world.clock.now() == pytest.approx(START, abs=0.001)
    assert world.clock.wall_lead == pytest.approx(-30)


def test_setting_the_machines_clock_changes_nothing() -> None:
    """It goes by monotonic time."""
    world = World()
    world.look()
    world.wall_ahead, world.passed = 7200, 10

    assert world.clock.now() == pytest.approx(world.fleet, abs=0.001)
    assert world.clock.wall_lead == pytest.approx(7200)


def test_the_reading_with_the_shortest_way_counts() -> None:
    """One that was half a second on its way there, and none back, is off by a quarter of a second."""
    world = World.grown()
    for _ in range(5):
        world.look(there=0.5)
        world.passed += 1

    assert world.clock.now() == pytest.approx(world.fleet, abs=0.01)


@pytest.mark.parametrize("way", ["there", "back"])
def test_a_server_that_stands_still_moves_no_clock_that_is_right(way: str) -> None:
    """Its answer is the only one for a minute, and may be from any moment since it was asked."""
    world = World.grown()
    for _ in range(3):
        world.passed += 60

        assert world.look(**{way: 3.0}) == "followed"
        assert world.clock.now() == pytest.approx(world.fleet, abs=0.001)
        world.passed += 60
        assert world.clock.now() == pytest.approx(world.fleet, abs=0.001)


@given(st.data())
def test_it_never_goes_back_and_is_soon_right(data: st.DataObject) -> None:
    """Whatever the ways take, and however the server's clock goes astray, as long as nobody sets it."""
    world = World.grown()
    shown = world.clock.now()
    for _ in range(data.draw(st.integers(1, 40))):
        world.set_by += data.draw(st.floats(-0.4, 0.4))
        world.look(there=data.draw(st.floats(0, 0.3)), back=data.draw(st.floats(0, 0.3)))
        for _ in range(3):
            world.passed += data.draw(st.floats(0, 5))
            assert world.clock.now() >= shown
            shown = world.clock.now()
    for _ in range(60):
        world.passed += 1
        world.look()

    assert world.clock.now() == pytest.approx(world.fleet, abs=0.01)


def test_it_goes_a_little_faster_or_slower_until_it_is_right() -> None:
    """At most by a twentieth, so a deadline of seconds stays one of seconds."""
    world = World.grown()
    world.set_by = 0.8
    world.look()
    before = world.clock.now()
    world.passed += 10

    assert world.clock.now() - before == pytest.approx(10 * (1 + FASTEST_SLEW))
    world.passed += 10
    assert world.clock.now() == pytest.approx(world.fleet, abs=0.001)


@pytest.mark.parametrize("seconds", [90, -600, STEP_SECONDS * 1.5])
def test_it_goes_on_when_the_server_is_set(seconds: float) -> None:
    """Monotonic time says so; who looks has to write down by how much the fleet's time differs, and asks until that is done."""
    world = World.grown()
    before, world.set_by = world.clock.now(), seconds

    assert [world.look(), world.look()] == ["stepped", "stepped"]
    assert world.clock.now() == pytest.approx(before, abs=0.001)

    world.offset = -seconds
    assert world.look() == "followed"
    assert world.clock.now() == pytest.approx(before, abs=0.001)


def test_an_offset_that_is_given_up_slowly_is_followed() -> None:
    """At a hundredth; also by whoever looked an hour ago, who then is set forward, and back as slowly as ever."""
    for set_by, idle in ((90.0, 1.0), (-90.0, 1.0), (90.0, 3600.0), (-90.0, 3600.0)):
        world = World.grown()
        world.set_by, world.offset = set_by, -set_by
        world.look()
        shown = world.clock.now()
        for _ in range(20):
            world.passed += idle
            world.offset -= max(-abs(world.offset), min(abs(world.offset), 0.01 * idle)) * (1 if -set_by > 0 else -1)
            assert world.look() in {"followed", "paused"}
            assert world.clock.now() >= shown
            shown = world.clock.now()
        if idle == 1:
            assert world.clock.now() == pytest.approx(world.fleet, abs=0.5)


def test_a_machine_that_stood_still_is_set_forward() -> None:
    """With its monotonic clock, as one that was migrated: the server seems to have jumped, but others have gone on with it."""
    world = World.grown()
    world.set_by = 40  # which is the same, seen from here

    assert world.look(reached=world.fleet - 1) == "paused"
    assert world.clock.now() == pytest.approx(world.fleet, abs=0.001)
    assert world.look() == "followed"


@pytest.mark.parametrize("seconds", [90, 600])
def test_a_server_that_was_set_back_and_right_again_is_no_pause(seconds: float) -> None:
    """Whoever asked before and after sees no jump, while the fleet's time still makes good for the first: workers have shown less."""
    world = World.grown()
    before = world.clock.now()
    world.offset = seconds

    assert world.look(reached=START + world.passed) == "stepped"
    assert world.clock.now() == pytest.approx(before, abs=0.001)


def test_who_has_not_asked_again_is_not_sure_of_its_time() -> None:
    """However long ago it was set: with what it took for the time between two steps of the server's clock it corrects nobody."""
    world = World(offset=600)
    world.look()
    world.passed, world.offset = 10, 0

    assert world.clock.is_young
    assert world.look(reached=START + 9) == "set"
    assert world.clock.now() == pytest.approx(world.fleet, abs=0.001)
    assert not world.clock.is_young


def test_a_clock_that_has_just_been_set_believes_the_server() -> None:
    """It may have asked between a step of the server's clock and somebody's noticing it."""
    world = World(set_by=90)
    world.look()
    world.passed, world.offset = 2, -90

    assert world.look() == "set"
    assert world.clock.now() == pytest.approx(world.fleet, abs=0.001)


def test_a_step_of_hours_is_followed() -> None:
    """A server that began with a wrong date would keep the fleet off for weeks."""
    world = World.grown()
    world.set_by = LONGEST_BRIDGE_SECONDS * 2

    assert world.look() == "lost"
    assert world.clock.now() == pytest.approx(world.fleet, abs=0.001)


def test_two_machines_that_disagree_come_together() -> None:
    """Whoever shows less stood still: neither has the other's time written down again and again."""
    ahead, behind = World.grown(), World.grown()
    chance = random.Random(7)
    behind.set_by = behind.offset = 0
    behind.passed -= 40  # it stood still
    behind.set_by = 40
    offset, reached, writers = 0.0, ahead.clock.now(), list[str]()
    for _ in range(20):
        name, world = chance.choice([("ahead", ahead), ("behind", behind)])
        world.offset = offset
        if world.look(reached=reached) == "stepped":
            offset = world.clock.now() - (START + world.passed + world.set_by)
            reached = world.clock.now()
            writers.append(name)

    assert writers == []
    assert behind.clock.now() == pytest.approx(behind.fleet, abs=0.001)
